/* volatile/physics: the state of physics.h for every GPU. Whoever looks moves it on, in ticks of 100 ms, up to the last
 * one that is over. The controller of a host (../bmc) looks ten times a second. Writable by all, as any user may look. */
#ifndef NVMLSIM_TICKS_H
#define NVMLSIM_TICKS_H

#include <stdint.h>

#include "physics.h"
#include "supply.h"

#define TICK_NS 100000000ull
#define TICKS_GPUS 64

struct ticks_file {
    int64_t tick; /* CLOCK_MONOTONIC / TICK_NS of the first one that is not in the state */
    int64_t begun; /* 0: there is no state yet */
    int64_t reset; /* 1: the rail of the board was too low: the machine resets */
    struct gpu_physics gpu[TICKS_GPUS];
    struct rail_state rail[RAILS];
};

/* dynamics.c: the figures of one GPU, and what is asked of it but for the load */
void physics_figures(int gpu, struct gpu_model *model, struct gpu_inputs *in);

/* rails.c: railN.* of board.conf, and what is wrong with the supplies */
int rails_count(void);
struct rail_figures {
    struct rail_model model;
    double base_w;  /* of the rest of the machine */
    int feeds_base;
    uint64_t gpus;  /* a bit for each GPU */
};
void rail_figures(int rail, struct rail_figures *out);

/* ticks.c */
extern int64_t ticks_zero_ns; /* what CLOCK_MONOTONIC shows when the host's is 0, for a process outside of the host */
const struct ticks_file *ticks_now(void);
const struct gpu_physics *gpu_physics_now(int gpu);

#endif
