/* Communicators: made for all ranks at once, or rank by rank, from one thread or many of one process, or from several processes. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "calls.h"
#include "net.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t all_joined = PTHREAD_COND_INITIALIZER;
static struct clique *cliques;
static _Thread_local struct comm *to_join[MAX_RANKS];
static _Thread_local int to_join_count;

static const struct engine *driver(enum result *result)
{
    int code;
    const struct engine *cuda = engine(&code);
    read_settings();
    log_open(cuda ? cuda->current() : 0);
    *result = cuda ? NCCL_SUCCESS : UNHANDLED_CUDA_ERROR;
    if (!cuda)
        warn(0, "Cuda failure %d", code);
    return cuda;
}

EXPORT enum result ncclGetVersion(int *out)
{
    if (!out)
        return INVALID_ARGUMENT;
    *out = nccl_version();
    return NCCL_SUCCESS;
}

EXPORT const char *ncclGetErrorString(enum result result)
{
    static const char *const texts[] = {
        "no error",
        "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        "unhandled system error (run with NCCL_DEBUG=INFO for details)",
        "internal error - please report this issue to the NCCL developers",
        "invalid argument (run with NCCL_DEBUG=WARN for details)",
        "invalid usage (run with NCCL_DEBUG=WARN for details)",
        "remote process exited or there was a network error",
        "NCCL operation in progress",
    };
    return (unsigned)result < sizeof texts / sizeof *texts ? texts[result] : "unknown result code";
}

EXPORT const char *ncclGetLastError(struct comm *comm)
{
    (void)comm;
    return last_error();
}

static struct clique *clique_of(unsigned long long id, int ranks)
{
    for (struct clique *clique = cliques; clique; clique = clique->next)
        if (clique->id == id)
            return clique->ranks == ranks ? clique : NULL;
    struct clique *clique = calloc(1, sizeof *clique);
    if (!clique)
        return NULL;
    clique->id = id;
    clique->ranks = ranks;
    clique->next = cliques;
    cliques = clique;
    return clique;
}

/* The last rank to come finds out how all are connected. */
static void complete(const struct engine *cuda, struct clique *clique)
{
    cuda->lock();
    tell_start(cuda, clique, 0);
    enum result result = plan(cuda, clique);
    if (!result && !nccl_is(22200))
        tell_ring(cuda, clique); /* newer ones connect when the first collective comes */
    for (int rank = 0; rank < clique->ranks; rank++)
        clique->comms[rank]->error = result;
    if (!result)
        tell_start(cuda, clique, 1);
    cuda->unlock();
}

static enum result joined(const struct engine *cuda, struct comm *comm)
{
    struct clique *clique = comm->clique;
    if (clique->origin_id) {
        enum result met = net_join(clique, &mutex);
        if (met)
            warn(comm->device, "The process that made the id, or another one, does not answer");
        if (met)
            return met;
        if (clique->spread && !clique->told_ring++)
            tell_spread(cuda, clique);
    }
    pthread_mutex_lock(&mutex);
    while (comm->clique->joined < comm->clique->ranks)
        pthread_cond_wait(&all_joined, &mutex);
    pthread_mutex_unlock(&mutex);
    return comm->error;
}

static enum result enlist(const struct engine *cuda, struct comm **out, int ranks, unsigned long long id, int rank,
                          int device)
{
    struct comm *comm = calloc(1, sizeof *comm);
    int code = cuda->enter(device);
    if (code)
        warn(device, "Cuda failure %d '%s'", code, cuda->error_text(code));
    if (code || !comm) {
        free(comm);
        return UNHANDLED_CUDA_ERROR;
    }
    pthread_mutex_lock(&mutex);
    struct clique *clique = clique_of(id, ranks);
    if (!clique || clique->comms[rank]) {
        pthread_mutex_unlock(&mutex);
        free(comm);
        warn(device, "Invalid config: rank %d of %d joins twice, or with another number of ranks", rank, ranks);
        return INVALID_USAGE;
    }
    *comm = (struct comm){.clique = clique, .rank = rank, .device = device};
    clique->comms[rank] = *out = comm;
    if (clique->joined + 1 == ranks)
        complete(cuda, clique);
    clique->joined++;
    clique->local++;
    pthread_cond_broadcast(&all_joined);
    pthread_mutex_unlock(&mutex);
    return NCCL_SUCCESS;
}

enum result join_all(void)
{
    int code;
    const struct engine *cuda = engine(&code);
    enum result result = NCCL_SUCCESS;
    for (int i = 0; i < to_join_count; i++) {
        enum result one = joined(cuda, to_join[i]);
        result = result ? result : one;
    }
    to_join_count = 0;
    return result;
}

EXPORT enum result ncclGetUniqueId(struct unique_id *out)
{
    enum result result;
    driver(&result);
    memset(out, 0, sizeof *out);
    if (getrandom(&out->id, sizeof out->id, 0) != sizeof out->id)
        return SYSTEM_ERROR;
    return result ? result : net_listen(out);
}

