/* Clocks: what runs, what may be chosen, what was chosen. clocks.supported is "MEM:HIGH-LOW/STEP;..." in MHz, the
 * steps cut to whole MHz as nvidia-smi shows them (1530,1522,1515,...). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim.h"

int clock_default(int gpu, int memory)
{
    const char *value = gpu_str(gpu, "clocks.application_default"); /* "877,1312" */
    int memory_mhz = 0, graphics_mhz = 0;
    if (!value || sscanf(value, "%d,%d", &memory_mhz, &graphics_mhz) != 2)
        return 0;
    return memory ? memory_mhz : graphics_mhz;
}

struct clock_range {
    unsigned memory;
    double high, low, step;
};

static const char *next_range(const char *text, struct clock_range *out)
{
    if (!text || sscanf(text, "%u:%lf-%lf/%lf", &out->memory, &out->high, &out->low, &out->step) != 4)
        return NULL;
    const char *end = strchr(text, ';');
    return end ? end + 1 : text + strlen(text);
}

static unsigned range_size(const struct clock_range *range)
{
    return (unsigned)((range->high - range->low) / range->step + 1.000001);
}

static unsigned range_clock(const struct clock_range *range, unsigned i)
{
    return (unsigned)(range->high - range->step * i + 0.000001);
}

static unsigned give_list(unsigned needed, unsigned *count, const unsigned *out)
{
    if (!count)
        return INVALID_ARGUMENT;
    unsigned room = *count;
    *count = needed;
    return room < needed || !out ? INSUFFICIENT_SIZE : OK;
}

NVML(nvmlDeviceGetSupportedMemoryClocks)(int gpu, unsigned *count, unsigned *out)
{
    struct clock_range range;
    const char *text = gpu_str(gpu, "clocks.supported"), *at = text;
    unsigned n = 0;
    if (!text)
        return NOT_SUPPORTED;
    while ((at = next_range(at, &range)))
        n++;
    unsigned code = give_list(n, count, out);
    for (at = text, n = 0; !code && (at = next_range(at, &range));)
        out[n++] = range.memory;
    return code;
}

NVML(nvmlDeviceGetSupportedGraphicsClocks)(int gpu, unsigned memory_mhz, unsigned *count, unsigned *out)
{
    struct clock_range range;
    const char *at = gpu_str(gpu, "clocks.supported");
    if (!at)
        return NOT_SUPPORTED;
    while ((at = next_range(at, &range))) {
        if (range.memory != memory_mhz)
            continue;
        unsigned n = range_size(&range), code = give_list(n, count, out);
        for (unsigned i = 0; !code && i < n; i++)
            out[i] = range_clock(&range, i);
        return code;
    }
    return NOT_FOUND;
}

static int supported_pair(int gpu, unsigned memory_mhz, unsigned graphics_mhz)
{
    struct clock_range range;
    const char *at = gpu_str(gpu, "clocks.supported");
    while ((at = next_range(at, &range)))
        for (unsigned i = 0; range.memory == memory_mhz && i < range_size(&range); i++)
            if (range_clock(&range, i) == graphics_mhz)
                return 1;
    return 0;
}

NVML(nvmlDeviceGetClockInfo)(int gpu, unsigned domain, unsigned *out)
{
    struct moment now = gpu_now(gpu);
    if (domain > CLOCK_VIDEO)
        return INVALID_ARGUMENT;
    *out = domain == CLOCK_MEMORY ? now.memory_mhz : domain == CLOCK_VIDEO ? now.video_mhz : now.graphics_mhz;
    return OK;
}

NVML(nvmlDeviceGetMaxClockInfo)(int gpu, unsigned domain, unsigned *out)
{
    static const char *const keys[] = {"clock.graphics_max", "clock.graphics_max", "clock.memory_max",
                                       "clock.video_max"};
    return domain > CLOCK_VIDEO ? INVALID_ARGUMENT : give_int(gpu, keys[domain], out);
}

NVML(nvmlDeviceGetDefaultApplicationsClock)(int gpu, unsigned domain, unsigned *out)
{
    if (!clock_default(gpu, 0) || domain == CLOCK_VIDEO)
        return NOT_SUPPORTED;
    *out = (unsigned)clock_default(gpu, domain == CLOCK_MEMORY);
    return OK;
}

NVML(nvmlDeviceGetApplicationsClock)(int gpu, unsigned domain, unsigned *out)
{
    unsigned code = sim_nvmlDeviceGetDefaultApplicationsClock(gpu, domain, out);
    if (!code)
        *out = (unsigned)setting_int(
            gpu, domain == CLOCK_MEMORY ? "application_memory_mhz" : "application_graphics_mhz", *out);
    return code;
}

