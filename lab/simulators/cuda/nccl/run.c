/* Brings together what ranks have asked for, moves the bytes and says how long it takes.
 *
 * A call waits in its clique until its partners have made theirs; what finds none waits for ever, as in life. Above
 * WHOLE bytes only samples are moved, or a test with real gradients would need the memory of the GPUs on this machine. */
#include <stdlib.h>
#include <string.h>

#include "net.h"

#define WHOLE ((size_t)64 << 20)
#define SAMPLE ((size_t)1 << 20)
#define SAMPLE_EVERY ((size_t)32 << 20)
#define SPOIL_EVERY 65536
#define EFFORT 35         /* percent of full power */
#define RING_NVLINK 0.88  /* of the links' rate */
#define RING_OTHER 0.8    /* every GPU sends and receives at once */
#define LAUNCH_US 6

/* Calls `each` for the parts of a buffer that are moved. */
static void in_parts(size_t bytes, void (*each)(void *context, size_t at, size_t size), void *context)
{
    if (bytes <= WHOLE) {
        each(context, 0, bytes);
        return;
    }
    for (size_t at = 0; at + SAMPLE < bytes; at += SAMPLE_EVERY)
        each(context, at, SAMPLE);
    each(context, bytes - SAMPLE, SAMPLE);
}

struct move {
    char *to;
    const char *from;
    int spoilt, type, reduction, add, mean;
};

static void move_part(void *context, size_t at, size_t size)
{
    struct move *move = context;
    if (move->add)
        combine(move->to + at, move->from + at, size / type_size(move->type), move->type, move->reduction);
    else if (move->mean)
        divide(move->to + at, size / type_size(move->type), move->type, move->mean);
    else if (move->to != move->from)
        memmove(move->to + at, move->from + at, size);
    for (size_t i = at; move->spoilt && i < at + size; i += SPOIL_EVERY)
        move->to[i] ^= 0x10;
}

static void copy(void *to, const void *from, size_t bytes, int spoilt)
{
    struct move move = {.to = to, .from = from, .spoilt = spoilt};
    in_parts(bytes, move_part, &move);
}

/* All ranks' values of one part of their buffers, put together in `to`. */
static void put_together(void *to, struct op **ops, int ranks, size_t offset, size_t count, int spoilt)
{
    const struct op *first = ops[0];
    size_t bytes = count * type_size(first->type);
    struct move move = {.to = to, .from = (const char *)first->send + offset};
    in_parts(bytes, move_part, &move);
    for (int rank = 1; rank < ranks; rank++) {
        move = (struct move){.to = to, .from = (const char *)ops[rank]->send + offset, .type = first->type,
                             .reduction = first->reduction, .add = 1};
        in_parts(bytes, move_part, &move);
    }
    move = (struct move){.to = to, .from = to, .type = first->type, .mean = first->reduction == 4 ? ranks : 0,
                         .spoilt = spoilt};
    in_parts(bytes, move_part, &move);
}

/* Results go to a buffer of their own first, as they may lie where a value is still to be read. */
static void collect(struct op **ops, int ranks, int spoilt)
{
    const struct op *first = ops[0];
    size_t bytes = first->count * type_size(first->type);
    int scatter = first->call == REDUCE_SCATTER;
    if (first->call == BROADCAST) {
        for (int rank = 0; rank < ranks; rank++)
            copy(ops[rank]->recv, ops[first->peer]->send, bytes, spoilt && rank != first->peer);
        return;
    }
    if (first->call == ALL_GATHER) {
        for (int from = 0; from < ranks; from++)
            for (int to = 0; to < ranks; to++)
                copy((char *)ops[to]->recv + (size_t)from * bytes, ops[from]->send, bytes, spoilt && from != to);
        return;
    }
    char *scratch = malloc(scatter ? bytes * (size_t)ranks : bytes);
    for (int part = 0; scratch && part < (scatter ? ranks : 1); part++)
        put_together(scratch + (size_t)part * bytes, ops, ranks, (size_t)part * bytes, first->count, spoilt);
    for (int rank = 0; scratch && rank < ranks; rank++)
        if (first->call != REDUCE || rank == first->peer)
            copy(ops[rank]->recv, scratch + (scatter ? (size_t)rank * bytes : 0), bytes, 0);
    free(scratch);
}

struct ring {
    double slowest, per_link, latency_us;
    int links, spoilt, hangs;
};

