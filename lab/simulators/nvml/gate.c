/* The one way in: every exported call passes here. Faults are injected here, for all calls alike:
 *   fault.call.NAME=CODE           that call fails, on every GPU
 *   gpuN.fault.call.NAME=CODE      that call fails on that GPU
 *   gpuN.fault=CODE                every call on that GPU fails but its location and index (lost under a client)
 *   gpuN.fault.open=CODE           no handle is given for it (lost before this process); see handles.c
 *   gpuN.fault.delay_ms=N          every call on that GPU first takes that long (a hanging ioctl)
 *   gpuN.fault.deaf=1              its setters say OK and set nothing (gpu.c)
 * NVMLSIM_TRACE=FILE appends one line per call. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int users; /* nvmlInit calls not yet undone */

void sim_lock(void)
{
    pthread_mutex_lock(&mutex);
}

void sim_unlock(void)
{
    pthread_mutex_unlock(&mutex);
}

static void trace(const char *name, int gpu, unsigned code)
{
    const char *path = secure_getenv("NVMLSIM_TRACE");
    FILE *file = path ? fopen(path, "ae") : NULL;
    if (!file)
        return;
    fprintf(file, "%d %s gpu=%d %u\n", (int)getpid(), name, gpu, code);
    fclose(file);
}

static unsigned forced(const char *name, int gpu)
{
    static const char *const always_known[] = {"nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfoExt",
                                               "nvmlDeviceGetPciInfo", "nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetIndex"};
    char key[160];
    snprintf(key, sizeof key, "fault.call.%s", name);
    long code = conf_int(key, OK);
    if (!code && gpu >= 0)
        code = gpu_int(gpu, OK, "fault.call.%s", name);
    if (code || gpu < 0)
        return (unsigned)code;
    for (size_t i = 0; i < sizeof always_known / sizeof *always_known; i++)
        if (!strcmp(name, always_known[i]))
            return OK;
    return (unsigned)gpu_int(gpu, index_of_gpu(gpu) < 0 || gpu_off_the_bus(gpu) ? GPU_IS_LOST : OK, "fault");
}

static void hang(int gpu)
{
    long delay_ms = gpu >= 0 ? gpu_int(gpu, 0, "fault.delay_ms") : 0;
    if (delay_ms <= 0)
        return;
    sim_unlock();
    usleep((useconds_t)delay_ms * 1000);
    sim_lock();
}

static unsigned call_unlocked(nvml_call call, word a, word b, word c, word d, word e, word f)
{
    sim_unlock();
    unsigned code = call ? call(a, b, c, d, e, f) : NOT_SUPPORTED;
    sim_lock();
    return code;
}

unsigned gate(const char *name, int flags, nvml_call call, word a, word b, word c, word d, word e, word f)
{
    int gpu = -1;
    unsigned code;
    sim_lock();
    conf_reload();
    if (!users && !(flags & BEFORE_INIT)) {
        code = UNINITIALIZED;
    } else if ((flags & FIRST_IS_DEVICE) && is_mig_device && is_mig_device(a)) {
        code = mig_device_call(name, a, b, c);
    } else if ((flags & FIRST_IS_DEVICE) && (gpu = handle_gpu(a)) < 0) {
        code = INVALID_ARGUMENT;
    } else {
        hang(gpu);
        code = forced(name, gpu);
        if (!code && (flags & WAITS))
            code = call_unlocked(call, a, b, c, d, e, f);
        else if (!code)
            code = call ? call((flags & FIRST_IS_DEVICE) ? (word)gpu : a, b, c, d, e, f) : NOT_SUPPORTED;
    }
    trace(name, gpu, code);
    sim_unlock();
    return code;
}

/* Initialisation stands here as it owns the count of users. */

/* What the kernel module writes to the kernel log when a library of another version calls. */
static void log_mismatch(const char *loaded)
{
    char text[400];
    int log = open(sim_path("kernel/klog"), O_WRONLY | O_CLOEXEC);
    if (log < 0)
        return;
    int size = snprintf(text, sizeof text,
                        "<3>NVRM: API mismatch: the client has the version %s, but\n"
                        "NVRM: this kernel module has the version %s.  Please\n"
                        "NVRM: make sure that this kernel module and all NVIDIA driver\n"
                        "NVRM: components have the same version.",
                        LIBRARY_VERSION, loaded);
    if (write(log, text, (size_t)size) != size)
        trace("kernel log", -1, UNKNOWN_ERROR);
    close(log);
}

static unsigned driver_state(void)
{
    const char *loaded = driver_loaded();
    if (!loaded)
        return DRIVER_NOT_LOADED;
    if (!strcmp(loaded, LIBRARY_VERSION))
        return OK;
    log_mismatch(loaded);
    return LIB_RM_VERSION_MISMATCH;
}

NVML(nvmlInitWithFlags)(void)
{
    unsigned code = users ? OK : driver_state();
    if (code)
        return code;
    if (!users++) {
        clients_join();
        conf_reload();
        handles_scan();
    }
    return OK;
}

NVML(nvmlInit)(void)
{
    return sim_nvmlInitWithFlags();
}

NVML(nvmlInit_v2)(void)
{
    return sim_nvmlInitWithFlags();
}

NVML(nvmlShutdown)(void)
{
    if (!--users)
        clients_leave();
    return OK;
}
