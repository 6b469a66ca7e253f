/* How the GPUs hang together: PCIe distance (topo.A-B, topo.default), CPUs, memory nodes, peer-to-peer grants
 * (p2p.A-B; for pairs without NVLink also p2p.default; p2p.r.A-B and so on for one capability; the numbers are NVML's). */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

int pair_level(int a, int b)
{
    static const char *const names[] = {"PIX", "PXB", "PHB", "NODE", "SYS"};
    char key[48];
    snprintf(key, sizeof key, "topo.%d-%d", a < b ? a : b, a < b ? b : a);
    const char *name = conf_str(key);
    if (!name)
        name = conf_str("topo.default");
    for (int level = 0; name && level < 5; level++)
        if (!strcmp(name, names[level]))
            return level;
    return 4;
}

NVML(nvmlDeviceGetTopologyCommonAncestor)(int gpu, word other, unsigned *out)
{
    int peer = handle_gpu(other);
    if (peer < 0 || !out)
        return INVALID_ARGUMENT;
    *out = peer == gpu ? 0 : 10 * ((unsigned)pair_level(gpu, peer) + 1);
    return OK;
}

NVML(nvmlDeviceGetTopologyNearestGpus)(int gpu, unsigned level, unsigned *count, void **out)
{
    unsigned n = 0, room = *count;
    for (int index = 0; index < present_count(); index++) {
        int peer = gpu_of_index(index);
        if (peer == gpu || 10 * ((unsigned)pair_level(gpu, peer) + 1) != level)
            continue;
        if (n < room && out)
            out[n] = gpu_handle(peer);
        n++;
    }
    *count = n;
    return n > room && out ? INSUFFICIENT_SIZE : OK;
}

NVML(nvmlDeviceOnSameBoard)(int gpu, word other, int *out)
{
    *out = handle_gpu(other) == gpu;
    return OK;
}

enum { READ, WRITE, NVLINK, ATOMICS, PCI, NOT_SUPPORTED_STATUS = 5 };

unsigned pair_status(int gpu, int peer, unsigned capability)
{
    int low = gpu < peer ? gpu : peer, high = gpu < peer ? peer : gpu;
    char key[48];
    snprintf(key, sizeof key, "p2p.%d-%d", low, high);
    int linked = pair_links(gpu, peer) > 0;
    long usual = conf_int(key, linked ? OK : conf_int("p2p.default", OK));
    if (linked && capability == NVLINK)
        usual = OK;
    else if (!linked && (capability == NVLINK || capability == ATOMICS))
        usual = NOT_SUPPORTED_STATUS;
    if (has_nvswitches() && !fabric_runs())
        usual = NOT_SUPPORTED_STATUS;
    snprintf(key, sizeof key, "p2p.%c.%d-%d", "rwnap"[capability], low, high);
    return (unsigned)conf_int(key, usual);
}

NVML(nvmlDeviceGetP2PStatus)(int gpu, word other, unsigned capability, unsigned *out)
{
    int peer = handle_gpu(other);
    if (peer < 0 || capability > PCI || !out)
        return INVALID_ARGUMENT;
    *out = pair_status(gpu, peer, capability);
    return OK;
}

/* "0-27,56-83" into a bit set */
static void fill_set(const char *list, unsigned words, unsigned long *out)
{
    memset(out, 0, words * sizeof *out);
    while (list && *list) {
        char *end;
        unsigned long first = strtoul(list, &end, 10), last = first;
        if (*end == '-')
            last = strtoul(end + 1, &end, 10);
        for (unsigned long bit = first; bit <= last && bit / 64 < words; bit++)
            out[bit / 64] |= 1ul << bit % 64;
        list = *end == ',' ? end + 1 : NULL;
    }
}

NVML(nvmlDeviceGetCpuAffinity)(int gpu, unsigned words, unsigned long *out)
{
    if (!words || !out)
        return INVALID_ARGUMENT;
    fill_set(gpu_str(gpu, "cpus"), words, out);
    return OK;
}

NVML(nvmlDeviceGetCpuAffinityWithinScope)(int gpu, unsigned words, unsigned long *out, unsigned scope)
{
    return scope > 1 ? INVALID_ARGUMENT : sim_nvmlDeviceGetCpuAffinity(gpu, words, out);
}

NVML(nvmlDeviceGetMemoryAffinity)(int gpu, unsigned words, unsigned long *out, unsigned scope)
{
    if (!words || !out || scope > 1)
        return INVALID_ARGUMENT;
    fill_set(gpu_str(gpu, "numa_node"), words, out);
    return OK;
}
