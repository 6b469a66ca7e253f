/* NVLinks: the board says how many link each pair (nvlink.A-B, nvlink.default), the model how many a GPU has. A GPU's
 * links are numbered in the order of its peers. With NVSwitches (fabric.c) every pair has all links of both. gpuN.linkL.state=0 takes one down, gpuN.linkL.replay, .recovery, .crc,
 * .crc_data, .ecc are its error counters. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "sim.h"
#include "structs.h"

#define ONE_LINK_END 0xFFu

int link_count(int gpu)
{
    long count = gpu_int(gpu, 0, "nvlinks");
    return count > MAX_LINKS ? MAX_LINKS : (int)count;
}

int pair_links(int a, int b)
{
    char key[48];
    if (a == b || gpu_int(a, 0, "absent") || gpu_int(b, 0, "absent"))
        return 0;
    if (has_nvswitches())
        return link_count(a) < link_count(b) ? link_count(a) : link_count(b);
    snprintf(key, sizeof key, "nvlink.%d-%d", a < b ? a : b, a < b ? b : a);
    return (int)conf_int(key, conf_int("nvlink.default", 0));
}

/* Number of a GPU's first link to a peer. */
static int first_link(int gpu, int peer)
{
    int first = 0;
    if (has_nvswitches())
        return 0;
    for (int other = 0; other < peer; other++)
        first += pair_links(gpu, other);
    return first;
}

static int peer_of(int gpu, int link, int *remote_link)
{
    for (int peer = 0; peer < gpu_count(); peer++) {
        int first = first_link(gpu, peer), many = pair_links(gpu, peer);
        if (link >= first && link < first + many) {
            *remote_link = first_link(peer, gpu) + link - first;
            return peer;
        }
    }
    return -1;
}

static int link_up(int gpu, int link)
{
    int remote;
    if (has_nvswitches())
        return gpu_int(gpu, 1, "link%d.state", link) && fabric_runs();
    int peer = peer_of(gpu, link, &remote);
    return peer >= 0 && gpu_int(gpu, 1, "link%d.state", link) && gpu_int(peer, 1, "link%d.state", remote);
}

int pair_links_up(int a, int b)
{
    int first = first_link(a, b), up = 0;
    for (int link = first; link < first + pair_links(a, b); link++)
        up += link_up(a, link);
    return up;
}

static unsigned check(int gpu, unsigned link)
{
    if (link >= MAX_LINKS)
        return INVALID_ARGUMENT;
    return (int)link < link_count(gpu) ? OK : NOT_SUPPORTED;
}

NVML(nvmlDeviceGetNvLinkState)(int gpu, unsigned link, unsigned *out)
{
    unsigned code = check(gpu, link);
    if (!code)
        *out = (unsigned)link_up(gpu, (int)link);
    return code;
}

NVML(nvmlDeviceGetNvLinkVersion)(int gpu, unsigned link, unsigned *out)
{
    unsigned code = check(gpu, link);
    if (!code)
        *out = (unsigned)gpu_int(gpu, 0, "nvlink_version");
    return code;
}

NVML(nvmlDeviceGetNvLinkCapability)(int gpu, unsigned link, unsigned capability, unsigned *out)
{
    unsigned code = check(gpu, link);
    if (code || capability > 5)
        return code ? code : INVALID_ARGUMENT;
    if (!link_up(gpu, (int)link))
        return NOT_SUPPORTED;
    *out = capability != 4; /* all but SLI */
    return OK;
}

unsigned sim_nvmlDeviceGetPciInfo_v3(int gpu, struct pci_info *out);

NVML(nvmlDeviceGetNvLinkRemotePciInfo_v2)(int gpu, unsigned link, struct pci_info *out)
{
    int remote;
    unsigned code = check(gpu, link);
    if (code)
        return code;
    if (!link_up(gpu, (int)link))
        return NOT_SUPPORTED;
    if (has_nvswitches())
        return nvswitch_place((int)link, out);
    return sim_nvmlDeviceGetPciInfo_v3(peer_of(gpu, (int)link, &remote), out);
}

NVML(nvmlDeviceGetNvLinkRemoteDeviceType)(int gpu, unsigned link, unsigned *out)
{
    unsigned code = check(gpu, link);
    if (!code)
        *out = !link_up(gpu, (int)link) ? ONE_LINK_END : has_nvswitches() ? 2 : 0; /* a GPU, or a switch */
    return code;
}

NVML(nvmlDeviceGetNvLinkErrorCounter)(int gpu, unsigned link, unsigned counter, unsigned long long *out)
{
    static const char *const names[] = {"replay", "recovery", "crc", "crc_data", "ecc"};
    unsigned code = check(gpu, link);
    if (code || counter >= sizeof names / sizeof *names)
        return code ? code : INVALID_ARGUMENT;
    *out = (unsigned long long)gpu_int(gpu, 0, "link%u.%s", link, names[counter]);
    return OK;
}

/* The same through field values: remote link, errors, speed, state, version. */
unsigned nvlink_field(int gpu, unsigned field, unsigned link, struct field_value *out)
{
    int remote = 0;
    unsigned code = check(gpu, link);
    if (code)
        return code;
    out->value_type = VALUE_UINT;
    switch (field) {
    case 146:
        if (has_nvswitches()) {
            out->value.ui = (uint32_t)gpu; /* the port of the switch */
            return OK;
        }
        if (peer_of(gpu, (int)link, &remote) < 0)
            return NOT_SUPPORTED;
        out->value.ui = (uint32_t)remote;
        return OK;
    case 161:
    case 162:
    case 163:
        out->value_type = VALUE_ULLONG;
        return sim_nvmlDeviceGetNvLinkErrorCounter(gpu, link, field - 161, (unsigned long long *)&out->value.ull);
    case 164:
        out->value.ui = link_up(gpu, (int)link) ? (uint32_t)gpu_int(gpu, 0, "nvlink_mb_s") : 0;
        return OK;
    case 165:
        return sim_nvmlDeviceGetNvLinkState(gpu, link, &out->value.ui);
    case 166:
        return sim_nvmlDeviceGetNvLinkVersion(gpu, link, &out->value.ui);
    }
    return NOT_SUPPORTED;
}
