/* What a GPU is: names, numbers, place, link to the host. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"
#include "structs.h"

#define TEXT(function, key)                                            \
    NVML(function)(int gpu, char *out, unsigned size)                  \
    {                                                                  \
        return give_text(gpu, key, out, size);                         \
    }
#define NUMBER(function, key)                                          \
    NVML(function)(int gpu, unsigned *out)                             \
    {                                                                  \
        return give_int(gpu, key, out);                                \
    }

TEXT(nvmlDeviceGetName, "name")
TEXT(nvmlDeviceGetUUID, "uuid")
TEXT(nvmlDeviceGetSerial, "serial")
TEXT(nvmlDeviceGetVbiosVersion, "vbios")
TEXT(nvmlDeviceGetBoardPartNumber, "board_part")
TEXT(nvmlDeviceGetInforomImageVersion, "inforom.image")
NUMBER(nvmlDeviceGetBrand, "brand")
NUMBER(nvmlDeviceGetArchitecture, "arch")
NUMBER(nvmlDeviceGetModuleId, "module_id")
NUMBER(nvmlDeviceGetNumGpuCores, "cores")
NUMBER(nvmlDeviceGetMemoryBusWidth, "memory_bus_bits")
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "pcie.gen_max")
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "pcie.width_max")

NVML(nvmlDeviceGetInforomVersion)(int gpu, unsigned object, char *out, unsigned size)
{
    static const char *const keys[] = {"inforom.oem", "inforom.ecc", "inforom.power"};
    return object < 3 ? give_text(gpu, keys[object], out, size) : NOT_SUPPORTED;
}

NVML(nvmlDeviceGetGspFirmwareVersion)(int gpu, char *out)
{
    if (!gpu_int(gpu, 0, "gsp"))
        return NOT_SUPPORTED;
    strcpy(out, LIBRARY_VERSION);
    return OK;
}

NVML(nvmlDeviceGetCudaComputeCapability)(int gpu, int *major, int *minor)
{
    const char *value = gpu_str(gpu, "compute_capability");
    return value && sscanf(value, "%d.%d", major, minor) == 2 ? OK : NOT_SUPPORTED;
}

NVML(nvmlDeviceGetMinorNumber)(int gpu, unsigned *out)
{
    *out = (unsigned)gpu_int(gpu, gpu, "minor");
    return OK;
}

NVML(nvmlDeviceGetMultiGpuBoard)(int gpu, unsigned *out)
{
    *out = (unsigned)gpu_int(gpu, 0, "multi_gpu_board");
    return OK;
}

NVML(nvmlDeviceGetBoardId)(int gpu, unsigned *out)
{
    struct pci_place place = gpu_place(gpu);
    *out = place.domain << 16 | place.bus << 8 | place.device;
    return OK;
}

NVML(nvmlDeviceGetBusType)(int gpu, unsigned *out)
{
    (void)gpu;
    *out = 2; /* PCI Express */
    return OK;
}

static unsigned pci_id(int gpu)
{
    const char *id = gpu_str(gpu, "pci_id");
    return (id ? (unsigned)strtoul(id, NULL, 16) : 0) << 16 | 0x10DE;
}

static unsigned subsystem_id(int gpu)
{
    const char *id = gpu_str(gpu, "pci_subsystem");
    return id ? (unsigned)strtoul(id, NULL, 16) : 0;
}

static void fill_old_fields(int gpu, struct pci_info *out)
{
    struct pci_place place = gpu_place(gpu);
    snprintf(out->bus_id_legacy, sizeof out->bus_id_legacy, "%04X:%02X:%02X.0", place.domain & 0xFFFF,
             place.bus & 0xFF, place.device & 0xFF);
    out->domain = place.domain;
    out->bus = place.bus;
    out->device = place.device;
    out->device_id = pci_id(gpu);
    out->subsystem_id = subsystem_id(gpu);
}

NVML(nvmlDeviceGetPciInfo)(int gpu, struct pci_info *out)
{
    fill_old_fields(gpu, out);
    return OK;
}

NVML(nvmlDeviceGetPciInfo_v2)(int gpu, struct pci_info *out)
{
    fill_old_fields(gpu, out);
    return OK;
}

NVML(nvmlDeviceGetPciInfo_v3)(int gpu, struct pci_info *out)
{
    fill_old_fields(gpu, out);
    snprintf(out->bus_id, sizeof out->bus_id, "%08X:%02X:%02X.0", out->domain, out->bus & 0xFF, out->device & 0xFF);
    return OK;
}

NVML(nvmlDeviceGetPciInfoExt)(int gpu, struct pci_info_ext *out)
{
    if (out->version != VERSION_TAG(pci_info_ext, 1))
        return ARGUMENT_VERSION_MISMATCH;
    struct pci_place place = gpu_place(gpu);
    out->domain = place.domain;
    out->bus = place.bus;
    out->device = place.device;
    out->device_id = pci_id(gpu);
    out->subsystem_id = subsystem_id(gpu);
    out->base_class = 3;
    out->sub_class = (unsigned)gpu_int(gpu, 0, "pci_subclass");
    snprintf(out->bus_id, sizeof out->bus_id, "%08X:%02X:%02X.0", place.domain, place.bus & 0xFF,
             place.device & 0xFF);
    return OK;
}

/* PCIe: the link falls back to pcie.gen_idle without load; pcie.gen_now and pcie.width_now override (a bad riser). */

NVML(nvmlDeviceGetCurrPcieLinkGeneration)(int gpu, unsigned *out)
{
    long full = gpu_int(gpu, 3, "pcie.gen_max");
    long idle = gpu_int(gpu, full, "pcie.gen_idle");
    *out = (unsigned)gpu_int(gpu, gpu_now(gpu).util ? full : idle, "pcie.gen_now");
    return OK;
}

NVML(nvmlDeviceGetGpuMaxPcieLinkGeneration)(int gpu, unsigned *out)
{
    *out = (unsigned)gpu_int(gpu, gpu_int(gpu, 3, "pcie.gen_max"), "pcie.gen_gpu");
    return OK;
}

NVML(nvmlDeviceGetCurrPcieLinkWidth)(int gpu, unsigned *out)
{
    *out = (unsigned)gpu_int(gpu, gpu_int(gpu, 16, "pcie.width_max"), "pcie.width_now");
    return OK;
}

static unsigned transfer_rate(long generation)
{
    static const unsigned mb_s[] = {0, 2500, 5000, 8000, 16000, 32000};
    return generation > 0 && generation < 6 ? mb_s[generation] : 0;
}

NVML(nvmlDeviceGetPcieSpeed)(int gpu, unsigned *out)
{
    sim_nvmlDeviceGetCurrPcieLinkGeneration(gpu, out);
    *out = transfer_rate(*out);
    return OK;
}

NVML(nvmlDeviceGetPcieLinkMaxSpeed)(int gpu, unsigned *out)
{
    *out = (unsigned)gpu_int(gpu, 3, "pcie.gen_max"); /* the enumeration counts as the generations do */
    return OK;
}

NVML(nvmlDeviceGetPcieReplayCounter)(int gpu, unsigned *out)
{
    *out = (unsigned)gpu_int(gpu, 0, "pcie.replays");
    return OK;
}

NVML(nvmlDeviceGetPcieThroughput)(int gpu, unsigned counter, unsigned *out)
{
    if (counter > 1)
        return INVALID_ARGUMENT;
    *out = (unsigned)gpu_int(gpu, 0, counter ? "pcie.rx_kb_s" : "pcie.tx_kb_s");
    return OK;
}
