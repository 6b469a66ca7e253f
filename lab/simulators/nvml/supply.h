/* A 12 V rail: one supply, or several in parallel, and what hangs on it. Its voltage is a function of the watts now and of
 * the current in the two ticks before: a ramp that a tick's end divides counts as a whole. No file, no clock.
 *
 *   sag      each supply with its cable and connector is a resistance; a poor joint adds to it, and the others carry more.
 *            Three 1100 W supplies of servbadge: 12.06 V at 1600 W (its owner), here 12.06 V.
 *   step     while the current grows, the voltage sags further until the supply's control follows. Two of these supplies
 *            dropped GPUs when four ramped together, at about 11.4 V (its owner), here 11.2 V; three did not.
 *   overload a supply that carries more than OVERLOAD of its rating switches off, and stays off. */
#ifndef NVMLSIM_SUPPLY_H
#define NVMLSIM_SUPPLY_H

#define RAILS 4
#define RAIL_SUPPLIES 8
#define GPU_LOST_V 11.4  /* a GPU falls off the bus below it: 12 V less 5 %, the tolerance of ATX12V; servbadge's owner saw the same */
#define RESET_V 10.8     /* the machine resets below it: 12 V less 10 %, the tolerance of ATX12V at peaks */
#define OVERLOAD 1.3     /* (assumed: ATX 3.0 asks for 1.2 during 0.1 s) */
#define DEAD_V 1.0       /* below it no load draws a constant power */

struct rail_model {
    double open_v; /* without load */
    int supplies;
    double rating_w[RAIL_SUPPLIES], ohms[RAIL_SUPPLIES], step_ohms[RAIL_SUPPLIES]; /* 0 W: out of service */
};

struct rail_state {
    double volts, amps, earlier, lowest_v; /* earlier: A, a tick before `amps` */
    unsigned tripped, begun; /* tripped: a bit for each supply that has switched itself off */
};

void rail_step(const struct rail_model *model, double load_w, struct rail_state *state);

#endif
