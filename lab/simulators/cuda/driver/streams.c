/* Time: a clock per stream, events, and the sleep that synchronising is. */
#include <stdlib.h>
#include <time.h>

#include "streams.h"

#define SPIN_NS 150000ull     /* a sleep cannot be that short */
#define NAP_NS 20000000ull    /* how soon a loss or an abort is noticed */
#define DISABLE_TIMING 2u
#define HELD_NS 200000000ull /* for how long the clock waits for the program */
#define SPIN_EFFORT 30 /* percent of full power */

struct event {
    struct stream *follows; /* what it was recorded in, while that waits for others */
    uint64_t time;
    int recorded, gpu;
    unsigned flags;
};

static struct stream defaults[MAX_GPUS];
static struct stream *streams;

/* The clock of streams does not run while bytes are moved, nor, for a while, between the recording of an event and the
 * next wait: a GPU would be kept busy then, and a program measures it, not how busy the machine that simulates is. */
static uint64_t skew, held_since;

uint64_t real_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

static uint64_t held(uint64_t real)
{
    uint64_t time = held_since ? real - held_since : 0;
    return time < HELD_NS ? time : HELD_NS;
}

uint64_t clock_now(void)
{
    uint64_t real = real_now();
    return real - skew - held(real);
}

void clock_moved(uint64_t from_ns)
{
    uint64_t took = real_now() - from_ns;
    skew += took;
    if (held_since)
        held_since += took;
}

static void hold_clock(void)
{
    uint64_t real = real_now();
    skew += held(real);
    held_since = real;
}

/* Whoever waits sees real time; what the clock has missed counts as waited. */
static uint64_t release_clock(void)
{
    skew = held_since = 0;
    return real_now();
}

struct stream *stream_resolve(struct stream *stream, int gpu)
{
    if ((uintptr_t)stream <= 2) {
        if (gpu < 0)
            return NULL;
        defaults[gpu].gpu = gpu;
        return &defaults[gpu];
    }
    for (struct stream *one = streams; one; one = one->next)
        if (one == stream)
            return one;
    for (int i = 0; i < MAX_GPUS; i++)
        if (stream == &defaults[i])
            return stream;
    return NULL;
}

int stream_new(int gpu, unsigned flags, struct stream **out)
{
    struct stream *made = calloc(1, sizeof *made);
    if (!made)
        return OUT_OF_MEMORY;
    made->gpu = gpu;
    made->flags = flags;
    made->next = streams;
    streams = made;
    *out = made;
    return SUCCESS;
}

/* One that waits for others stays, as they will come back to it. */
int stream_free(struct stream *stream)
{
    for (struct stream **at = &streams; *at; at = &(*at)->next)
        if (*at == stream) {
            if (stream->waiting_for_others)
                return SUCCESS;
            *at = stream->next;
            free(stream);
            return SUCCESS;
        }
    return INVALID_HANDLE;
}

void streams_forget(int gpu)
{
    for (struct stream **at = &streams; *at;) {
        struct stream *one = *at;
        if (one->gpu == gpu && !one->waiting_for_others) {
            *at = one->next;
            free(one);
        } else {
            at = &one->next;
        }
    }
    defaults[gpu] = (struct stream){.gpu = gpu};
}

/* The default stream and the others of a GPU wait for each other, but for those made to not wait. */
uint64_t stream_start(struct stream *stream)
{
    uint64_t start = clock_now();
    struct stream *usual = &defaults[stream->gpu];
    if (stream->clock > start)
        start = stream->clock;
    if (!(stream->flags & 1) && usual->clock > start)
        start = usual->clock;
    for (struct stream *one = streams; stream == usual && one; one = one->next)
        if (one->gpu == stream->gpu && !(one->flags & 1) && one->clock > start)
            start = one->clock;
    return start;
}

void stream_until(struct stream *stream, uint64_t end, int effort)
{
    uint64_t start = stream_start(stream), real = real_now(), behind = skew + held(real);
    if (end > start)
        presence_busy(stream->gpu, start == NEVER ? real_now() : start + behind, end == NEVER ? NEVER : end + behind,
                      (unsigned)effort);
    if (end > stream->clock)
        stream->clock = end;
}

