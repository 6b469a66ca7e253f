/* What the files of libcuda share. GPUs are numbers of the board here, devices CUDA's ordinals. */
#ifndef CUDASIM_DRIVER_H
#define CUDASIM_DRIVER_H

#include "../../nvml/sim.h"
#include "../engine.h"

struct stream {
    int gpu, waiting_for_others;
    unsigned flags; /* 1: does not wait for the default stream */
    uint64_t clock; /* ns; when everything in it is done */
    struct stream *next;
};

/* device.c */
extern const struct engine engine;
void driver_lock(void); /* recursive; reads the state again when it is taken from outside */
void driver_unlock(void);
int initialise(void);
int gpu_of(int device); /* -1: no such device, or not initialised */
int device_of(int gpu);
int device_count(void);
int has_context(int gpu);
void leave_device(int device);
int enter_gpu(int gpu);
int cuda_version_of_driver(void);

/* presence.c: what other processes see of this one */
void presence_memory(int gpu, unsigned mib);
void presence_busy(int gpu, uint64_t from, uint64_t until, unsigned effort);
void presence_stop(int gpu); /* what never ends was aborted */

/* memory.c */
void memory_forget(int gpu);
size_t memory_held(int gpu);

/* links.c */
enum pair_fault { NO_FAULT, HANGS, CORRUPTS, REFUSED };
enum pair_fault fault_of_pair(int a, int b);
int can_access(int gpu, int peer);
int peer_enabled(int gpu, int peer);
struct path pair_path(int a, int b, int direct);
struct path host_path(int gpu, int pinned);
void peers_forget(int gpu);
uint64_t occupy(int from, int to, size_t bytes, const struct path *path, uint64_t start); /* HOST is one end */
double memory_gb_s(int gpu);

/* streams.c */
uint64_t clock_now(void);
uint64_t real_now(void);
void clock_moved(uint64_t from_ns);
struct stream *stream_resolve(struct stream *stream, int gpu); /* NULL: no such stream */
uint64_t stream_start(struct stream *stream);
void stream_until(struct stream *stream, uint64_t end, int effort);
void streams_forget(int gpu);

#endif
