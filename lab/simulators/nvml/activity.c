/* Reads volatile/contexts: the load that CUDA programs are at this moment, and who they are. */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "activity.h"
#include "sim.h"

#define FILE_SIZE (ACTIVITY_SLOTS * sizeof(struct process_activity))

static int file = -1;
static const struct process_activity *slots;

static const struct process_activity *look(void)
{
    struct stat size;
    if (slots)
        return slots;
    if (file < 0)
        file = open(sim_path("volatile/contexts"), O_RDONLY | O_CLOEXEC);
    if (file < 0 || fstat(file, &size) || (size_t)size.st_size < FILE_SIZE)
        return NULL; /* no program has computed since the power came on */
    void *map = mmap(NULL, FILE_SIZE, PROT_READ, MAP_SHARED, file, 0);
    slots = map == MAP_FAILED ? NULL : map;
    return slots;
}

static int alive(int slot)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
    lock.l_start = (off_t)((size_t)slot * sizeof(struct process_activity));
    return !fcntl(file, F_OFD_GETLK, &lock) && lock.l_type != F_UNLCK;
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

/* What one process kept a GPU busy in a span of time, from buckets that lie in it and the interval. */
static void add(const struct gpu_activity *seen, uint64_t from, uint64_t until, uint64_t *busy_ns, uint64_t *effort_ns)
{
    uint64_t start = seen->solid_from > from ? seen->solid_from : from;
    uint64_t end = seen->solid_until < until ? seen->solid_until : until;
    for (int i = 0; i < ACTIVITY_BUCKETS; i++) {
        const struct busy_bucket *bucket = &seen->bucket[i];
        if (bucket->tick < (uint32_t)(from / BUCKET_NS) || bucket->tick >= (uint32_t)(until / BUCKET_NS))
            continue;
        *busy_ns += 1000ull * bucket->busy_us;
        *effort_ns += 1000ull * bucket->effort_us;
    }
    if (end > start) {
        *busy_ns += end - start;
        *effort_ns += (end - start) / 100 * (seen->solid_effort > 100 ? 100 : seen->solid_effort);
    }
}

struct span_load span_load(int gpu, uint64_t from_ns, uint64_t until_ns)
{
    uint64_t busy_ns = 0, effort_ns = 0;
    const struct process_activity *all = look();
    double span_ns = (double)(until_ns - from_ns);
    for (int slot = 0; all && slot < ACTIVITY_SLOTS; slot++)
        if (all[slot].pid && all[slot].gpu[gpu].mib && alive(slot))
            add(&all[slot].gpu[gpu], from_ns, until_ns, &busy_ns, &effort_ns);
    return (struct span_load){(double)busy_ns / span_ns, (double)effort_ns / span_ns};
}

static unsigned percent(uint64_t part_ns)
{
    uint64_t value = part_ns * 100 / (WINDOW_BUCKETS * BUCKET_NS);
    return value > 100 ? 100 : (unsigned)value;
}

struct load gpu_load(int gpu)
{
    struct load sum = {0, 0, 0, 0};
    uint64_t busy_ns = 0, effort_ns = 0, now = now_ns();
    const struct process_activity *all = look();
    for (int slot = 0; all && slot < ACTIVITY_SLOTS; slot++) {
        const struct gpu_activity *seen = &all[slot].gpu[gpu];
        if (!all[slot].pid || !seen->mib || !alive(slot))
            continue;
        sum.mib += seen->mib;
        sum.waits |= seen->solid_until == UINT64_MAX;
        add(seen, now - WINDOW_BUCKETS * BUCKET_NS, now, &busy_ns, &effort_ns);
    }
    sum.util = percent(busy_ns);
    sum.effort = percent(effort_ns);
    return sum;
}

int context_holder(int gpu, int number, unsigned *pid, unsigned *mib)
{
    const struct process_activity *all = look();
    for (int slot = 0; all && slot < ACTIVITY_SLOTS; slot++) {
        if (!all[slot].pid || !all[slot].gpu[gpu].mib || !alive(slot) || number--)
            continue;
        *pid = all[slot].pid;
        *mib = all[slot].gpu[gpu].mib;
        return 1;
    }
    return 0;
}