void stream_revive(struct stream *stream)
{
    stream->waiting_for_others = 0;
    if (stream->clock == NEVER)
        stream->clock = clock_now();
    presence_stop(stream->gpu);
}

void stream_hold(struct stream *stream, int more)
{
    stream->waiting_for_others += more;
    if (stream->waiting_for_others < 0)
        stream->waiting_for_others = 0; /* it was revived meanwhile */
    if (!stream->waiting_for_others)
        presence_stop(stream->gpu);
}

void stream_spin(struct stream *stream)
{
    presence_busy(stream->gpu, real_now(), NEVER, SPIN_EFFORT);
}

static int done(const struct stream *stream)
{
    return !stream->waiting_for_others && stream->clock <= clock_now();
}

int stream_query(struct stream *stream)
{
    int code = enter_gpu(stream->gpu);
    release_clock();
    return code ? code : done(stream) ? SUCCESS : NOT_READY;
}

static void nap(uint64_t ns)
{
    struct timespec time = {0, (long)(ns < NAP_NS ? ns : NAP_NS)};
    nanosleep(&time, NULL);
}

/* Waits until the stream, or every stream of its GPU, is done. */
int stream_wait(struct stream *stream, int whole_gpu)
{
    for (;;) {
        driver_lock();
        int gpu = stream->gpu, code = enter_gpu(gpu), waits = stream->waiting_for_others > 0;
        uint64_t until = stream->clock, real;
        for (struct stream *one = streams; whole_gpu && one; one = one->next)
            if (one->gpu == gpu) {
                until = one->clock > until ? one->clock : until;
                waits |= one->waiting_for_others > 0;
            }
        real = release_clock();
        driver_unlock();
        if (code || (!waits && until <= real))
            return code;
        if (waits || until - real > SPIN_NS)
            nap(waits ? SPIN_NS : until == NEVER ? NAP_NS : until - real - SPIN_NS / 2);
    }
}

int event_new(unsigned flags, struct event **out)
{
    *out = calloc(1, sizeof **out);
    if (*out)
        (*out)->flags = flags;
    return *out ? SUCCESS : OUT_OF_MEMORY;
}

int event_free(struct event *event)
{
    free(event);
    return event ? SUCCESS : INVALID_HANDLE;
}

int event_record(struct event *event, struct stream *stream)
{
    event->recorded = 1;
    event->gpu = stream->gpu;
    event->time = stream_start(stream);
    event->follows = stream->waiting_for_others ? stream : NULL;
    hold_clock();
    return SUCCESS;
}

static uint64_t time_of(struct event *event)
{
    if (!event->follows || !stream_resolve(event->follows, -1))
        return event->time;
    if (event->follows->waiting_for_others)
        return NEVER;
    event->time = event->follows->clock;
    event->follows = NULL;
    return event->time;
}

int event_query(struct event *event)
{
    release_clock();
    return event->recorded && time_of(event) > clock_now() ? NOT_READY : SUCCESS;
}

int event_wait(struct event *event)
{
    for (;;) {
        driver_lock();
        uint64_t time = event->recorded ? time_of(event) : 0, real;
        int code = event->recorded ? enter_gpu(event->gpu) : SUCCESS;
        real = release_clock();
        driver_unlock();
        if (code || time <= real)
            return code;
        if (time - real > SPIN_NS)
            nap(time == NEVER ? NAP_NS : time - real - SPIN_NS / 2);
    }
}

int event_ms(float *out, struct event *from, struct event *to)
{
    if (!from->recorded || !to->recorded || ((from->flags | to->flags) & DISABLE_TIMING))
        return INVALID_HANDLE;
    if (event_query(from) || event_query(to))
        return NOT_READY;
    *out = (float)((double)(int64_t)(time_of(to) - time_of(from)) / 1e6);
    return SUCCESS;
}

int stream_wait_event(struct stream *stream, struct event *event)
{
    uint64_t time = event->recorded ? time_of(event) : 0;
    if (time > stream->clock)
        stream->clock = time;
    return SUCCESS;
}
