/* NVSwitches: nvswitches=N of the board, nvswitch.pci_id and nvswitch.bus_ids. All links of every GPU end at them, and they
 * carry nothing before the fabric manager has configured them; it runs while somebody holds the lock on volatile/fabric. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "sim.h"
#include "structs.h"

int has_nvswitches(void)
{
    return conf_int("nvswitches", 0) > 0;
}

int fabric_runs(void)
{
    int file = open(sim_path("volatile/fabric"), O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    int free = !flock(file, LOCK_SH | LOCK_NB);
    close(file);
    return !free;
}

unsigned nvswitch_place(int link, struct pci_info *out)
{
    const char *list = conf_str("nvswitch.bus_ids"), *id = conf_str("nvswitch.pci_id");
    struct pci_place place;
    char address[16] = "";
    for (long skip = link % conf_int("nvswitches", 1); list && skip > 0; skip--) {
        list = strchr(list, ',');
        list += list != NULL;
    }
    if (!list || !id)
        return NOT_SUPPORTED;
    snprintf(address, sizeof address, "%.12s", list);
    if (!parse_place(address, &place))
        return UNKNOWN_ERROR;
    memset(out, 0, sizeof *out);
    out->domain = place.domain;
    out->bus = place.bus;
    out->device_id = (uint32_t)strtoul(id, NULL, 16) << 16 | 0x10DE;
    snprintf(out->bus_id_legacy, sizeof out->bus_id_legacy, "%04X:%02X:00.0", place.domain & 0xFFFF, place.bus & 0xFF);
    snprintf(out->bus_id, sizeof out->bus_id, "%08X:%02X:00.0", place.domain, place.bus & 0xFF);
    return OK;
}

/* The state of the fabric, told by GPUs from Hopper on. */

enum { FABRIC_NOT_SUPPORTED, FABRIC_NOT_STARTED, FABRIC_IN_PROGRESS, FABRIC_COMPLETED };

struct fabric_info {
    uint8_t cluster[16];
    uint32_t status, clique;
    uint8_t state;
};
SIZED(fabric_info, 28);

struct fabric_info_v2 {
    uint32_t version;
    uint8_t cluster[16];
    uint32_t status, clique;
    uint8_t state;
    uint32_t health;
};
SIZED(fabric_info_v2, 36);

static uint8_t fabric_state(int gpu)
{
    if (gpu_arch(gpu) < HOPPER || !has_nvswitches())
        return FABRIC_NOT_SUPPORTED;
    return fabric_runs() ? FABRIC_COMPLETED : FABRIC_IN_PROGRESS;
}

NVML(nvmlDeviceGetGpuFabricInfo)(int gpu, struct fabric_info *out)
{
    if (!out)
        return INVALID_ARGUMENT;
    memset(out, 0, sizeof *out);
    out->state = fabric_state(gpu);
    return out->state == FABRIC_NOT_SUPPORTED ? NOT_SUPPORTED : OK;
}

NVML(nvmlDeviceGetGpuFabricInfoV)(int gpu, struct fabric_info_v2 *out)
{
    if (!out)
        return INVALID_ARGUMENT;
    if (out->version != VERSION_TAG(fabric_info_v2, 2))
        return ARGUMENT_VERSION_MISMATCH;
    memset((char *)out + sizeof out->version, 0, sizeof *out - sizeof out->version);
    out->state = fabric_state(gpu);
    return out->state == FABRIC_NOT_SUPPORTED ? NOT_SUPPORTED : OK;
}
