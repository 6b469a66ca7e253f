/* Moves volatile/physics on (ticks.h). Where it cannot be written, the process has a state of its own. */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "activity.h"
#include "sim.h"
#include "ticks.h"

#define MOST_SPEED 3600
#define LONGEST_GAP 1000000000ll /* ticks: three years; more is no state of ours */
#define LONG_GAP 2000 /* ticks; of a longer gap the steps are longer */

int64_t ticks_zero_ns;
static int file = -1;
static struct ticks_file own, *state;

static int open_file(void)
{
    const char *path = sim_path("volatile/physics");
    int found = open(path, O_RDWR | O_CLOEXEC);
    if (found < 0 && !geteuid() && (found = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666)) >= 0)
        fchmod(found, 0666);
    return found;
}

static void look(void)
{
    struct stat size;
    if (state)
        return;
    state = &own;
    file = open_file();
    if (file < 0 || fstat(file, &size) || ((size_t)size.st_size < sizeof own && ftruncate(file, (off_t)sizeof own)))
        return;
    void *map = mmap(NULL, sizeof own, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (map != MAP_FAILED)
        state = map;
}

static void lock(short kind)
{
    struct flock whole = {.l_type = kind, .l_whence = SEEK_SET, .l_len = 1};
    if (file >= 0)
        fcntl(file, F_OFD_SETLKW, &whole);
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)((int64_t)now.tv_sec * 1000000000ll + now.tv_nsec - ticks_zero_ns);
}

static void load_of(int gpu, int64_t from, int64_t ticks, struct gpu_inputs *in)
{
    double asked = (double)gpu_int(gpu, 0, "load") / 100;
    struct span_load seen = {0, 0}, before = {0, 0};
    if (from >= 0)
        seen = span_load(gpu, (uint64_t)from * TICK_NS, (uint64_t)(from + ticks) * TICK_NS);
    if (!seen.busy && from >= WINDOW_BUCKETS) /* the clocks stay up for a while */
        before = span_load(gpu, (uint64_t)(from - WINDOW_BUCKETS) * TICK_NS, (uint64_t)from * TICK_NS);
    in->busy = asked > 0 || seen.busy > 0 || before.busy > 0;
    in->effort = asked > seen.effort ? asked : seen.effort;
    in->effort = in->effort > 1 ? 1 : in->effort;
}

/* Below its threshold the rail loses the GPU that draws most, one a tick; without any voltage all of them. */
static void rail_tick(int rail, const struct rail_figures *figures)
{
    double watts = figures->base_w;
    int most = -1;
    for (int gpu = 0; gpu < gpu_count(); gpu++) {
        const struct gpu_physics *one = &state->gpu[gpu];
        if (!(figures->gpus >> gpu & 1) || one->lost)
            continue;
        watts += one->power_w;
        most = most < 0 || one->power_w > state->gpu[most].power_w ? gpu : most;
    }
    rail_step(&figures->model, watts, &state->rail[rail]);
    for (int gpu = 0; gpu < gpu_count(); gpu++)
        if ((figures->gpus >> gpu & 1) && (state->rail[rail].volts <= 0 || (gpu == most && state->rail[rail].volts < GPU_LOST_V)))
            state->gpu[gpu].lost = 1;
    if (state->rail[rail].volts < RESET_V && figures->feeds_base)
        state->reset = 1;
}

static void move_on(int64_t until)
{
    static struct gpu_model model[TICKS_GPUS];
    static struct gpu_inputs in[TICKS_GPUS];
    int count = gpu_count();
    static struct rail_figures figures[RAILS];
    int rails = rails_count();
    long asked = conf_int("heat.speed", 1);
    double speed = asked < 1 ? 1 : asked > MOST_SPEED ? MOST_SPEED : (double)asked;
    for (int rail = 0; rail < rails; rail++)
        rail_figures(rail, &figures[rail]);
    for (int gpu = 0; gpu < count; gpu++)
        physics_figures(gpu, &model[gpu], &in[gpu]);
    if (!state->begun || state->tick > until || state->tick < until - LONGEST_GAP) {
        for (int gpu = 0; gpu < count; gpu++)
            physics_rest(&model[gpu], &in[gpu], &state->gpu[gpu]);
        memset(state->rail, 0, sizeof state->rail);
        state->reset = 0;
        for (int rail = 0; rail < rails; rail++)
            rail_tick(rail, &figures[rail]);
        state->tick = until;
        state->begun = 1;
    }
    int64_t longest = 1 + (until - state->tick) / LONG_GAP;
    while (state->tick < until) {
        int64_t ticks = until - state->tick < longest ? until - state->tick : longest;
        double seconds = (double)ticks * (double)TICK_NS / 1e9;
        for (int gpu = 0; gpu < count; gpu++) {
            load_of(gpu, state->tick, ticks, &in[gpu]);
            if (state->gpu[gpu].lost || gpu_int(gpu, 0, "absent"))
                state->gpu[gpu].power_w = 0;
            else
                physics_step(&model[gpu], &in[gpu], &state->gpu[gpu], seconds, seconds * speed);
        }
        for (int rail = 0; rail < rails; rail++)
            rail_tick(rail, &figures[rail]);
        state->tick += ticks;
    }
}

const struct ticks_file *ticks_now(void)
{
    int64_t until = (int64_t)(now_ns() / TICK_NS);
    look();
    if (!state->begun || state->tick != until) {
        lock(F_WRLCK);
        if (!state->begun || state->tick != until)
            move_on(until);
        lock(F_UNLCK);
    }
    return state;
}

const struct gpu_physics *gpu_physics_now(int gpu)
{
    return &ticks_now()->gpu[gpu];
}

int gpu_without_power(int gpu)
{
    return rails_count() && gpu_physics_now(gpu)->lost;
}
