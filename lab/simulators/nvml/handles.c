/* Device handles, NVML's order of the GPUs, and where they sit on the bus. gpuN.absent=1 hides a GPU from the next
 * nvmlInit on, as a card that did not come up. In a container a GPU without its device node is hidden too. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "sim.h"

static char devices[MAX_GPUS]; /* the address is the handle, the content nothing */
static int gpu_at[MAX_GPUS], present;

int handle_gpu(word handle)
{
    word first = (word)(uintptr_t)devices;
    return handle >= first && handle < first + (word)gpu_count() ? (int)(handle - first) : -1;
}

void *gpu_handle(int gpu)
{
    return &devices[gpu];
}

/* Whether this is a container that podman or docker marked, and that has the driver's control device. */
static int in_a_container(void)
{
    return (!access("/run/.containerenv", F_OK) || !access("/.dockerenv", F_OK)) && !access("/dev/nvidiactl", F_OK);
}

static int has_node(int gpu)
{
    char path[32];
    snprintf(path, sizeof path, "/dev/nvidia%ld", (long)gpu_int(gpu, gpu, "minor"));
    return !access(path, F_OK);
}

void handles_scan(void)
{
    int by_nodes = in_a_container();
    present = 0;
    for (int gpu = 0; gpu < gpu_count(); gpu++)
        if (!gpu_int(gpu, 0, "absent") && gpu_driven(gpu) && (!by_nodes || has_node(gpu)))
            gpu_at[present++] = gpu;
}

int present_count(void)
{
    return present;
}

int gpu_of_index(int index)
{
    return index >= 0 && index < present ? gpu_at[index] : -1;
}

int index_of_gpu(int gpu)
{
    for (int index = 0; index < present; index++)
        if (gpu_at[index] == gpu && !gpu_int(gpu, 0, "absent"))
            return index;
    return -1;
}

/* "DDDDDDDD:BB:dd.f" or "DDDD:BB:dd.f", the domain and the function may be left out; 0 when it is none. */
int parse_place(const char *text, struct pci_place *out)
{
    int used = 0;
    memset(out, 0, sizeof *out);
    if (!text)
        return 0;
    if (sscanf(text, "%8x:%2x:%2x%n", &out->domain, &out->bus, &out->device, &used) != 3) {
        out->domain = 0;
        used = 0;
        if (sscanf(text, "%2x:%2x%n", &out->bus, &out->device, &used) != 2)
            return 0;
    }
    if (text[used] == '.')
        return sscanf(text + used, ".%1x", &out->function) == 1;
    return text[used] == 0;
}

struct pci_place gpu_place(int gpu)
{
    struct pci_place place;
    parse_place(gpu_str(gpu, "bus_id"), &place);
    return place;
}

int gpu_of_bus_id(const char *text)
{
    struct pci_place wanted, place;
    if (!parse_place(text, &wanted))
        return -1;
    for (int index = 0; index < present; index++) {
        place = gpu_place(gpu_at[index]);
        if (!memcmp(&place, &wanted, sizeof place))
            return gpu_at[index];
    }
    return -1;
}

static unsigned give_handle(int gpu, void **out)
{
    if (gpu < 0)
        return NOT_FOUND;
    if (!out)
        return INVALID_ARGUMENT;
    unsigned code = (unsigned)gpu_int(gpu, gpu_off_the_bus(gpu) ? GPU_IS_LOST : OK, "fault.open");
    if (!code)
        *out = gpu_handle(gpu);
    return code;
}

static int gpu_with(const char *key, const char *wanted)
{
    for (int index = 0; wanted && index < present; index++) {
        const char *value = gpu_str(gpu_at[index], "%s", key);
        if (value && !strcasecmp(value, wanted))
            return gpu_at[index];
    }
    return -1;
}

NVML(nvmlDeviceGetCount_v2)(unsigned *out)
{
    if (!out)
        return INVALID_ARGUMENT;
    *out = (unsigned)present;
    return OK;
}

NVML(nvmlDeviceGetCount)(unsigned *out)
{
    return sim_nvmlDeviceGetCount_v2(out);
}

NVML(nvmlDeviceGetHandleByIndex_v2)(unsigned index, void **out)
{
    int gpu = index < MAX_GPUS ? gpu_of_index((int)index) : -1;
    return gpu < 0 ? INVALID_ARGUMENT : give_handle(gpu, out);
}

NVML(nvmlDeviceGetHandleByIndex)(unsigned index, void **out)
{
    return sim_nvmlDeviceGetHandleByIndex_v2(index, out);
}

NVML(nvmlDeviceGetHandleByUUID)(const char *uuid, void **out)
{
    return give_handle(gpu_with("uuid", uuid), out);
}

NVML(nvmlDeviceGetHandleBySerial)(const char *serial, void **out)
{
    return give_handle(gpu_with("serial", serial), out);
}

NVML(nvmlDeviceGetHandleByPciBusId_v2)(const char *bus_id, void **out)
{
    return give_handle(gpu_of_bus_id(bus_id), out);
}

NVML(nvmlDeviceGetHandleByPciBusId)(const char *bus_id, void **out)
{
    return sim_nvmlDeviceGetHandleByPciBusId_v2(bus_id, out);
}

NVML(nvmlDeviceGetIndex)(int gpu, unsigned *out)
{
    int index = index_of_gpu(gpu);
    if (!out)
        return INVALID_ARGUMENT;
    *out = (unsigned)(index < 0 ? gpu : index);
    return OK;
}

NVML(nvmlGetExcludedDeviceCount)(unsigned *out)
{
    *out = 0;
    return OK;
}
