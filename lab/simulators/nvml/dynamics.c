/* What load, limits and faults make of a GPU at this moment. gpuN.load=0..100 drives it; a key of the same name as a
 * reading (temp, memory_temp, power_mw, util, clock.graphics, pstate, throttle) overrides that reading. CUDA programs are
 * a load of their own (activity.h): how long they keep the GPU busy, and with how much effort.
 * The model is simple on purpose: power grows with load and with the square of the clock. */
#include "activity.h"
#include "sim.h"

enum reason {
    IDLE = 0x1,
    APPLICATION_CLOCKS = 0x2,
    POWER_CAP = 0x4,
    HW_SLOWDOWN = 0x8,
    HW_THERMAL = 0x40,
    HW_BRAKE = 0x80,
};

unsigned power_limit_mw(int gpu)
{
    return (unsigned)setting_int(gpu, "power_limit_mw", gpu_int(gpu, 0, "power.default_mw"));
}

static long clamped(long value, long low, long high)
{
    if (high > 0 && value > high)
        value = high;
    return value < low ? low : value;
}

static long power_at(int gpu, long load, long graphics_mhz)
{
    long idle = gpu_int(gpu, 20000, "power.idle_mw"), full = gpu_int(gpu, 250000, "power.full_mw");
    long max = gpu_int(gpu, 1500, "clock.graphics_max");
    double part = (double)graphics_mhz / (double)max;
    return idle + (long)((double)(full - idle) * (double)load / 100.0 * part * part);
}

static long loaded_clock(int gpu, long load, unsigned long long *reasons)
{
    long max = gpu_int(gpu, 1500, "clock.graphics_max"), min = gpu_int(gpu, 135, "clock.graphics_min");
    long target = max, limit = power_limit_mw(gpu);
    int application = clock_default(gpu, 0);
    if (application)
        target = setting_int(gpu, "application_graphics_mhz", application);
    if (setting_str(gpu, "locked_graphics_max"))
        target = clamped(max, setting_int(gpu, "locked_graphics_min", 0), setting_int(gpu, "locked_graphics_max", 0));
    target = clamped(target, min, max);
    if (target < max)
        *reasons |= APPLICATION_CLOCKS;
    if (power_at(gpu, load, target) > limit) {
        *reasons = (*reasons & ~(unsigned long long)APPLICATION_CLOCKS) | POWER_CAP;
        while (target > min && power_at(gpu, load, target) > limit)
            target -= 15;
    }
    return target < min ? min : target;
}

/* `load` is the effort; a GPU that is busy without effort has the clocks of a busy one. */
static void set_clocks(int gpu, int busy, long load, struct moment *now)
{
    long memory_load = gpu_int(gpu, gpu_int(gpu, 0, "clock.memory_max"), "clock.memory_load");
    now->pstate = (unsigned)gpu_int(gpu, 0, busy ? "pstate_load" : "pstate_idle");
    if (busy) {
        now->graphics_mhz = (unsigned)loaded_clock(gpu, load, &now->reasons);
        now->memory_mhz = (unsigned)setting_int(gpu, "application_memory_mhz", memory_load);
        now->video_mhz = (unsigned)gpu_int(gpu, 0, "clock.video_max");
    } else {
        now->reasons |= IDLE;
        now->graphics_mhz = (unsigned)clamped(gpu_int(gpu, 135, "clock.graphics_idle"),
                                              setting_int(gpu, "locked_graphics_min", 0),
                                              setting_int(gpu, "locked_graphics_max", 0));
        now->memory_mhz = (unsigned)gpu_int(gpu, memory_load, "clock.memory_idle");
        now->video_mhz = (unsigned)gpu_int(gpu, 0, "clock.video_idle");
    }
    now->memory_mhz = (unsigned)clamped(now->memory_mhz, setting_int(gpu, "locked_memory_min", 0),
                                        setting_int(gpu, "locked_memory_max", 0));
}

unsigned busy_clock_mhz(int gpu)
{
    struct moment now = {0};
    set_clocks(gpu, 1, 100, &now);
    unsigned long long reasons = now.reasons | (unsigned long long)gpu_int(gpu, 0, "throttle");
    unsigned clock = reasons & (HW_SLOWDOWN | HW_THERMAL | HW_BRAKE) ? now.graphics_mhz / 2 : now.graphics_mhz;
    return (unsigned)gpu_int(gpu, clock, "clock.graphics");
}

/* Hotter than its slowdown temperature it halves its clock, and so stays just above. */
static long held_below_shutdown(int gpu, long temp, struct moment *now)
{
    long slowdown = gpu_int(gpu, 0, "temp.slowdown");
    if (!slowdown || temp < slowdown)
        return temp;
    if (!(now->reasons & (HW_SLOWDOWN | HW_THERMAL | HW_BRAKE)))
        now->graphics_mhz /= 2;
    now->reasons |= HW_SLOWDOWN | HW_THERMAL;
    return clamped(temp, 0, slowdown + 2);
}

struct moment gpu_now(int gpu)
{
    struct moment now = {0};
    struct load seen = gpu_load(gpu);
    long asked = clamped(gpu_int(gpu, 0, "load"), 0, 100);
    long load = asked > seen.util ? asked : seen.util, effort = asked > seen.effort ? asked : seen.effort;
    set_clocks(gpu, load > 0, effort, &now);
    now.reasons |= (unsigned long long)gpu_int(gpu, 0, "throttle");
    if (now.reasons & (HW_SLOWDOWN | HW_THERMAL | HW_BRAKE))
        now.graphics_mhz /= 2;
    now.graphics_mhz = (unsigned)gpu_int(gpu, now.graphics_mhz, "clock.graphics");
    now.util = (unsigned)gpu_int(gpu, load, "util");
    now.memory_util = now.util / 2;
    now.power_mw = (unsigned)gpu_int(gpu, power_at(gpu, effort, now.graphics_mhz), "power_mw");
    long idle = gpu_int(gpu, 30, "temp.idle"), full = gpu_int(gpu, 70, "temp.full");
    long span = gpu_int(gpu, 250000, "power.default_mw"), rise = (full - idle) * (long)now.power_mw / (span ? span : 1);
    now.temp_c = (unsigned)gpu_int(gpu, load ? held_below_shutdown(gpu, idle + rise, &now) : idle, "temp");
    now.memory_temp_c = (unsigned)gpu_int(gpu, now.temp_c, "memory_temp");
    now.pstate = (unsigned)gpu_int(gpu, now.pstate, "pstate");
    return now;
}
