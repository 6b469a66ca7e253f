/* The rails of the machine, from the state files:
 *   rails=N, railN.open_mv=12360         its voltage without load
 *   railN.gpus=0,1,2                     the GPUs on it
 *   railN.base_w=400                     the rest of the machine hangs on it too, and draws that much
 *   railN.supplies=0,1,2                 numbers of the machine's supplies
 *   supplyN.rating_w, supplyN.uohm, supplyN.step_uohm
 *   supplyN.out=1                        it is switched off, or pulled out
 *   supplyN.joint_uohm=60000             what a poor joint adds */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"
#include "ticks.h"

static const char *of(const char *what, int number, const char *key)
{
    char name[64];
    snprintf(name, sizeof name, "%s%d.%s", what, number, key);
    return conf_str(name);
}

static double number_of(const char *what, int number, const char *key)
{
    const char *value = of(what, number, key);
    return value ? strtod(value, NULL) : 0;
}

int rails_count(void)
{
    long count = conf_int("rails", 0);
    return count < 0 ? 0 : count > RAILS ? RAILS : (int)count;
}

static void supply_figures(int number, struct rail_model *model)
{
    int at = model->supplies++;
    double joint = number_of("supply", number, "joint_uohm"), own = number_of("supply", number, "uohm");
    model->rating_w[at] = number_of("supply", number, "out") > 0 ? 0 : number_of("supply", number, "rating_w");
    model->ohms[at] = ((own > 0 ? own : 1) + joint) / 1e6;
    model->step_ohms[at] = (number_of("supply", number, "step_uohm") + 1 + joint) / 1e6;
}

void rail_figures(int rail, struct rail_figures *out)
{
    char *end;
    memset(out, 0, sizeof *out);
    out->model.open_v = number_of("rail", rail, "open_mv") / 1000;
    out->base_w = number_of("rail", rail, "base_w");
    out->feeds_base = of("rail", rail, "base_w") != NULL;
    for (const char *at = of("rail", rail, "gpus"); at && *at; at = *end ? end + 1 : end) {
        long gpu = strtol(at, &end, 10);
        if (gpu >= 0 && gpu < TICKS_GPUS)
            out->gpus |= 1ull << gpu;
    }
    for (const char *at = of("rail", rail, "supplies"); at && *at; at = *end ? end + 1 : end) {
        long supply = strtol(at, &end, 10);
        if (out->model.supplies < RAIL_SUPPLIES)
            supply_figures((int)supply, &out->model);
    }
}
