/* What the files of the kernel file system share: one small FUSE daemon for all hosts of a lab, over the kernel's own
 * protocol (linux/fuse.h), without a library.
 *
 *   MOUNT/control               root writes `reset HOST SECONDS` (a boot; SECONDS is the host's zero on the monotonic
 *                               clock) or `forget HOST`
 *   MOUNT/HOST/kmsg             the host's /dev/kmsg: one record per read, a place in the log per open
 *   MOUNT/HOST/klog             what its simulated kernel says: one record per write, `<PRIORITY>text`
 *   MOUNT/HOST/config/ADDRESS   configuration space of a PCI function: HOSTS/HOST/pci/ADDRESS, which holds the space and,
 *                               as long again, the mask of the bits that a write changes; 64 bytes for all but root
 *   MOUNT/HOST/meminfo          /proc/meminfo: HOSTS/HOST/hw/meminfo with the rows of huge pages
 *   MOUNT/HOST/nr_hugepages     /proc/sys/vm/nr_hugepages, and MOUNT/HOST/transparent the mode of transparent ones; both are
 *                               remembered until the next boot, and no memory is reserved
 *
 * A host sees its own folder alone. Requests are answered at once, one after the other; only a read at the end of the log
 * waits, until a record comes or the reader is interrupted. */
#ifndef KERNELFS_H
#define KERNELFS_H

#include <linux/fuse.h>
#include <stddef.h>
#include <stdint.h>

#define MAX_RECORDS 4096
#define MAX_TEXT 1000

struct record {
    uint64_t usec;
    unsigned priority;
    char *text;
};

struct host {
    struct host *next;
    uint64_t id, zero_us;
    char name[64];
    struct record *records; /* those of numbers first to end - 1, at number % MAX_RECORDS */
    uint64_t first, end;
    unsigned long huge_pages;
    int transparent; /* always, madvise, never */
};

struct reader { /* one open of kmsg */
    struct reader *next;
    struct host *host; /* NULL: it is gone */
    uint64_t at;
    uint64_t waiting; /* the request that waits for a record, 0: none */
    uint32_t room;
    uint64_t poll;
    int polled;
};

/* fuse.c */
void answer(uint64_t request, int error, const void *data, size_t size);
void wake_poll(uint64_t poll);

/* log.c */
struct host *host_of_id(uint64_t id);
struct host *host_of_name(const char *name, size_t size);
int control(const char *text, size_t size); /* 0 or a negative error */
struct reader *reader_open(struct host *host);
void reader_close(struct reader *reader);
void reader_read(struct reader *reader, uint64_t request, uint32_t room, int nonblocking);
int reader_ready(const struct reader *reader);
void reader_interrupt(uint64_t request);
int log_write(struct host *host, const char *text, size_t size, int from_kernel, int is_root);

/* config.c */
extern const char *hosts_folder;
long config_size(const struct host *host, uint32_t place); /* -1: there is no such function */
long config_read(const struct host *host, uint32_t place, uint64_t at, char *out, size_t size, int is_root);
long config_write(const struct host *host, uint32_t place, uint64_t at, const char *data, size_t size);

/* memory.c */
size_t meminfo_read(const struct host *host, uint64_t at, char *out, size_t size);
size_t huge_pages_read(const struct host *host, uint64_t at, char *out, size_t size);
int huge_pages_write(struct host *host, const char *data, size_t size); /* 0 or a negative error */
size_t transparent_read(const struct host *host, uint64_t at, char *out, size_t size);
int transparent_write(struct host *host, const char *data, size_t size);

#endif
