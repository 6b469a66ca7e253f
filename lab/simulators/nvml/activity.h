/* volatile/contexts: which processes have CUDA contexts and how busy they keep each GPU. lab/simulators/cuda writes it, NVML reads.
 *
 * One slot per process, which lives while its process holds a lock on the slot's first byte, so a killed process leaves
 * at once. Writable by all, as any user may compute. Busy time is told in two ways: work of less than SOLID_NS is added
 * to the bucket of its moment; longer work is one interval, which may end in the future or never. */
#ifndef NVMLSIM_ACTIVITY_H
#define NVMLSIM_ACTIVITY_H

#include <stdint.h>

#define ACTIVITY_SLOTS 64
#define ACTIVITY_GPUS 64
#define ACTIVITY_BUCKETS 16
#define BUCKET_NS 100000000ull
#define SOLID_NS BUCKET_NS
#define WINDOW_BUCKETS 5 /* what utilization is the mean of */

struct busy_bucket {
    uint32_t tick, busy_us, effort_us; /* tick: CLOCK_MONOTONIC / BUCKET_NS */
};

struct gpu_activity {
    uint32_t mib;          /* 0: no context on this GPU */
    uint32_t solid_effort; /* percent of full power */
    uint64_t solid_from, solid_until;
    struct busy_bucket bucket[ACTIVITY_BUCKETS];
};

struct process_activity {
    uint32_t pid, unused;
    struct gpu_activity gpu[ACTIVITY_GPUS];
};

struct load {
    unsigned util, effort, mib; /* percent, percent of full power, MiB of all processes */
    int waits;                  /* a program has begun what never ends, such as a collective that hangs */
};

struct span_load {
    double busy, effort; /* parts of a span of time; more than 1 where processes share a GPU */
};

/* activity.c */
struct load gpu_load(int gpu);
struct span_load span_load(int gpu, uint64_t from_ns, uint64_t until_ns);
int context_holder(int gpu, int number, unsigned *pid, unsigned *mib); /* the number-th process on a GPU; 0: no such */

#endif
