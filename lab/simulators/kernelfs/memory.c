/* Huge pages and /proc/meminfo of a host. Nothing is reserved: the numbers are remembered until the next boot. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernelfs.h"

enum { PAGE_KIB = 2048, MAX_FILE = 3072 };
static const char *const modes[] = {"always", "madvise", "never"};

/* The file that the lab wrote at power on. */
static size_t base(const struct host *host, char *out)
{
    char path[600];
    snprintf(path, sizeof path, "%s/%s/hw/meminfo", hosts_folder, host->name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? 0 : read(fd, out, MAX_FILE);
    if (fd >= 0)
        close(fd);
    out[got > 0 ? got : 0] = 0;
    return got > 0 ? (size_t)got : 0;
}

/* As the kernel: what does not fit is not reserved. It keeps a tenth of the memory here (assumed). */
static unsigned long that_fit(const struct host *host, unsigned long pages)
{
    char text[MAX_FILE + 1];
    unsigned long long total = 0;
    base(host, text);
    sscanf(text, "MemTotal: %llu kB", &total);
    unsigned long most = (unsigned long)(total - total / 10) / PAGE_KIB;
    return pages < most ? pages : most;
}

static size_t slice(const char *text, size_t length, uint64_t at, char *out, size_t size)
{
    if (at >= length)
        return 0;
    size = size < length - at ? size : length - at;
    memcpy(out, text + at, size);
    return size;
}

size_t meminfo_read(const struct host *host, uint64_t at, char *out, size_t size)
{
    char text[MAX_FILE + 600];
    size_t length = base(host, text);
    unsigned long pages = host->huge_pages;
    length += (size_t)snprintf(text + length, sizeof text - length,
                               "AnonHugePages:  %8d kB\nHugePages_Total:   %5lu\nHugePages_Free:    %5lu\n"
                               "HugePages_Rsvd:    %5d\nHugePages_Surp:    %5d\nHugepagesize:   %8d kB\n"
                               "Hugetlb:        %8lu kB\n",
                               0, pages, pages, 0, 0, PAGE_KIB, pages * PAGE_KIB);
    return slice(text, length, at, out, size);
}

size_t huge_pages_read(const struct host *host, uint64_t at, char *out, size_t size)
{
    char text[32];
    return slice(text, (size_t)sprintf(text, "%lu\n", host->huge_pages), at, out, size);
}

int huge_pages_write(struct host *host, const char *data, size_t size)
{
    char text[24], *end;
    if (size >= sizeof text)
        return -EINVAL;
    memcpy(text, data, size);
    text[size] = 0;
    unsigned long pages = strtoul(text, &end, 10);
    if (end == text || (*end && strcmp(end, "\n")) || *text == '-')
        return -EINVAL;
    host->huge_pages = that_fit(host, pages);
    return 0;
}

size_t transparent_read(const struct host *host, uint64_t at, char *out, size_t size)
{
    char text[64];
    size_t length = 0;
    for (int n = 0; n < 3; n++)
        length += (size_t)sprintf(text + length, host->transparent == n ? "[%s]%c" : "%s%c", modes[n], n < 2 ? ' ' : '\n');
    return slice(text, length, at, out, size);
}

int transparent_write(struct host *host, const char *data, size_t size)
{
    while (size && data[size - 1] == '\n')
        size--;
    for (int n = 0; n < 3; n++)
        if (size == strlen(modes[n]) && !memcmp(data, modes[n], size)) {
            host->transparent = n;
            return 0;
        }
    return -EINVAL;
}
