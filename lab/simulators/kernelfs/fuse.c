/* The FUSE daemon: kernelfs MOUNT HOSTS TAG. It mounts itself, answers requests, and takes the mount away when it is told
 * to end. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "kernelfs.h"

enum kind { FOLDER, CONTROL, KMSG, KLOG, CONFIG_FOLDER, CONFIG, MEMINFO, HUGE_PAGES, TRANSPARENT };
enum { MAX_WRITE = 8192, BUFFER = MAX_WRITE + 4096 };

static int device;
static const char *mount_point;

/* A node's number says what it is: the host, the kind, and of a PCI function its place. The root is 1. */
struct node {
    struct host *host;
    enum kind kind;
    uint32_t place;
};

static uint64_t number(uint64_t host, enum kind kind, uint32_t place)
{
    return host << 36 | (uint64_t)kind << 32 | place;
}

static int node_of(uint64_t nodeid, struct node *out)
{
    out->kind = (enum kind)(nodeid >> 32 & 15);
    out->place = (uint32_t)nodeid;
    out->host = host_of_id(nodeid >> 36);
    return out->host || !(nodeid >> 36);
}

void answer(uint64_t request, int error, const void *data, size_t size)
{
    struct fuse_out_header head = {(uint32_t)(sizeof head + size), error, request};
    struct iovec parts[] = {{&head, sizeof head}, {(void *)data, size}};
    if (writev(device, parts, size ? 2 : 1) < 0 && errno != ENOENT) /* ENOENT: the asker is gone */
        perror("kernelfs");
}

void wake_poll(uint64_t poll)
{
    struct fuse_notify_poll_wakeup_out body = {poll};
    struct fuse_out_header head = {sizeof head + sizeof body, FUSE_NOTIFY_POLL, 0};
    struct iovec parts[] = {{&head, sizeof head}, {&body, sizeof body}};
    if (writev(device, parts, 2) < 0 && errno != ENOENT)
        perror("kernelfs");
}

static struct fuse_attr attributes(uint64_t nodeid, const struct node *node)
{
    static const uint32_t modes[] = {S_IFDIR | 0755, S_IFREG | 0200, S_IFREG | 0644,
                                     S_IFREG | 0222, S_IFDIR | 0755, S_IFREG | 0644,
                                     S_IFREG | 0444, S_IFREG | 0644, S_IFREG | 0644};
    struct fuse_attr attr = {.ino = nodeid, .mode = modes[node->kind], .nlink = 1, .blksize = 4096};
    if (node->kind == CONFIG)
        attr.size = (uint64_t)config_size(node->host, node->place);
    return attr;
}

static uint64_t child_of(uint64_t parent, const struct node *folder, const char *name)
{
    unsigned domain, bus, device_number, function;
    int used = 0;
    if (parent == FUSE_ROOT_ID) {
        struct host *host = host_of_name(name, strlen(name));
        return !strcmp(name, "control") ? number(0, CONTROL, 0) : host ? number(host->id, FOLDER, 0) : 0;
    }
    if (!folder->host)
        return 0;
    if (folder->kind == FOLDER)
        return !strcmp(name, "kmsg")           ? number(folder->host->id, KMSG, 0)
               : !strcmp(name, "klog")         ? number(folder->host->id, KLOG, 0)
               : !strcmp(name, "config")       ? number(folder->host->id, CONFIG_FOLDER, 0)
               : !strcmp(name, "meminfo")      ? number(folder->host->id, MEMINFO, 0)
               : !strcmp(name, "nr_hugepages") ? number(folder->host->id, HUGE_PAGES, 0)
               : !strcmp(name, "transparent")  ? number(folder->host->id, TRANSPARENT, 0)
                                               : 0;
    if (folder->kind != CONFIG_FOLDER ||
        sscanf(name, "%4x:%2x:%2x.%1x%n", &domain, &bus, &device_number, &function, &used) != 4 || name[used])
        return 0;
    uint32_t place = domain << 16 | bus << 8 | device_number << 3 | function;
    return config_size(folder->host, place) < 0 ? 0 : number(folder->host->id, CONFIG, place);
}

