/* The model of physics.h. Steps of any length are stable: every quantity moves a part of its way below 1. */
#include <string.h>

#include "physics.h"

static double within(double value, double low, double high)
{
    return value < low ? low : value > high ? high : value;
}

double physics_power_w(const struct gpu_model *model, double effort, double mhz)
{
    double part = mhz / model->max_mhz, volts = part < V_LOWEST ? V_LOWEST : part;
    return model->idle_w + (model->full_w - model->idle_w) * effort * part * volts * volts;
}

/* The highest clock of the model's steps, not above `from`, at which the power is not above `allowed_w`. */
static double clock_within(const struct gpu_model *model, double effort, double from, double allowed_w)
{
    double mhz = from;
    while (mhz > model->min_mhz && physics_power_w(model, effort, mhz) > allowed_w)
        mhz -= model->step_mhz;
    return mhz < model->min_mhz ? model->min_mhz : mhz;
}

/* 0 below `from`, 1 at `to` and above. */
static double part_of_way(double value, double from, double to)
{
    return to > from ? within((value - from) / (to - from), 0, 1) : value >= to;
}

static double for_heat(const struct gpu_model *model, const struct gpu_physics *now, double mhz, unsigned *reasons)
{
    double core = model->gpu_max_c ? part_of_way(now->core_c, model->gpu_max_c, model->slowdown_c) : 0;
    double memory_c = now->core_c + now->memory_rise_c, most = model->memory_max_c;
    double memory = most ? part_of_way(memory_c, most - MEMORY_SPAN_C, most) : 0, hot = core > memory ? core : memory;
    double cap = model->max_mhz * (1 - (1 - SOFTWARE_LOWEST) * hot);
    if (hot > 0 && cap < mhz) {
        *reasons |= SW_THERMAL;
        mhz = cap;
    }
    if (model->slowdown_c && now->core_c >= model->slowdown_c) {
        double beyond = part_of_way(now->core_c, model->slowdown_c, model->slowdown_c + HARDWARE_SPAN_C);
        *reasons |= HW_SLOWDOWN | HW_THERMAL;
        mhz = mhz / 2 + (model->max_mhz * HARDWARE_LOWEST - mhz / 2) * beyond;
    } else if (*reasons & HW_BRAKE) {
        mhz /= 2;
    }
    return mhz;
}

double physics_clock_mhz(const struct gpu_model *model, const struct gpu_inputs *in, const struct gpu_physics *now,
                         unsigned *reasons)
{
    double wanted_w = physics_power_w(model, in->effort, in->target_mhz), allowed_w = wanted_w;
    *reasons = in->brake ? HW_BRAKE : 0;
    if (now->demand_w > in->limit_w)
        allowed_w = wanted_w * in->limit_w / now->demand_w;
    double mhz = clock_within(model, in->effort, in->target_mhz, allowed_w);
    if (mhz < in->target_mhz)
        *reasons |= POWER_CAP;
    else if (in->target_mhz < model->max_mhz)
        *reasons |= APPLICATION_CLOCKS;
    return for_heat(model, now, mhz, reasons);
}

/* Half of the way to full speed at the temperature of a full load, all of it at the slowdown temperature (assumed). */
static double usual_fan(const struct gpu_model *model, double core_c)
{
    double to_full = part_of_way(core_c, model->idle_c, model->full_c);
    double on = part_of_way(core_c, model->full_c, model->slowdown_c ? model->slowdown_c : model->full_c + 30);
    return model->fan_idle + (100 - model->fan_idle) * (to_full + on) / 2;
}

/* How much better than usual the air carries heat away. The usual speed is that of the same heat under usual fans. */
static double airflow(double usual, double fan)
{
    return usual > 0 ? STILL_AIR + (1 - STILL_AIR) * fan / usual : 1;
}

static double settles_at(const struct gpu_model *model, const struct gpu_inputs *in, const struct gpu_physics *now)
{
    double span_w = model->default_w > model->idle_w ? model->default_w - model->idle_w : 1;
    double usual_c = model->idle_c + (model->full_c - model->idle_c) * (now->power_w - model->idle_w) / span_w;
    double carried = airflow(usual_fan(model, usual_c), now->fan_percent);
    if (in->fan_percent < 0)
        carried = 1; /* idle_c and full_c include what the GPU's own choice is */
    return in->inlet_c + (usual_c - INLET_C) / carried;
}

void physics_rest(const struct gpu_model *model, const struct gpu_inputs *in, struct gpu_physics *out)
{
    memset(out, 0, sizeof *out);
    out->demand_w = out->power_w = model->idle_w;
    out->clock_mhz = model->min_mhz;
    out->reasons = IDLE;
    for (int i = 0; i < RECENT; i++)
        out->recent_w[i] = model->idle_w;
    out->fan_percent = in->fan_percent < 0 ? model->fan_idle : in->fan_percent;
    out->core_c = model->idle_c + in->inlet_c - INLET_C;
}

/* One step towards `to`, by the backward Euler method: it never overshoots. */
static double moved(double from, double to, double seconds, double constant_s)
{
    return from + (to - from) * seconds / (constant_s + seconds);
}

void physics_step(const struct gpu_model *model, const struct gpu_inputs *in, struct gpu_physics *state, double seconds,
                  double heat_s)
{
    double wanted_w = in->busy ? physics_power_w(model, in->effort, in->target_mhz) : model->idle_w;
    state->demand_w = moved(state->demand_w, wanted_w, seconds, LIMITER_S);
    for (double left_s = heat_s; left_s > 0; left_s -= seconds) {
        double now_s = left_s < seconds ? left_s : seconds, span_w = model->default_w - model->idle_w;
        state->reasons = IDLE;
        state->clock_mhz = in->busy ? physics_clock_mhz(model, in, state, &state->reasons) : model->min_mhz;
        state->power_w = in->busy ? physics_power_w(model, in->effort, state->clock_mhz) : model->idle_w;
        state->fan_percent = in->fan_percent < 0 ? usual_fan(model, state->core_c) : in->fan_percent;
        state->core_c = moved(state->core_c, settles_at(model, in, state), now_s, HEAT_S);
        double rise_c = (model->memory_full_c - model->full_c) * (state->power_w - model->idle_w) / (span_w > 0 ? span_w : 1);
        state->memory_rise_c = moved(state->memory_rise_c, rise_c, now_s, HEAT_S);
    }
    state->energy_j += state->power_w * seconds;
    state->recent_w[state->recent_at++ % RECENT] = state->power_w;
}
