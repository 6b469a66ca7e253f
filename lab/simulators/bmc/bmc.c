/* The management controller of one simulated machine: bmc HW ZERO_NS PROGRAM WORD...
 *
 * HW is the folder of its hardware, ZERO_NS what this machine's CLOCK_MONOTONIC shows when the host's is 0. It moves the
 * physics on ten times a second (../nvml/ticks.h), runs PROGRAM WORD... WHAT when a GPU has lost its power (its number)
 * or the machine resets ("reset"), and answers ipmitool's `dummy` interface at HW/bmc if board.conf has bmc=1. Ends
 * when its boot does. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../nvml/sim.h"
#include "../nvml/ticks.h"
#include "ipmi.h"

#define CLIENTS 4
#define RESET 63 /* the bit of a reset; those below are of GPUs */
#define TICK_MS 100
#define REQUEST_MS 1000 /* a client that sends half a request is dropped */

/* What ipmitool's dummy interface sends and expects: its structures in memory, then the data. */
struct request {
    uint8_t netfn, lun, cmd, target_cmd;
    uint16_t size;
    uint8_t *unused;
};

struct response {
    uint8_t netfn, cmd, seq, lun, code;
    int size;
    uint8_t *unused;
};

static int open_socket(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int made = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (made < 0)
        return -1;
    snprintf(address.sun_path, sizeof address.sun_path, "/bmc");
    unlink(address.sun_path);
    mode_t before = umask(0177); /* /dev/ipmi0 is root's too */
    int failed = bind(made, (struct sockaddr *)&address, sizeof address) || listen(made, CLIENTS);
    umask(before);
    return failed ? -1 : made;
}

static int all(int fd, void *data, size_t size)
{
    return recv(fd, data, size, MSG_WAITALL) == (ssize_t)size;
}

/* Answers one request. Returns 0 when the client has said goodbye or sends nothing that makes sense. */
static int answer(int fd)
{
    struct request request;
    uint8_t data[256], out[sizeof(struct response) + 256];
    struct response head = {0};
    if (!all(fd, &request, sizeof request) || request.netfn == 0x3f || request.size > sizeof data)
        return 0;
    if (request.size && !all(fd, data, request.size))
        return 0;
    size_t size = 0;
    head.netfn = request.netfn + 1;
    head.cmd = request.cmd;
    head.code = ipmi_answer(request.netfn, request.cmd, data, request.size, out + sizeof head, &size);
    head.size = head.code ? 0 : (int)size;
    memcpy(out, &head, sizeof head);
    size = sizeof head + (size_t)head.size;
    return send(fd, out, size, MSG_NOSIGNAL) == (ssize_t)size;
}

static void serve(struct pollfd *at, int listening)
{
    struct timeval patience = {REQUEST_MS / 1000, 0};
    for (int i = 1; i <= CLIENTS; i++)
        if (at[i].fd >= 0 && at[i].revents && !answer(at[i].fd)) {
            close(at[i].fd);
            at[i].fd = -1;
        }
    if (listening < 0 || !(at[0].revents & POLLIN))
        return;
    int fd = accept4(listening, NULL, NULL, SOCK_CLOEXEC), i = 1;
    while (i <= CLIENTS && at[i].fd >= 0)
        i++;
    if (fd >= 0 && i > CLIENTS)
        close(fd);
    else if (fd >= 0) {
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        at[i].fd = fd;
    }
}

/* A number for what has happened so far: bits of GPUs without power, the highest one for a reset. */
static uint64_t happened(const struct ticks_file *state)
{
    uint64_t bits = state->reset ? 1ull << RESET : 0;
    for (int gpu = 0; gpu < gpu_count() && gpu < RESET; gpu++)
        bits |= (uint64_t)(state->gpu[gpu].lost != 0) << gpu;
    return bits;
}

/* Runs the words, with what has happened as the last one. */
static void run(char **words, int count, unsigned char bit)
{
    char *argv[16] = {0}, what[8] = "reset";
    if (count > 14 || fork())
        return;
    if (bit < RESET)
        snprintf(what, sizeof what, "%d", bit);
    memcpy(argv, words, sizeof *argv * (size_t)count);
    argv[count] = what;
    setsid();
    execv(argv[0], argv);
    _exit(127);
}

/* A process of its own runs them, as the controller sees only the host's files. Returns where it takes bits, -1: failed. */
static int reporter(char **words, int count)
{
    int ends[2];
    unsigned char bit;
    if (pipe2(ends, O_CLOEXEC))
        return -1;
    pid_t child = fork();
    if (child) {
        close(ends[0]);
        return child < 0 ? -1 : ends[1];
    }
    close(ends[1]);
    while (read(ends[0], &bit, 1) == 1)
        run(words, count, bit);
    _exit(0);
}

static void report(int to, uint64_t fresh)
{
    for (unsigned char bit = 0; bit <= RESET; bit++)
        if ((fresh >> bit & 1) && write(to, &bit, 1) != 1)
            return;
}

static ino_t boot_of_files(void)
{
    struct stat found;
    return stat(sim_path("volatile"), &found) ? 0 : found.st_ino;
}

/* The host's root may have put links into the folder: from here on they lead nowhere else. */
static int enter(const char *folder)
{
    return chroot(folder) || chdir("/") || setenv("NVMLSIM_DIR", "/", 1);
}

int main(int count, char **words)
{
    struct pollfd at[CLIENTS + 1];
    FILE *locks = fopen("/proc/locks", "re");
    signal(SIGCHLD, SIG_IGN);
    int to = count < 4 ? -1 : reporter(words + 3, count - 3);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (to < 0 || !locks || enter(words[1]))
        return 2;
    ticks_zero_ns = strtoll(words[2], NULL, 10);
    conf_reload();
    ino_t boot = boot_of_files();
    int listening = conf_int("bmc", 0) ? open_socket() : -1;
    uint64_t before = 0;
    for (int i = 0; i <= CLIENTS; i++)
        at[i] = (struct pollfd){i ? -1 : listening, POLLIN, 0};
    while (boot_of_files() == boot) {
        if (poll(at, CLIENTS + 1, TICK_MS) < 0 && errno != EINTR)
            return 1;
        conf_reload();
        clients_watch(locks);
        uint64_t now = happened(ticks_now());
        serve(at, listening);
        report(to, now & ~before);
        before = now;
    }
    return 0;
}