static void look_up(const struct fuse_in_header *in, const struct node *folder, const char *name)
{
    struct fuse_entry_out out = {0};
    struct node node;
    out.nodeid = child_of(in->nodeid, folder, name);
    if (!out.nodeid || !node_of(out.nodeid, &node)) {
        answer(in->unique, -ENOENT, NULL, 0);
        return;
    }
    out.attr = attributes(out.nodeid, &node);
    answer(in->unique, 0, &out, sizeof out);
}

static void open_file(const struct fuse_in_header *in, const struct node *node, const struct fuse_open_in *how)
{
    struct fuse_open_out out = {.open_flags = FOPEN_DIRECT_IO};
    int access = how->flags & O_ACCMODE;
    if (node->kind == KMSG && !in->uid) {
        out.fh = (uint64_t)(uintptr_t)reader_open(node->host);
        out.open_flags |= FOPEN_NONSEEKABLE;
    } else if (node->kind == KMSG) {
        answer(in->unique, -EPERM, NULL, 0);
        return;
    } else if ((in->uid && node->kind != KLOG && access != O_RDONLY) || (node->kind == KLOG && access != O_WRONLY)) {
        answer(in->unique, -EACCES, NULL, 0);
        return;
    } else {
        out.fh = !in->uid; /* as in life: who opened it counts */
    }
    answer(in->unique, 0, &out, sizeof out);
}

static void read_file(const struct fuse_in_header *in, const struct node *node, const struct fuse_read_in *what)
{
    char space[4096];
    if (node->kind == KMSG) {
        reader_read((struct reader *)(uintptr_t)what->fh, in->unique, what->size, (what->flags & O_NONBLOCK) != 0);
        return;
    }
    if (node->kind >= MEMINFO) {
        size_t (*read)(const struct host *, uint64_t, char *, size_t) = node->kind == MEMINFO      ? meminfo_read
                                                                        : node->kind == HUGE_PAGES ? huge_pages_read
                                                                                                   : transparent_read;
        size_t room = what->size < sizeof space ? what->size : sizeof space;
        answer(in->unique, 0, space, read(node->host, what->offset, space, room));
        return;
    }
    if (node->kind != CONFIG) {
        answer(in->unique, 0, NULL, 0);
        return;
    }
    long got = config_read(node->host, node->place, what->offset, space,
                           what->size < sizeof space ? what->size : sizeof space, (int)what->fh);
    answer(in->unique, got < 0 ? -EIO : 0, space, got < 0 ? 0 : (size_t)got);
}

static void write_file(const struct fuse_in_header *in, const struct node *node, const struct fuse_write_in *what)
{
    const char *data = (const char *)(what + 1);
    struct fuse_write_out out = {.size = what->size};
    int error = 0;
    if (node->kind == CONTROL)
        error = control(data, what->size);
    else if (node->kind == CONFIG)
        error = config_write(node->host, node->place, what->offset, data, what->size) < 0 ? -EIO : 0;
    else if (node->kind == HUGE_PAGES)
        error = huge_pages_write(node->host, data, what->size);
    else if (node->kind == TRANSPARENT)
        error = transparent_write(node->host, data, what->size);
    else
        error = log_write(node->host, data, what->size, node->kind == KLOG, !in->uid);
    answer(in->unique, error, &out, error ? 0 : sizeof out);
}

static void poll_file(const struct fuse_in_header *in, const struct node *node, const struct fuse_poll_in *what)
{
    struct fuse_poll_out out = {.revents = POLLOUT | POLLWRNORM};
    struct reader *reader = node->kind == KMSG ? (struct reader *)(uintptr_t)what->fh : NULL;
    if (!reader || reader_ready(reader))
        out.revents |= POLLIN | POLLRDNORM;
    if (reader && what->flags & FUSE_POLL_SCHEDULE_NOTIFY) {
        reader->poll = what->kh;
        reader->polled = 1;
    }
    answer(in->unique, 0, &out, sizeof out);
}

