/* The simulated NCCL: what its files share. Ranks of a communicator live in one process, or in several that meet over TCP. */
#ifndef CUDASIM_NCCL_H
#define CUDASIM_NCCL_H

#include <pthread.h>

#include "../loader.h"

enum result {
    NCCL_SUCCESS = 0,
    UNHANDLED_CUDA_ERROR = 1,
    SYSTEM_ERROR = 2,
    INTERNAL_ERROR = 3,
    INVALID_ARGUMENT = 4,
    INVALID_USAGE = 5,
    IN_PROGRESS = 7,
};

#define MAX_RANKS 64

enum transport { P2P, SHM, NET };

struct route { /* from one rank to another */
    enum transport transport;
    int read; /* the receiver reads, as between two A100 over NVLink */
    struct path path;
};

enum call { SEND, RECV, ALL_REDUCE, BROADCAST, REDUCE, ALL_GATHER, REDUCE_SCATTER };

struct comm;

struct op {
    enum call call;
    struct comm *comm;
    const void *send;
    void *recv;
    size_t count;
    int type, reduction, peer; /* peer: of send and recv, the root of broadcast and reduce */
    struct stream *stream;
    uint64_t start; /* 0: when what is before it in its stream has ended */
    unsigned batch; /* ops of one group run side by side */
    struct op *next;
};

struct clique {
    unsigned long long id;
    int ranks, joined, left, told_ring, hangs;
    int local; /* ranks of this process */
    int spread, is_origin, root, peers, fds[MAX_RANKS]; /* over several processes: the way to the one that made the id, or to the others */
    unsigned long long origin_id;
    unsigned origin_address;
    int origin_port;
    struct comm *comms[MAX_RANKS];
    int ring[MAX_RANKS];
    int ring_is_nvlink, channels;
    char told_pair[MAX_RANKS][MAX_RANKS];
    struct op *waiting;
    struct clique *next;
};

struct comm {
    struct clique *clique;
    int rank, device;
    enum result error;
    struct stream *used[8]; /* the last streams, for an abort */
    unsigned uses;
};

/* settings.c: versions and the environment */
int nccl_version(void); /* 22105 */
int nccl_is(int version); /* this version or a newer one */
void read_settings(void);
long setting(const char *name, long absent); /* NCCL_name, through the environment and nccl.conf */

/* log.c */
void log_open(int rank_zero_device);
void info(int device, const char *format, ...) __attribute__((format(printf, 2, 3)));
void warn(int device, const char *format, ...) __attribute__((format(printf, 2, 3)));
void log_as(int rank); /* each rank has a thread of its own in the log */
const char *last_error(void);

/* routes.c */
enum result route(const struct engine *cuda, const struct clique *clique, int from, int to, int aloud, struct route *out);
enum result plan(const struct engine *cuda, struct clique *clique); /* ring and channels, and what is wrong with them */
void tell_start(const struct engine *cuda, const struct clique *clique, int complete);
void tell_ring(const struct engine *cuda, struct clique *clique);
void tell_spread(const struct engine *cuda, const struct clique *clique); /* of a clique over several processes */
void tell_pair(const struct engine *cuda, struct clique *clique, int from, int to);

/* run.c */
void run_matches(const struct engine *cuda, struct clique *clique);

/* reduce.c */
size_t type_size(int type);                                /* 0: no such type */
void combine(void *into, const void *with, size_t count, int type, int reduction);
void divide(void *values, size_t count, int type, int by); /* for the mean */

/* spin.c */
void spin_thread(int on);

#endif