NVML(nvmlDeviceGetClock)(int gpu, unsigned domain, unsigned kind, unsigned *out)
{
    switch (kind) {
    case 0:
        return sim_nvmlDeviceGetClockInfo(gpu, domain, out);
    case 1:
        return sim_nvmlDeviceGetApplicationsClock(gpu, domain, out);
    case 2:
        return sim_nvmlDeviceGetDefaultApplicationsClock(gpu, domain, out);
    case 3: /* what a customer may boost to: only boards with application clocks tell */
        return clock_default(gpu, 0) ? sim_nvmlDeviceGetMaxClockInfo(gpu, domain, out) : NOT_SUPPORTED;
    }
    return INVALID_ARGUMENT;
}

NVML(nvmlDeviceGetMaxCustomerBoostClock)(int gpu, unsigned domain, unsigned *out)
{
    return sim_nvmlDeviceGetClock(gpu, domain, 3, out);
}

static unsigned set_pair(int gpu, const char *a, unsigned value_a, const char *b, unsigned value_b)
{
    unsigned code = (unsigned)setting_begin(gpu);
    if (code)
        return code;
    setting_put(gpu, a, value_a);
    setting_put(gpu, b, value_b);
    return (unsigned)edit_commit();
}

NVML(nvmlDeviceSetApplicationsClocks)(int gpu, unsigned memory_mhz, unsigned graphics_mhz)
{
    if (!clock_default(gpu, 0))
        return NOT_SUPPORTED;
    if (geteuid())
        return NO_PERMISSION;
    if (!supported_pair(gpu, memory_mhz, graphics_mhz))
        return INVALID_ARGUMENT;
    return set_pair(gpu, "application_memory_mhz", memory_mhz, "application_graphics_mhz", graphics_mhz);
}

NVML(nvmlDeviceResetApplicationsClocks)(int gpu)
{
    if (!clock_default(gpu, 0))
        return NOT_SUPPORTED;
    return set_pair(gpu, "application_memory_mhz", 0, "application_graphics_mhz", 0);
}

/* Locked clocks: Volta and newer lock graphics, memory only where the model says so. Nothing reads them back. */

NVML(nvmlDeviceSetGpuLockedClocks)(int gpu, unsigned min_mhz, unsigned max_mhz)
{
    if (gpu_arch(gpu) < VOLTA)
        return NOT_SUPPORTED;
    if (geteuid())
        return NO_PERMISSION;
    if (min_mhz > max_mhz || !max_mhz)
        return INVALID_ARGUMENT;
    return set_pair(gpu, "locked_graphics_min", min_mhz, "locked_graphics_max", max_mhz);
}

NVML(nvmlDeviceResetGpuLockedClocks)(int gpu)
{
    if (gpu_arch(gpu) < VOLTA)
        return NOT_SUPPORTED;
    return set_pair(gpu, "locked_graphics_min", 0, "locked_graphics_max", 0);
}

NVML(nvmlDeviceSetMemoryLockedClocks)(int gpu, unsigned min_mhz, unsigned max_mhz)
{
    if (!gpu_int(gpu, 0, "clocks.memory_lockable"))
        return NOT_SUPPORTED;
    if (geteuid())
        return NO_PERMISSION;
    if (min_mhz > max_mhz || !max_mhz)
        return INVALID_ARGUMENT;
    return set_pair(gpu, "locked_memory_min", min_mhz, "locked_memory_max", max_mhz);
}

NVML(nvmlDeviceResetMemoryLockedClocks)(int gpu)
{
    if (!gpu_int(gpu, 0, "clocks.memory_lockable"))
        return NOT_SUPPORTED;
    return set_pair(gpu, "locked_memory_min", 0, "locked_memory_max", 0);
}

NVML(nvmlDeviceGetPerformanceState)(int gpu, unsigned *out)
{
    *out = gpu_now(gpu).pstate;
    return OK;
}

NVML(nvmlDeviceGetPowerState)(int gpu, unsigned *out)
{
    return sim_nvmlDeviceGetPerformanceState(gpu, out);
}

NVML(nvmlDeviceGetCurrentClocksThrottleReasons)(int gpu, unsigned long long *out)
{
    *out = gpu_now(gpu).reasons;
    return OK;
}

NVML(nvmlDeviceGetCurrentClocksEventReasons)(int gpu, unsigned long long *out)
{
    return sim_nvmlDeviceGetCurrentClocksThrottleReasons(gpu, out);
}

NVML(nvmlDeviceGetSupportedClocksThrottleReasons)(int gpu, unsigned long long *out)
{
    (void)gpu;
    *out = 0x1FF;
    return OK;
}

NVML(nvmlDeviceGetSupportedClocksEventReasons)(int gpu, unsigned long long *out)
{
    return sim_nvmlDeviceGetSupportedClocksThrottleReasons(gpu, out);
}
