/* The model of supply.h. */
#include "supply.h"

static int works(const struct rail_model *model, const struct rail_state *state, int supply)
{
    return model->rating_w[supply] > 0 && !(state->tripped >> supply & 1);
}

/* Siemens of the supplies that work, by these resistances. */
static double conductance(const struct rail_model *model, const struct rail_state *state, const double *ohms)
{
    double sum = 0;
    for (int i = 0; i < model->supplies; i++)
        if (works(model, state, i))
            sum += 1 / ohms[i];
    return sum;
}

/* A supply carries its part of the current, by its conductance. Returns whether one has switched itself off. */
static int trips(const struct rail_model *model, struct rail_state *state, double volts, double amps)
{
    double whole = conductance(model, state, model->ohms);
    unsigned before = state->tripped;
    for (int i = 0; i < model->supplies; i++)
        if (works(model, state, i) && volts * amps / whole / model->ohms[i] > OVERLOAD * model->rating_w[i])
            state->tripped |= 1u << i;
    return state->tripped != before;
}

static double settled(const struct rail_model *model, double siemens, double load_w, double *amps)
{
    double volts = model->open_v;
    for (int i = 0; i < 20; i++) {
        *amps = load_w / (volts > DEAD_V ? volts : DEAD_V);
        volts = model->open_v - *amps / siemens;
    }
    return volts;
}

void rail_step(const struct rail_model *model, double load_w, struct rail_state *state)
{
    double amps = 0, volts = 0, before = state->amps < state->earlier ? state->amps : state->earlier;
    for (;;) {
        double siemens = conductance(model, state, model->ohms);
        if (siemens <= 0) {
            volts = amps = 0;
            break;
        }
        volts = settled(model, siemens, load_w, &amps);
        if (!trips(model, state, volts, amps))
            break;
    }
    if (volts > 0 && state->begun && amps > state->amps)
        volts -= (amps - before) / conductance(model, state, model->step_ohms);
    state->volts = volts > 0 ? volts : 0;
    state->earlier = state->begun ? state->amps : amps;
    state->amps = amps;
    state->lowest_v = !state->begun || state->volts < state->lowest_v ? state->volts : state->lowest_v;
    state->begun = 1;
}
