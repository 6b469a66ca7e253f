/* Configuration spaces: files outside the host, so that what is not writable in life is not writable here. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernelfs.h"

#define MAX_SPACE 4096
#define FOR_ALL 64 /* what the kernel shows to all but root */

const char *hosts_folder;

static int open_space(const struct host *host, uint32_t place, int flags)
{
    char path[600];
    snprintf(path, sizeof path, "%s/%s/pci/%04x:%02x:%02x.%x", hosts_folder, host->name, place >> 16, place >> 8 & 0xff,
             place >> 3 & 0x1f, place & 7);
    return open(path, flags | O_CLOEXEC);
}

long config_size(const struct host *host, uint32_t place)
{
    struct stat found;
    int fd = open_space(host, place, O_RDONLY);
    long size = fd < 0 || fstat(fd, &found) ? -1 : found.st_size / 2;
    if (fd >= 0)
        close(fd);
    return size;
}

static size_t clipped(uint64_t at, size_t size, uint64_t end)
{
    return at >= end ? 0 : size > end - at ? (size_t)(end - at) : size;
}

long config_read(const struct host *host, uint32_t place, uint64_t at, char *out, size_t size, int is_root)
{
    long space = config_size(host, place);
    if (space < 0)
        return -1;
    size = clipped(at, size, is_root || space < FOR_ALL ? (uint64_t)space : FOR_ALL);
    int fd = open_space(host, place, O_RDONLY);
    long got = fd < 0 ? -1 : pread(fd, out, size, (off_t)at);
    if (fd >= 0)
        close(fd);
    return got;
}

long config_write(const struct host *host, uint32_t place, uint64_t at, const char *data, size_t size)
{
    char now[MAX_SPACE], mask[MAX_SPACE];
    long space = config_size(host, place);
    if (space < 0 || space > MAX_SPACE)
        return -1;
    size_t writable = clipped(at, size, (uint64_t)space);
    int fd = open_space(host, place, O_RDWR);
    if (fd < 0)
        return -1;
    if (pread(fd, now, writable, (off_t)at) == (ssize_t)writable &&
        pread(fd, mask, writable, (off_t)at + space) == (ssize_t)writable) {
        for (size_t i = 0; i < writable; i++)
            now[i] = (char)((now[i] & ~mask[i]) | (data[i] & mask[i]));
        if (pwrite(fd, now, writable, (off_t)at) != (ssize_t)writable)
            writable = 0;
    }
    close(fd);
    return (long)writable;
}