static void begin(const struct fuse_in_header *in, const struct fuse_init_in *kernel)
{
    struct fuse_init_out out = {.major = FUSE_KERNEL_VERSION, .minor = FUSE_KERNEL_MINOR_VERSION};
    if (kernel->minor < out.minor)
        out.minor = kernel->minor;
    out.max_write = MAX_WRITE;
    out.max_background = 64;
    out.congestion_threshold = 48;
    out.max_readahead = kernel->max_readahead;
    answer(in->unique, 0, &out, sizeof out);
}

static void serve(const struct fuse_in_header *in)
{
    const void *body = in + 1;
    struct node node;
    struct fuse_attr_out attr = {0};
    struct fuse_open_out opened = {0};
    struct fuse_statfs_out room = {.st = {.bsize = 4096, .namelen = 255, .frsize = 4096}};
    if (in->opcode == FUSE_FORGET || in->opcode == FUSE_BATCH_FORGET)
        return;
    if (in->opcode == FUSE_INTERRUPT) {
        reader_interrupt(((const struct fuse_interrupt_in *)body)->unique);
        return;
    }
    if (in->opcode == FUSE_RELEASE) {
        if ((in->nodeid >> 32 & 15) == KMSG)
            reader_close((struct reader *)(uintptr_t)((const struct fuse_release_in *)body)->fh);
        answer(in->unique, 0, NULL, 0);
        return;
    }
    if (!node_of(in->nodeid, &node)) {
        answer(in->unique, -ENODEV, NULL, 0);
        return;
    }
    switch (in->opcode) {
    case FUSE_INIT:
        begin(in, body);
        return;
    case FUSE_LOOKUP:
        look_up(in, &node, body);
        return;
    case FUSE_GETATTR:
    case FUSE_SETATTR: /* `> /dev/kmsg` truncates; nothing comes of it */
        attr.attr = attributes(in->nodeid, &node);
        answer(in->unique, 0, &attr, sizeof attr);
        return;
    case FUSE_OPEN:
        open_file(in, &node, body);
        return;
    case FUSE_READ:
        read_file(in, &node, body);
        return;
    case FUSE_WRITE:
        write_file(in, &node, body);
        return;
    case FUSE_POLL:
        poll_file(in, &node, body);
        return;
    case FUSE_OPENDIR:
        answer(in->unique, 0, &opened, sizeof opened);
        return;
    case FUSE_STATFS:
        answer(in->unique, 0, &room, sizeof room);
        return;
    case FUSE_READDIR: /* names are known, not listed */
    case FUSE_RELEASEDIR:
    case FUSE_FLUSH:
    case FUSE_FSYNC:
        answer(in->unique, 0, NULL, 0);
        return;
    }
    answer(in->unique, -ENOSYS, NULL, 0);
}

static void end(int signal)
{
    (void)signal;
    umount2(mount_point, MNT_DETACH);
    _exit(0);
}

int main(int argc, char **argv)
{
    static char buffer[BUFFER] __attribute__((aligned(8)));
    char options[100];
    if (argc != 4)
        return 2;
    mount_point = argv[1];
    hosts_folder = argv[2];
    device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", device);
    if (device < 0 || mount(argv[3], mount_point, "fuse.rigwright", MS_NOSUID | MS_NODEV | MS_NOEXEC, options)) {
        perror(device < 0 ? "/dev/fuse" : "mount");
        return 1;
    }
    signal(SIGTERM, end);
    signal(SIGINT, end);
    for (;;) {
        ssize_t got = read(device, buffer, sizeof buffer);
        if (got >= (ssize_t)sizeof(struct fuse_in_header))
            serve((const struct fuse_in_header *)buffer);
        else if (got < 0 && errno == ENODEV)
            return 0; /* unmounted */
        else if (got < 0 && errno != EINTR && errno != ENOENT && errno != EAGAIN) {
            perror("kernelfs");
            return 1;
        }
    }
}