static int links_of(const struct engine *cuda, const struct clique *clique, int rank)
{
    int sum = 0;
    struct pair pair;
    for (int peer = 0; peer < clique->ranks; peer++)
        if (peer != rank && !cuda->pair(clique->comms[rank]->device, clique->comms[peer]->device, &pair))
            sum += pair.links;
    return sum;
}

static void add_hop(const struct engine *cuda, const struct clique *clique, int from, int to, struct ring *ring)
{
    struct route next;
    struct pair pair;
    int a = clique->comms[from]->device, b = clique->comms[to]->device;
    if (route(cuda, clique, from, to, 0, &next) || cuda->pair(a, b, &pair))
        return;
    if (next.path.gb_s < ring->slowest)
        ring->slowest = next.path.gb_s;
    if (next.path.latency_us > ring->latency_us)
        ring->latency_us = next.path.latency_us;
    if (pair.links && pair.direct.gb_s / pair.links < ring->per_link)
        ring->per_link = pair.direct.gb_s / pair.links;
    if (next.transport == P2P) {
        ring->spoilt |= cuda->corrupts(a, b);
        ring->hangs |= cuda->transfer(a, b, 0, &next.path, 0) == NEVER;
    }
}

/* GB/s around the ring: the slowest hop, or all NVLinks, as the channels' rings go round in every order. Through a switch
 * a GPU has all its links to every peer, and the rings need no other hops. */
static double ring_gb_s(const struct engine *cuda, const struct clique *clique, struct ring *ring)
{
    *ring = (struct ring){1e9, 1e9, 0, 1 << 20, 0, 0};
    for (int i = 0; i < clique->ranks; i++) {
        int from = clique->ring[i], next = clique->ring[(i + 1) % clique->ranks];
        int sum = links_of(cuda, clique, from), has = (int)cuda->device_number(clique->comms[from]->device, "nvlinks", 0);
        for (int to = 0; to < clique->ranks; to++) {
            struct pair pair;
            int linked = clique->ring_is_nvlink && sum <= has && to != from &&
                         !cuda->pair(clique->comms[from]->device, clique->comms[to]->device, &pair) && pair.links;
            if (from != next && (to == next || linked))
                add_hop(cuda, clique, from, to, ring);
        }
        sum = has && sum > has ? has : sum;
        ring->links = sum < ring->links ? sum : ring->links;
    }
    return clique->ring_is_nvlink ? RING_NVLINK * ring->per_link * ring->links : RING_OTHER * ring->slowest;
}

static uint64_t start_of(const struct engine *cuda, const struct op *op)
{
    return op->start ? op->start : cuda->stream_start(op->stream);
}

static double share(const struct op *op, int ranks)
{
    switch (op->call) {
    case ALL_REDUCE: return 2.0 * (ranks - 1) / ranks;
    case ALL_GATHER:
    case REDUCE_SCATTER: return ranks - 1;
    default: return 1;
    }
}

static void finish(const struct engine *cuda, struct clique *clique, struct op *op, uint64_t end)
{
    struct op **link = &clique->waiting;
    while (*link != op)
        link = &(*link)->next;
    *link = op->next;
    cuda->stream_hold(op->stream, -1);
    cuda->stream_until(op->stream, end, EFFORT);
    free(op);
}

static void run_collective(const struct engine *cuda, struct clique *clique, struct op **ops)
{
    struct ring ring;
    double gb_s;
    int ranks = clique->ranks;
    uint64_t start = 0, began = cuda->real_now(), end;
    size_t bytes = ops[0]->count * type_size(ops[0]->type);
    tell_ring(cuda, clique);
    gb_s = ring_gb_s(cuda, clique, &ring);
    for (int rank = 0; rank < ranks; rank++)
        start = start_of(cuda, ops[rank]) > start ? start_of(cuda, ops[rank]) : start;
    end = start + LAUNCH_US * 1000;
    if (ranks > 1)
        end += (uint64_t)((double)bytes * share(ops[0], ranks) / gb_s + 1000 * ring.latency_us * 2 * (ranks - 1));
    if (cuda->setting("nccl.irq_hang") && ranks > 1) {
        ring.hangs = 1;
        clique->hangs = 1;
        spin_thread(1);
    }
    if (!ring.hangs) {
        cuda->repeats(NULL, NULL, 0);
        collect(ops, ranks, ring.spoilt);
        cuda->moved(began);
    }
    for (int rank = 0; rank < ranks; rank++)
        finish(cuda, clique, ops[rank], ring.hangs ? NEVER : end);
}

