/* Initialisation, CUDA's order of the GPUs, and the contexts of this process. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../nvml/activity.h"
#include "driver.h"

static pthread_mutex_t mutex;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Thread_local int depth;
static int initialised, count, order[MAX_GPUS];
static char contexts[MAX_GPUS];

static void make_mutex(void)
{
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&mutex, &kind);
}

void driver_lock(void)
{
    pthread_once(&once, make_mutex);
    pthread_mutex_lock(&mutex);
    if (!depth++)
        conf_reload();
}

void driver_unlock(void)
{
    depth--;
    pthread_mutex_unlock(&mutex);
}

static int state_of_driver(void)
{
    const char *loaded = driver_loaded();
    long forced = conf_int("fault.cuda.init", SUCCESS);
    if (!loaded)
        return NO_DEVICE;
    if (strcmp(loaded, LIBRARY_VERSION))
        return SYSTEM_DRIVER_MISMATCH;
    if (forced)
        return (int)forced;
    return has_nvswitches() && !fabric_runs() ? SYSTEM_NOT_READY : SUCCESS;
}

static long speed(int gpu)
{
    return gpu_int(gpu, 1, "cores") * gpu_int(gpu, 1, "clock.graphics_max");
}

static int place_before(int a, int b)
{
    struct pci_place one = gpu_place(a), other = gpu_place(b);
    return one.domain != other.domain ? one.domain < other.domain : one.bus < other.bus;
}

/* Fastest first, unless CUDA_DEVICE_ORDER=PCI_BUS_ID. */
static void sort_devices(void)
{
    const char *wanted = getenv("CUDA_DEVICE_ORDER");
    int by_place = wanted && !strcmp(wanted, "PCI_BUS_ID");
    for (int i = 1; i < count; i++)
        for (int j = i; j > 0; j--) {
            int a = order[j - 1], b = order[j];
            int swap = by_place || speed(a) == speed(b) ? place_before(b, a) : speed(b) > speed(a);
            if (!swap)
                break;
            order[j - 1] = b;
            order[j] = a;
        }
}

static int named(const char *word, size_t size)
{
    char *end;
    long number = strtol(word, &end, 10);
    if (end == word + size && end != word)
        return number >= 0 && number < count ? order[number] : -1;
    for (int i = 0; size > 4 && i < count; i++) {
        const char *uuid = gpu_str(order[i], "uuid");
        if (uuid && !strncmp(uuid, word, size))
            return order[i];
    }
    return -1;
}

/* The first word that names no GPU ends the list, as in life. */
static void keep_visible(void)
{
    const char *at = getenv("CUDA_VISIBLE_DEVICES");
    int kept[MAX_GPUS], n = 0;
    if (!at)
        return;
    while (*at && n < count) {
        size_t size = strcspn(at, ",");
        int gpu = named(at, size);
        if (gpu < 0)
            break;
        kept[n++] = gpu;
        at += size + (at[size] == ',');
    }
    memcpy(order, kept, sizeof *kept * (size_t)n);
    count = n;
}

int initialise(void)
{
    int code = initialised ? SUCCESS : state_of_driver();
    if (initialised || code)
        return code;
    clients_join();
    conf_reload();
    handles_scan();
    count = 0;
    for (int index = 0; index < present_count(); index++)
        if (!gpu_int(gpu_of_index(index), 0, "fault.open") && !gpu_without_power(gpu_of_index(index)))
            order[count++] = gpu_of_index(index);
    sort_devices();
    keep_visible();
    if (!count) {
        clients_leave();
        return NO_DEVICE;
    }
    initialised = 1;
    return SUCCESS;
}

int gpu_of(int device)
{
    return initialised && device >= 0 && device < count ? order[device] : -1;
}

int device_of(int gpu)
{
    for (int device = 0; device < count; device++)
        if (order[device] == gpu)
            return device;
    return -1;
}

int has_context(int gpu)
{
    return contexts[gpu];
}

/* The compute mode shuts out: 2 everybody, 1 and 3 whoever comes second. */
static int shut_out(int gpu)
{
    unsigned pid, mib;
    long mode = setting_int(gpu, "compute_mode", 0);
    return mode == 2 || (mode && context_holder(gpu, 0, &pid, &mib) && pid != (unsigned)getpid());
}

int enter_gpu(int gpu)
{
    if (gpu < 0)
        return INVALID_DEVICE;
    if (gpu_int(gpu, 0, "fault") || gpu_without_power(gpu) || gpu_int(gpu, 0, "absent"))
        return contexts[gpu] ? LAUNCH_FAILED : UNKNOWN;
    if (contexts[gpu])
        return SUCCESS;
    if (shut_out(gpu))
        return DEVICES_UNAVAILABLE;
    contexts[gpu] = 1;
    presence_memory(gpu, (unsigned)gpu_int(gpu, 300, "context_mib"));
    return SUCCESS;
}

void leave_device(int device)
{
    int gpu = gpu_of(device);
    if (gpu < 0 || !contexts[gpu])
        return;
    contexts[gpu] = 0;
    streams_forget(gpu);
    memory_forget(gpu);
    peers_forget(gpu);
    presence_memory(gpu, 0);
}

int device_count(void)
{
    return count;
}

/* The release notes' pairing of driver series and CUDA version, as nvidia-smi prints it. */
unsigned sim_nvmlSystemGetCudaDriverVersion(int *out);

int cuda_version_of_driver(void)
{
    int version = 0;
    sim_nvmlSystemGetCudaDriverVersion(&version);
    return version;
}
