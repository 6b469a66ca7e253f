/* Writes this process' slot of volatile/contexts (activity.h). Where it cannot be written nobody sees the process. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../nvml/activity.h"
#include "driver.h"

#define FILE_SIZE (ACTIVITY_SLOTS * sizeof(struct process_activity))
#define SAME_WORK_NS 100000ull /* a gap between two kernels that no sampling sees */

static struct process_activity *mine;
static int tried;

static int open_contexts(void)
{
    int file = open(sim_path("volatile/contexts"), O_RDWR | O_CLOEXEC);
    if (file < 0 && !geteuid()) {
        file = open(sim_path("volatile/contexts"), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (file >= 0)
            fchmod(file, 0666);
    }
    return file;
}

static void take_slot(int file)
{
    struct stat size;
    if (fstat(file, &size) || ((size_t)size.st_size < FILE_SIZE && ftruncate(file, (off_t)FILE_SIZE)))
        return;
    struct process_activity *all = mmap(NULL, FILE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (all == MAP_FAILED)
        return;
    for (int slot = 0; slot < ACTIVITY_SLOTS; slot++) {
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
        lock.l_start = (off_t)((size_t)slot * sizeof *all);
        if (fcntl(file, F_OFD_SETLK, &lock))
            continue;
        memset(&all[slot], 0, sizeof all[slot]);
        all[slot].pid = (uint32_t)getpid();
        mine = &all[slot];
        return;
    }
}

/* The file stays open: its lock is the sign of life. */
static struct gpu_activity *my(int gpu)
{
    if (!tried) {
        tried = 1;
        int file = open_contexts();
        if (file >= 0)
            take_slot(file);
    }
    return mine ? &mine->gpu[gpu] : NULL;
}

void presence_memory(int gpu, unsigned mib)
{
    struct gpu_activity *entry = my(gpu);
    if (entry)
        entry->mib = mib;
}

static void into_buckets(struct gpu_activity *entry, uint64_t from, uint64_t until, unsigned effort)
{
    uint64_t window = (WINDOW_BUCKETS + 1) * BUCKET_NS;
    if (until - from > window)
        from = until - window;
    while (from < until) {
        uint64_t tick = from / BUCKET_NS, end = (tick + 1) * BUCKET_NS < until ? (tick + 1) * BUCKET_NS : until;
        struct busy_bucket *bucket = &entry->bucket[tick % ACTIVITY_BUCKETS];
        if (bucket->tick != (uint32_t)tick)
            *bucket = (struct busy_bucket){(uint32_t)tick, 0, 0};
        bucket->busy_us += (uint32_t)((end - from) / 1000);
        bucket->effort_us += (uint32_t)((end - from) / 1000 * effort / 100);
        from = end;
    }
}

/* Work that follows at once makes the interval longer; else the old one becomes history. */
void presence_busy(int gpu, uint64_t from, uint64_t until, unsigned effort)
{
    struct gpu_activity *entry = my(gpu);
    if (!entry || until <= from || entry->solid_until == NEVER)
        return;
    if (from > entry->solid_until + SAME_WORK_NS) {
        into_buckets(entry, entry->solid_from, entry->solid_until, entry->solid_effort);
        entry->solid_from = from;
        entry->solid_effort = effort;
    } else if (until > entry->solid_until) {
        uint64_t before = (entry->solid_until - entry->solid_from) / 1000, more = (until - entry->solid_until) / 1000;
        entry->solid_effort = (unsigned)((before * entry->solid_effort + more * effort) / (before + more + 1));
    } else {
        return;
    }
    entry->solid_until = until;
}

void presence_stop(int gpu)
{
    struct gpu_activity *entry = my(gpu);
    if (entry && entry->solid_until == NEVER)
        entry->solid_until = real_now();
}
