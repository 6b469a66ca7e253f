/* Groups and the calls that move data. */
#include <stdlib.h>
#include <string.h>

#include "calls.h"

static _Thread_local int depth;
static _Thread_local struct op *queued, **queue_end;
static _Thread_local enum result group_error;
static unsigned batch;

static void remember(struct comm *comm, struct stream *stream)
{
    for (int i = 0; i < 8; i++)
        if (comm->used[i] == stream)
            return;
    comm->used[comm->uses++ % 8] = stream;
}

static int shares_stream_with_older(const struct op *op)
{
    for (const struct op *one = op->comm->clique->waiting; one; one = one->next)
        if (one->stream == op->stream && one->batch != op->batch)
            return 1;
    return 0;
}

/* Puts an op into its clique, at the end. */
static enum result post(const struct engine *cuda, struct op *op)
{
    struct op **end = &op->comm->clique->waiting;
    int code = cuda->enter(op->comm->device);
    op->stream = code ? NULL : cuda->resolve(op->stream, op->comm->device);
    if (!op->stream) {
        if (code)
            warn(op->comm->device, "Cuda failure %d '%s'", code, cuda->error_text(code));
        op->comm->error = code ? UNHANDLED_CUDA_ERROR : INVALID_ARGUMENT;
        return op->comm->error;
    }
    remember(op->comm, op->stream);
    op->start = cuda->stream_start(op->stream);
    if (shares_stream_with_older(op))
        op->start = 0;
    cuda->stream_hold(op->stream, 1);
    while (*end)
        end = &(*end)->next;
    *end = op;
    op->next = NULL;
    return NCCL_SUCCESS;
}

static enum result run_queue(void)
{
    int code;
    const struct engine *cuda = engine(&code);
    enum result result = NCCL_SUCCESS;
    struct clique *touched[MAX_RANKS];
    int n = 0;
    if (!queued)
        return NCCL_SUCCESS;
    cuda->lock();
    batch++;
    while (queued) {
        struct op *op = queued;
        struct clique *clique = op->comm->clique;
        int known = 0;
        queued = op->next;
        op->batch = batch;
        enum result one = post(cuda, op);
        if (one) {
            free(op);
            result = one;
            continue;
        }
        for (int i = 0; i < n; i++)
            known |= touched[i] == clique;
        if (!known && n < MAX_RANKS)
            touched[n++] = clique;
    }
    for (int i = 0; i < n; i++)
        run_matches(cuda, touched[i]);
    cuda->unlock();
    return result;
}

EXPORT enum result ncclGroupStart(void)
{
    depth++;
    return NCCL_SUCCESS;
}

EXPORT enum result ncclGroupEnd(void)
{
    if (!depth)
        return INVALID_USAGE;
    if (--depth)
        return NCCL_SUCCESS;
    enum result joined = join_all(), result = group_error;
    group_error = NCCL_SUCCESS;
    result = result ? result : joined;
    enum result ran = run_queue();
    return result ? result : ran;
}

int in_group(void)
{
    return depth;
}

static enum result refuse(struct comm *comm, const char *what)
{
    warn(comm ? comm->device : 0, "%s", what);
    group_error = depth ? INVALID_ARGUMENT : NCCL_SUCCESS;
    return INVALID_ARGUMENT;
}

static enum result call(struct op wanted)
{
    int code;
    const struct engine *cuda = engine(&code);
    if (!wanted.comm || !cuda)
        return refuse(NULL, "comm argument is NULL");
    if (!type_size(wanted.type) || wanted.reduction < 0 || wanted.reduction > 4)
        return refuse(wanted.comm, "invalid type or reduction");
    if (wanted.peer < 0 || wanted.peer >= wanted.comm->clique->ranks)
        return refuse(wanted.comm, "invalid peer or root");
    const void *buffers[] = {wanted.send, wanted.recv};
    for (int i = 0; wanted.count && i < 2; i++)
        if (buffers[i] && cuda->holder(buffers[i]) == NOT_OURS)
            return refuse(wanted.comm, "buffer is not a valid pointer");
    struct op *op = malloc(sizeof *op);
    if (!op)
        return SYSTEM_ERROR;
    *op = wanted;
    op->next = NULL;
    if (!queued)
        queue_end = &queued;
    *queue_end = op;
    queue_end = &op->next;
    return depth ? NCCL_SUCCESS : run_queue();
}

EXPORT enum result
ncclSend(const void *buffer, size_t count, int type, int peer, struct comm *comm, struct stream *stream)
{
    return call((struct op){.call = SEND, .comm = comm, .send = buffer, .count = count, .type = type, .peer = peer,
                            .stream = stream});
}

EXPORT enum result ncclRecv(void *buffer, size_t count, int type, int peer, struct comm *comm, struct stream *stream)
{
    return call((struct op){.call = RECV, .comm = comm, .recv = buffer, .count = count, .type = type, .peer = peer,
                            .stream = stream});
}

EXPORT enum result ncclAllReduce(const void *send, void *recv, size_t count, int type, int reduction, struct comm *comm,
                                 struct stream *stream)
{
    return call((struct op){.call = ALL_REDUCE, .comm = comm, .send = send, .recv = recv, .count = count, .type = type,
                            .reduction = reduction, .stream = stream});
}

EXPORT enum result ncclReduce(const void *send, void *recv, size_t count, int type, int reduction, int root,
                              struct comm *comm, struct stream *stream)
{
    return call((struct op){.call = REDUCE, .comm = comm, .send = send, .recv = recv, .count = count, .type = type,
                            .reduction = reduction, .peer = root, .stream = stream});
}

EXPORT enum result ncclBroadcast(const void *send, void *recv, size_t count, int type, int root, struct comm *comm,
                                 struct stream *stream)
{
    return call((struct op){.call = BROADCAST, .comm = comm, .send = send, .recv = recv, .count = count, .type = type,
                            .peer = root, .stream = stream});
}

EXPORT enum result
ncclAllGather(const void *send, void *recv, size_t count, int type, struct comm *comm, struct stream *stream)
{
    return call((struct op){.call = ALL_GATHER, .comm = comm, .send = send, .recv = recv, .count = count, .type = type,
                            .stream = stream});
}

EXPORT enum result ncclReduceScatter(const void *send, void *recv, size_t count, int type, int reduction,
                                     struct comm *comm, struct stream *stream)
{
    return call((struct op){.call = REDUCE_SCATTER, .comm = comm, .send = send, .recv = recv, .count = count,
                            .type = type, .reduction = reduction, .stream = stream});
}