EXPORT enum result ncclCommInitRank(struct comm **out, int ranks, struct unique_id id, int rank)
{
    enum result result;
    const struct engine *cuda = driver(&result);
    if (!cuda)
        return result;
    if (ranks < 1 || ranks > MAX_RANKS || rank < 0 || rank >= ranks || strcmp(id.mark, "rigwright lab"))
        return INVALID_ARGUMENT;
    result = enlist(cuda, out, ranks, id.id, rank, cuda->current());
    if (!result) {
        struct clique *clique = (*out)->clique;
        clique->origin_id = id.id;
        clique->origin_address = id.address;
        clique->origin_port = id.port;
        clique->is_origin = net_is_own(&id);
    }
    if (result || !in_group())
        return result ? result : joined(cuda, *out);
    to_join[to_join_count++ % MAX_RANKS] = *out;
    return NCCL_SUCCESS;
}

EXPORT enum result ncclCommInitAll(struct comm **out, int ranks, const int *devices)
{
    enum result result;
    unsigned long long id = 0;
    const struct engine *cuda = driver(&result);
    if (!cuda)
        return result;
    if (!out || ranks < 1 || ranks > MAX_RANKS)
        return INVALID_ARGUMENT;
    for (int i = 0; devices && i < ranks; i++)
        for (int j = 0; j < i; j++)
            if (devices[i] == devices[j]) {
                warn(devices[i], "Duplicate GPU detected : rank %d and rank %d both on CUDA device %d", j, i, devices[i]);
                return INVALID_USAGE;
            }
    if (getrandom(&id, sizeof id, 0) != sizeof id)
        return SYSTEM_ERROR;
    for (int rank = 0; rank < ranks && !result; rank++)
        result = enlist(cuda, &out[rank], ranks, id, rank, devices ? devices[rank] : rank);
    return result ? result : out[0]->error;
}

/* A clique goes with its last communicator. */
static void leave(struct comm *comm)
{
    struct clique *clique = comm->clique, **link = &cliques;
    pthread_mutex_lock(&mutex);
    if (++clique->left == clique->local) {
        net_leave(clique);
        while (*link != clique)
            link = &(*link)->next;
        *link = clique->next;
        for (int rank = 0; rank < clique->ranks; rank++)
            free(clique->comms[rank]);
        free(clique);
    }
    pthread_mutex_unlock(&mutex);
}

static void drop_waiting(const struct engine *cuda, struct comm *comm)
{
    for (struct op **link = &comm->clique->waiting; *link;) {
        struct op *op = *link;
        if (op->comm != comm) {
            link = &op->next;
            continue;
        }
        *link = op->next;
        cuda->stream_hold(op->stream, -1);
        free(op);
    }
}

EXPORT enum result ncclCommAbort(struct comm *comm)
{
    int code;
    const struct engine *cuda = engine(&code);
    if (!comm || !cuda)
        return INVALID_ARGUMENT;
    cuda->lock();
    drop_waiting(cuda, comm);
    for (int i = 0; i < 8; i++) {
        struct stream *stream = comm->used[i] ? cuda->resolve(comm->used[i], comm->device) : NULL;
        if (stream)
            cuda->stream_revive(stream);
    }
    cuda->unlock();
    if (comm->clique->hangs)
        spin_thread(0);
    leave(comm);
    return NCCL_SUCCESS;
}

EXPORT enum result ncclCommDestroy(struct comm *comm)
{
    int code;
    const struct engine *cuda = engine(&code);
    if (!comm || !cuda)
        return INVALID_ARGUMENT;
    cuda->lock();
    drop_waiting(cuda, comm);
    cuda->unlock();
    leave(comm);
    return NCCL_SUCCESS;
}

EXPORT enum result ncclCommFinalize(struct comm *comm)
{
    return comm ? NCCL_SUCCESS : INVALID_ARGUMENT;
}

/* A GPU that was lost shows here, as everything else is asynchronous. */
EXPORT enum result ncclCommGetAsyncError(struct comm *comm, enum result *out)
{
    int code;
    const struct engine *cuda = engine(&code);
    if (!comm || !out || !cuda)
        return INVALID_ARGUMENT;
    if (!comm->error && cuda->enter(comm->device))
        comm->error = UNHANDLED_CUDA_ERROR;
    *out = comm->error;
    return NCCL_SUCCESS;
}

EXPORT enum result ncclCommCount(const struct comm *comm, int *out)
{
    *out = comm ? comm->clique->ranks : 0;
    return comm ? NCCL_SUCCESS : INVALID_ARGUMENT;
}

EXPORT enum result ncclCommUserRank(const struct comm *comm, int *out)
{
    *out = comm ? comm->rank : 0;
    return comm ? NCCL_SUCCESS : INVALID_ARGUMENT;
}

EXPORT enum result ncclCommCuDevice(const struct comm *comm, int *out)
{
    *out = comm ? comm->device : 0;
    return comm ? NCCL_SUCCESS : INVALID_ARGUMENT;
}