static void run_pair(const struct engine *cuda, struct clique *clique, struct op *send, struct op *recv)
{
    struct route way;
    int from = send->comm->rank, to = recv->comm->rank, a = send->comm->device, b = recv->comm->device;
    uint64_t sends = start_of(cuda, send), recvs = start_of(cuda, recv), began = cuda->real_now(), end;
    size_t bytes = send->count * type_size(send->type);
    tell_pair(cuda, clique, from, to);
    way = (struct route){P2P, 0, {WAY_LOCAL, (double)cuda->device_number(a, "memory_gb_s", 500) * 0.42, 1}};
    if (a != b)
        route(cuda, clique, from, to, 0, &way);
    end = cuda->transfer(a, b, bytes, &way.path, (sends > recvs ? sends : recvs) + LAUNCH_US * 1000);
    if (end != NEVER) {
        int spoilt = way.transport == P2P && a != b && cuda->corrupts(a, b);
        if (!cuda->repeats(recv->recv, send->send, bytes))
            copy(recv->recv, send->send, bytes, spoilt);
        if (spoilt)
            cuda->repeats(NULL, NULL, 0);
        cuda->moved(began);
    }
    finish(cuda, clique, send, end);
    finish(cuda, clique, recv, end);
}

static int one_sided(const struct op *op)
{
    return op->call == SEND || op->call == RECV;
}

/* The first collective of each rank, when all have one and they are the same. */
static int collective_ready(struct clique *clique, struct op **ops)
{
    for (int rank = 0; rank < clique->ranks; rank++) {
        struct op *op = clique->waiting;
        while (op && (op->comm->rank != rank || one_sided(op)))
            op = op->next;
        ops[rank] = op;
        if (!op || op->call != ops[0]->call || op->count != ops[0]->count || op->type != ops[0]->type)
            return 0;
    }
    return 1;
}

static int pair_ready(struct clique *clique, struct op **send, struct op **recv)
{
    for (*send = clique->waiting; *send; *send = (*send)->next)
        for (*recv = clique->waiting; (*send)->call == SEND && *recv; *recv = (*recv)->next)
            if ((*recv)->call == RECV && (*recv)->peer == (*send)->comm->rank && (*send)->peer == (*recv)->comm->rank &&
                (*recv)->count * type_size((*recv)->type) == (*send)->count * type_size((*send)->type))
                return 1;
    return 0;
}

/* The collective of the ranks of this process, together with other processes; only sums and the like for all. */
static int run_spread(const struct engine *cuda, struct clique *clique)
{
    struct op *ops[MAX_RANKS];
    int n = 0;
    for (int rank = 0; rank < clique->ranks; rank++) {
        struct op *op = clique->waiting;
        if (!clique->comms[rank])
            continue;
        while (op && (op->comm->rank != rank || one_sided(op)))
            op = op->next;
        ops[n++] = op;
        if (!op || op->call != ops[0]->call || op->count != ops[0]->count || op->type != ops[0]->type)
            return 0;
    }
    size_t bytes = ops[0]->count * type_size(ops[0]->type);
    void *values = malloc(bytes ? bytes : 1);
    enum result result = values && ops[0]->call == ALL_REDUCE && ops[0]->reduction != 4 ? NCCL_SUCCESS : INVALID_USAGE;
    cuda->repeats(NULL, NULL, 0);
    if (!result) {
        memcpy(values, ops[0]->send, bytes);
        for (int i = 1; i < n; i++)
            combine(values, ops[i]->send, ops[0]->count, ops[0]->type, ops[0]->reduction);
        result = net_reduce(clique, values, ops[0]->count, ops[0]->type, ops[0]->reduction);
    }
    uint64_t end = cuda->now() + LAUNCH_US * 1000;
    for (int i = 0; i < n; i++) {
        if (!result)
            memcpy(ops[i]->recv, values, bytes);
        ops[i]->comm->error = result;
        finish(cuda, clique, ops[i], result ? NEVER : end);
    }
    free(values);
    return 1;
}

void run_matches(const struct engine *cuda, struct clique *clique)
{
    while (clique->spread && run_spread(cuda, clique))
        ;
    if (clique->spread)
        return;
    struct op *ops[MAX_RANKS], *send, *recv;
    int more = 1;
    while (more) {
        more = 0;
        if (pair_ready(clique, &send, &recv)) {
            run_pair(cuda, clique, send, recv);
            more = 1;
        } else if (collective_ready(clique, ops)) {
            run_collective(cuda, clique, ops);
            more = 1;
        }
    }
    for (struct op *op = clique->waiting; op; op = op->next)
        cuda->stream_spin(op->stream);
}
