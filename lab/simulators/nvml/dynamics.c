/* What load, limits and faults make of a GPU at this moment: the figures and limits that physics.h asks for, and its
 * state as NVML's readings. gpuN.load=0..100 is a load; a key of the same name as a reading (temp, memory_temp, power_mw,
 * util, clock.graphics, pstate, throttle, fan_speed) overrides that reading. CUDA programs are a load of their own
 * (activity.h): how long they keep the GPU busy, and with how much effort.
 *   gpuN.fan_speed=0             the fans stand still: less heat is carried away
 *   inlet_c=22                   the air that the machine takes in
 *   heat.speed=60                a second of heat is a minute, for tests and demonstrations */
#include "activity.h"
#include "sim.h"
#include "ticks.h"

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

/* Application clocks that nobody has set limit nothing: a V100 boosts to its highest clock (the owner of servbadge). */
static long target_mhz(int gpu)
{
    long max = gpu_int(gpu, 1500, "clock.graphics_max"), target = setting_int(gpu, "application_graphics_mhz", max);
    if (setting_str(gpu, "locked_graphics_max"))
        target = clamped(max, setting_int(gpu, "locked_graphics_min", 0), setting_int(gpu, "locked_graphics_max", 0));
    return clamped(target, gpu_int(gpu, 135, "clock.graphics_min"), max);
}

void physics_figures(int gpu, struct gpu_model *model, struct gpu_inputs *in)
{
    long limit_mw = (long)power_limit_mw(gpu), throttle = gpu_int(gpu, 0, "throttle");
    long full_c = gpu_int(gpu, 70, "temp.full");
    *model = (struct gpu_model){
        .idle_w = (double)gpu_int(gpu, 20000, "power.idle_mw") / 1000,
        .full_w = (double)gpu_int(gpu, 250000, "power.full_mw") / 1000,
        .default_w = (double)gpu_int(gpu, 250000, "power.default_mw") / 1000,
        .max_mhz = (double)gpu_int(gpu, 1500, "clock.graphics_max"),
        .min_mhz = (double)gpu_int(gpu, 135, "clock.graphics_min"),
        .step_mhz = 7.5,
        .idle_c = (double)gpu_int(gpu, 30, "temp.idle"),
        .full_c = (double)full_c,
        .memory_full_c = (double)gpu_int(gpu, full_c, "temp.memory_full"),
        .gpu_max_c = (double)gpu_int(gpu, 0, "temp.gpu_max"),
        .slowdown_c = (double)gpu_int(gpu, 0, "temp.slowdown"),
        .memory_max_c = (double)gpu_int(gpu, gpu_int(gpu, 0, "temp.memory_max"), "temp.memory_throttle"),
        .fan_idle = (double)gpu_int(gpu, 30, "fan_idle"),
    };
    *in = (struct gpu_inputs){
        .limit_w = limit_mw ? (double)limit_mw / 1000 : model->full_w,
        .target_mhz = (double)target_mhz(gpu),
        .brake = (throttle & (HW_SLOWDOWN | HW_THERMAL | HW_BRAKE)) != 0,
        .fan_percent = (double)gpu_int(gpu, setting_int(gpu, "fan_percent", -1), "fan_speed"),
        .inlet_c = (double)conf_int("inlet_c", INLET_C),
    };
}

unsigned busy_clock_mhz(int gpu)
{
    struct gpu_model model;
    struct gpu_inputs in;
    unsigned reasons;
    const struct gpu_physics *state = gpu_physics_now(gpu);
    physics_figures(gpu, &model, &in);
    in.effort = 1;
    unsigned clock = (unsigned)physics_clock_mhz(&model, &in, state, &reasons);
    return (unsigned)gpu_int(gpu, clock, "clock.graphics");
}

static void set_clocks(int gpu, const struct gpu_physics *state, struct moment *now)
{
    long memory_load = gpu_int(gpu, gpu_int(gpu, 0, "clock.memory_max"), "clock.memory_load");
    int busy = !(state->reasons & IDLE);
    now->pstate = (unsigned)gpu_int(gpu, 0, busy ? "pstate_load" : "pstate_idle");
    if (busy) {
        now->graphics_mhz = (unsigned)state->clock_mhz;
        now->memory_mhz = (unsigned)setting_int(gpu, "application_memory_mhz", memory_load);
        now->video_mhz = (unsigned)gpu_int(gpu, 0, "clock.video_max");
    } else {
        now->graphics_mhz = (unsigned)clamped(gpu_int(gpu, 135, "clock.graphics_idle"),
                                              setting_int(gpu, "locked_graphics_min", 0),
                                              setting_int(gpu, "locked_graphics_max", 0));
        now->memory_mhz = (unsigned)gpu_int(gpu, memory_load, "clock.memory_idle");
        now->video_mhz = (unsigned)gpu_int(gpu, 0, "clock.video_idle");
    }
    now->memory_mhz = (unsigned)clamped(now->memory_mhz, setting_int(gpu, "locked_memory_min", 0),
                                        setting_int(gpu, "locked_memory_max", 0));
    now->graphics_mhz = (unsigned)gpu_int(gpu, now->graphics_mhz, "clock.graphics");
}

static double mean(const double *values, int count)
{
    double sum = 0;
    for (int i = 0; i < count; i++)
        sum += values[i];
    return sum / count;
}

struct moment gpu_now(int gpu)
{
    struct moment now = {0};
    const struct gpu_physics *state = gpu_physics_now(gpu);
    struct load load = gpu_load(gpu);
    long asked = clamped(gpu_int(gpu, 0, "load"), 0, 100), seen = load.util;
    set_clocks(gpu, state, &now);
    now.reasons = state->reasons | (unsigned long long)gpu_int(gpu, 0, "throttle");
    now.util = (unsigned)gpu_int(gpu, asked > seen ? asked : seen, "util");
    now.memory_util = load.waits ? 0 : now.util / 2;
    now.power_mw = (unsigned)gpu_int(gpu, (long)(1000 * state->power_w + 0.5), "power_mw");
    now.average_mw = (unsigned)gpu_int(gpu, (long)(1000 * mean(state->recent_w, RECENT) + 0.5), "power_mw");
    now.temp_c = (unsigned)gpu_int(gpu, (long)(state->core_c + 0.5), "temp");
    now.memory_temp_c = (unsigned)gpu_int(gpu, (long)(state->core_c + state->memory_rise_c + 0.5), "memory_temp");
    now.fan_percent = (unsigned)(state->fan_percent + 0.5);
    now.energy_mj = (unsigned long long)(1000 * state->energy_j);
    now.pstate = (unsigned)gpu_int(gpu, now.pstate, "pstate");
    return now;
}
