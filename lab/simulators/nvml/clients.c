/* Who keeps the driver awake: every initialised process holds a shared lock on volatile/clients.
 *
 * The first one to come (nobody else held the lock) begins a new epoch, the number inside that file. Settings of an
 * older epoch are gone unless persistence kept the driver awake. The file is writable by all, as any user may be the
 * first; where it is not, a user who comes first sees no kept settings, and the epoch stays for the next one. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sim.h"

static int fd = -1;
static long epoch;

long clients_epoch(void)
{
    return epoch;
}

static int open_clients(int *writable)
{
    const char *path = sim_path("volatile/clients");
    *writable = 1;
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0 && errno == ENOENT && !geteuid()) {
        mkdir(sim_path("volatile"), 0755);
        file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (file >= 0)
            fchmod(file, 0666);
    }
    if (file < 0) {
        *writable = 0;
        file = open(path, O_RDONLY | O_CLOEXEC);
    }
    return file;
}

static long read_epoch(void)
{
    char text[32] = "";
    return pread(fd, text, sizeof text - 1, 0) > 0 ? atol(text) : 0;
}

static void begin_epoch(int writable)
{
    char text[32];
    if (!writable) {
        epoch = -2;
        return;
    }
    int size = snprintf(text, sizeof text, "%ld\n", read_epoch() + 1);
    if (pwrite(fd, text, size, 0) != size)
        epoch = -2;
}

/* What the last client left behind; the file on disk then says what is in force. */
static void drop_dead_settings(void)
{
    if (geteuid() || edit_begin())
        return;
    for (int gpu = 0; gpu < gpu_count(); gpu++)
        if (gpu_str(gpu, "set.instance") && !setting_int(gpu, "persistence", 0) &&
            gpu_int(gpu, -1, "set.epoch") != epoch)
            settings_reset(gpu);
    edit_commit();
}

void clients_join(void)
{
    int writable, first;
    epoch = 0;
    fd = open_clients(&writable);
    if (fd < 0)
        return;
    first = !flock(fd, LOCK_EX | LOCK_NB);
    if (first)
        begin_epoch(writable);
    while (flock(fd, LOCK_SH) && errno == EINTR)
        ;
    if (epoch >= 0)
        epoch = read_epoch();
    if (first)
        drop_dead_settings();
}

/* Whether a process has a lock on the file, from /proc/locks: taking it to find out would hide the first client. */
static int anybody(FILE *locks, const struct stat *found)
{
    char line[160];
    unsigned long inode;
    int seen = 0;
    rewind(locks);
    while (!seen && fgets(line, sizeof line, locks))
        seen = strstr(line, "FLOCK") && sscanf(line, "%*s %*s %*s %*s %*s %*x:%*x:%lu", &inode) == 1 &&
               inode == found->st_ino;
    return seen;
}

void clients_watch(FILE *locks)
{
    struct stat found;
    int file = open(sim_path("volatile/clients"), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    char text[32] = "";
    epoch = -2;
    if (file >= 0 && !fstat(file, &found) && anybody(locks, &found) && pread(file, text, sizeof text - 1, 0) > 0)
        epoch = atol(text);
    if (file >= 0)
        close(file);
}

void clients_leave(void)
{
    if (fd >= 0)
        close(fd);
    fd = -1;
}
