/* What load, limits and cooling make of a GPU: power, clock and heat depend on each other. No file, no clock, no NVML:
 * the state after some seconds is a function of the state before them. Figures of a model come from board.conf
 * (dynamics.c); those that hold for every model are the constants below, with their sources.
 *
 *   power    idle + (full - idle) * effort * f * V(f)^2, with f and V as parts of their highest values. V falls with f and
 *            stays at V_LOWEST below. The cube of the clock agrees with the owner of servbadge (300 to 200 W costs a V100
 *            15 % of its speed; here 14.9 %) and with a test of RTX 2080 Ti (250 to 200 W: 7 %; here 8 %).
 *   limit    the driver limits an average, so a load that begins, or comes and goes, exceeds it for tenths of a second
 *            (servbadge: over 300 W with a limit of 200 W). Its mean stays at the limit.
 *   heat     moves to what the power holds in the long run, by temp.idle and temp.full, which include the fans' usual
 *            speed. Slower fans carry less away.
 *   cooling  above temp.gpu_max the driver lowers the clock, at temp.slowdown the GPU halves it, and beyond goes as low
 *            as it takes. The memory lowers it from MEMORY_SPAN_C below its limit on. */
#ifndef NVMLSIM_PHYSICS_H
#define NVMLSIM_PHYSICS_H

#define V_LOWEST 0.65     /* of the highest voltage (assumed) */
#define LIMITER_S 0.3     /* time constant of the average that the driver limits (assumed: servbadge, tenths of a second) */
#define HEAT_S 60.0       /* time constant of core and heat sink (assumed) */
#define SOFTWARE_LOWEST 0.6 /* of the highest clock: how far the driver lowers it for heat (assumed) */
#define HARDWARE_LOWEST 0.05 /* of the highest clock: how far the GPU lowers it beyond its half (assumed) */
#define HARDWARE_SPAN_C 2.0 /* from half of the clock to that (assumed) */
#define MEMORY_SPAN_C 5.0   /* (assumed) */
#define STILL_AIR 0.25    /* of the usual heat flow, with fans that stand still (assumed) */
#define INLET_C 22        /* of the air that temp.idle and temp.full were read in (the owner of servbadge: 72 F) */
#define RECENT 10         /* ticks of a second: what an averaging power meter shows */

enum reason {
    IDLE = 0x1,
    APPLICATION_CLOCKS = 0x2,
    POWER_CAP = 0x4,
    HW_SLOWDOWN = 0x8,
    SW_THERMAL = 0x20,
    HW_THERMAL = 0x40,
    HW_BRAKE = 0x80,
};

struct gpu_model {
    double idle_w, full_w, default_w;  /* full_w: products at the highest clock without a limit */
    double max_mhz, min_mhz, step_mhz;
    double idle_c, full_c, memory_full_c; /* at idle_w and at default_w, fans at their usual speed */
    double gpu_max_c, slowdown_c, memory_max_c; /* 0: none */
    double fan_idle; /* percent */
};

struct gpu_inputs {
    int busy, brake;    /* brake: half of the clock is asked for from outside */
    double effort;      /* 0 to 1: of the power that products take */
    double limit_w, target_mhz;
    double fan_percent; /* below 0: the GPU's own choice */
    double inlet_c;
};

struct gpu_physics {
    double demand_w; /* the average that the limiter sees, of what the load takes without a limit */
    double core_c, memory_rise_c;
    double power_w, clock_mhz, fan_percent;
    double energy_j;
    double recent_w[RECENT];
    unsigned recent_at, reasons, lost, unused;
};

double physics_power_w(const struct gpu_model *model, double effort, double mhz);
void physics_rest(const struct gpu_model *model, const struct gpu_inputs *in, struct gpu_physics *out);
double physics_clock_mhz(const struct gpu_model *model, const struct gpu_inputs *in, const struct gpu_physics *now,
                         unsigned *reasons);
/* `heat_s` is the time that heat moves on: more than `seconds` where a test has no minutes. */
void physics_step(const struct gpu_model *model, const struct gpu_inputs *in, struct gpu_physics *state, double seconds,
                  double heat_s);

#endif
