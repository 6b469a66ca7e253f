/* Event sets: a critical Xid appears as gpuN.xid.last=79 with a raised gpuN.xid.count. */
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include "sim.h"
#include "structs.h"

#define XID_CRITICAL 8ull
#define SUPPORTED_EVENTS 0x1Full

struct event_set {
    unsigned long long types[MAX_GPUS];
    long seen[MAX_GPUS];
};

NVML(nvmlEventSetCreate)(struct event_set **out)
{
    *out = calloc(1, sizeof **out);
    return *out ? OK : UNKNOWN_ERROR;
}

NVML(nvmlEventSetFree)(struct event_set *set)
{
    free(set);
    return OK;
}

NVML(nvmlDeviceGetSupportedEventTypes)(int gpu, unsigned long long *out)
{
    (void)gpu;
    *out = SUPPORTED_EVENTS;
    return OK;
}

NVML(nvmlDeviceRegisterEvents)(int gpu, unsigned long long types, struct event_set *set)
{
    if (!set)
        return INVALID_ARGUMENT;
    if (types & ~SUPPORTED_EVENTS)
        return NOT_SUPPORTED;
    set->types[gpu] |= types;
    set->seen[gpu] = gpu_int(gpu, 0, "xid.count");
    return OK;
}

static int take_event(struct event_set *set, struct event_data *out)
{
    for (int gpu = 0; gpu < gpu_count(); gpu++) {
        long count = gpu_int(gpu, 0, "xid.count");
        if (!(set->types[gpu] & XID_CRITICAL) || count == set->seen[gpu])
            continue;
        set->seen[gpu] = count;
        *out = (struct event_data){gpu_handle(gpu), XID_CRITICAL, (uint64_t)gpu_int(gpu, 0, "xid.last"), ~0u, ~0u};
        return 1;
    }
    return 0;
}

NVML(nvmlEventSetWait_v2)(struct event_set *set, struct event_data *out, unsigned timeout_ms)
{
    const struct timespec pause = {0, 20 * 1000000};
    if (!set || !out)
        return INVALID_ARGUMENT;
    for (unsigned waited = 0;; waited += 20) {
        sim_lock();
        conf_reload();
        int got = take_event(set, out);
        sim_unlock();
        if (got)
            return OK;
        if (waited >= timeout_ms)
            return TIMEOUT;
        nanosleep(&pause, NULL);
    }
}

NVML(nvmlEventSetWait)(struct event_set *set, struct event_data *out, unsigned timeout_ms)
{
    return sim_nvmlEventSetWait_v2(set, out, timeout_ms);
}
