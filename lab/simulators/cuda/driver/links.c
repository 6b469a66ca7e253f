/* What lies between two GPUs, or a GPU and the host's memory: how fast, how long, and for how long it is taken.
 *
 * Shares of the raw rate are what the usual programs measure with large messages. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

#define NVLINK_SHARE 0.931       /* 24 of 25.78 GB/s */
#define NVLINK_SHARE_HOPPER 0.78 /* 372 of 478 GB/s */
#define HOST_SHARE 0.8           /* pinned memory; half of it is through host memory and on */
#define PAGEABLE_SHARE 0.4
#define STAGED_SHARE 0.5

static char enabled[MAX_GPUS][MAX_GPUS];
static uint64_t nvlink_taken[MAX_GPUS][MAX_GPUS], up_taken[MAX_GPUS], down_taken[MAX_GPUS];

static const char *pair_key(const char *name, int a, int b)
{
    char key[64];
    snprintf(key, sizeof key, "%s.%d-%d", name, a < b ? a : b, a < b ? b : a);
    return conf_str(key);
}

static double pair_number(const char *name, int a, int b, double absent)
{
    const char *value = pair_key(name, a, b);
    double number = value ? strtod(value, NULL) : 0;
    return number > 0 ? number : absent;
}

/* Whether FAULT@BRANCH is of the branch that is loaded, or FAULT@!BRANCH of every other one; a fault without a branch is of each. */
static int of_this_driver(const char *at)
{
    const char *loaded = driver_loaded();
    if (!*at)
        return 1;
    int others = at[1] == '!';
    const char *branch = at + 1 + others;
    size_t length = strlen(branch);
    return *at == '@' && loaded && others != (!strncmp(loaded, branch, length) && loaded[length] == '.');
}

enum pair_fault fault_of_pair(int a, int b)
{
    static const char *const names[] = {"", "hang", "corrupt", "refuse"};
    const char *value = pair_key("fault.pair", a, b);
    for (int fault = HANGS; value && fault <= REFUSED; fault++) {
        size_t length = strlen(names[fault]);
        if (!strncmp(value, names[fault], length) && of_this_driver(value + length))
            return (enum pair_fault)fault;
    }
    return NO_FAULT;
}

static double slowdown(int a, int b)
{
    const char *value = pair_key("fault.pair", a, b);
    double factor = value && !strncmp(value, "slow:", 5) ? strtod(value + 5, NULL) : 1;
    return factor > 1 ? factor : 1;
}

int can_access(int gpu, int peer)
{
    return gpu != peer && fault_of_pair(gpu, peer) != REFUSED && !gpu_int(gpu, 0, "fault") &&
           !gpu_int(peer, 0, "fault") && !pair_status(gpu, peer, 0) && !pair_status(gpu, peer, 1);
}

int peer_enabled(int gpu, int peer)
{
    return enabled[gpu][peer] || enabled[peer][gpu];
}

void peers_forget(int gpu)
{
    memset(enabled[gpu], 0, sizeof enabled[gpu]);
}

int enable_peer(int gpu, int peer, int on)
{
    if (!can_access(gpu, peer))
        return PEER_ACCESS_UNSUPPORTED;
    if (enabled[gpu][peer] == on)
        return on ? PEER_ACCESS_ALREADY_ENABLED : PEER_ACCESS_NOT_ENABLED;
    enabled[gpu][peer] = (char)on;
    return SUCCESS;
}

/* A GPU that works has left its idle generation. */
static double pcie_gb_s(int gpu)
{
    static const double lane[] = {0, 0.25, 0.5, 0.985, 1.969, 3.938, 7.563};
    long generation = gpu_int(gpu, gpu_int(gpu, 3, "pcie.gen_max"), "pcie.gen_now");
    long width = gpu_int(gpu, gpu_int(gpu, 16, "pcie.width_max"), "pcie.width_now");
    return lane[generation < 1 ? 1 : generation > 6 ? 6 : generation] * (double)(width < 1 ? 1 : width);
}

/* An IOMMU that translates every access may cost much of what PCIe carries between two devices (fault.iommu_slow). */
static double slower_pcie(int a, int b)
{
    double one = pcie_gb_s(a), other = pcie_gb_s(b);
    double factor = conf_int("iommu.translates", 0) ? (double)conf_int("fault.iommu_slow", 1) : 1;
    return (one < other ? one : other) / factor;
}

struct path pair_path(int a, int b, int direct)
{
    static const double level_share[] = {0.8, 0.8, 0.7, 0.65, 0.5};
    double factor = slowdown(a, b);
    int links = pair_links_up(a, b), level = pair_level(a, b);
    struct path path = {WAY_STAGED, STAGED_SHARE * slower_pcie(a, b), 14};
    if (a == b)
        return (struct path){WAY_LOCAL, memory_gb_s(a) * 0.42, 1};
    if (!direct) {
        path.gb_s = pair_number("bandwidth_shm", a, b, path.gb_s);
        return path;
    }
    path = (struct path){WAY_PCIE, level_share[level] * slower_pcie(a, b), level < 2 ? 1.6 : 2.4};
    if (links) {
        double share = gpu_arch(a) >= HOPPER ? NVLINK_SHARE_HOPPER : NVLINK_SHARE;
        path = (struct path){WAY_NVLINK, links * share * (double)gpu_int(a, 25781, "nvlink_mb_s") / 1000, 1.9};
    }
    path.gb_s = pair_number("bandwidth", a, b, path.gb_s) / factor;
    path.latency_us = pair_number("latency_us", a, b, path.latency_us) * factor;
    return path;
}

struct path host_path(int gpu, int pinned)
{
    return (struct path){WAY_HOST, (pinned ? HOST_SHARE : PAGEABLE_SHARE) * pcie_gb_s(gpu), pinned ? 3 : 8};
}

double memory_gb_s(int gpu)
{
    return (double)gpu_int(gpu, 500, "memory_gb_s");
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

uint64_t occupy(int from, int to, size_t bytes, const struct path *path, uint64_t start)
{
    uint64_t needs = (uint64_t)((double)bytes / path->gb_s), latency = (uint64_t)(1000 * path->latency_us);
    uint64_t *out = from == HOST ? NULL : path->way == WAY_NVLINK ? &nvlink_taken[from][to] : &up_taken[from];
    uint64_t *in = to == HOST || path->way == WAY_NVLINK ? NULL : &down_taken[to];
    if (path->way != WAY_LOCAL) {
        start = later(start, out ? *out : 0);
        start = later(start, in ? *in : 0);
        if (out)
            *out = start + needs;
        if (in)
            *in = start + needs;
    }
    return start + latency + needs;
}
