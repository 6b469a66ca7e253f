/* Modes of a GPU that are on or off, and those that this simulation says it has not. */
#include <stdint.h>
#include <unistd.h>

#include "sim.h"

NVML(nvmlDeviceGetPersistenceMode)(int gpu, unsigned *out)
{
    *out = (unsigned)setting_int(gpu, "persistence", 0);
    return OK;
}

static unsigned set_mode(int gpu, const char *name, unsigned value)
{
    unsigned code = (unsigned)setting_begin(gpu);
    if (code)
        return code;
    setting_put(gpu, name, value);
    return (unsigned)edit_commit();
}

NVML(nvmlDeviceSetPersistenceMode)(int gpu, unsigned mode)
{
    return mode > 1 ? INVALID_ARGUMENT : set_mode(gpu, "persistence", mode);
}

NVML(nvmlDeviceGetComputeMode)(int gpu, unsigned *out)
{
    *out = (unsigned)setting_int(gpu, "compute_mode", 0);
    return OK;
}

NVML(nvmlDeviceSetComputeMode)(int gpu, unsigned mode)
{
    return mode > 3 || mode == 1 ? INVALID_ARGUMENT : set_mode(gpu, "compute_mode", mode);
}

NVML(nvmlDeviceGetDisplayMode)(int gpu, unsigned *out)
{
    *out = (unsigned)gpu_int(gpu, 0, "display_mode");
    return OK;
}

NVML(nvmlDeviceGetDisplayActive)(int gpu, unsigned *out)
{
    *out = (unsigned)gpu_int(gpu, 0, "display_active");
    return OK;
}

NVML(nvmlDeviceGetVirtualizationMode)(int gpu, unsigned *out)
{
    *out = (unsigned)gpu_int(gpu, 0, "virtualization"); /* 0 none, 1 pass-through */
    return OK;
}

NVML(nvmlDeviceGetAccountingMode)(int gpu, unsigned *out)
{
    (void)gpu;
    *out = 0;
    return OK;
}

NVML(nvmlDeviceGetAccountingBufferSize)(int gpu, unsigned *out)
{
    (void)gpu;
    *out = 4000;
    return OK;
}

NVML(nvmlDeviceGetAccountingPids)(int gpu, unsigned *count, unsigned *pids)
{
    (void)gpu, (void)pids;
    *count = 0;
    return OK;
}

NVML(nvmlDeviceIsMigDeviceHandle)(int gpu, unsigned *out)
{
    (void)gpu;
    *out = 0;
    return OK;
}

NVML(nvmlDeviceGetAPIRestriction)(int gpu, unsigned api, unsigned *out)
{
    if (api || !clock_default(gpu, 0))
        return NOT_SUPPORTED;
    *out = 1; /* application clocks are root's */
    return OK;
}

NVML(nvmlDeviceValidateInforom)(int gpu)
{
    return gpu_str(gpu, "inforom.image") ? OK : NOT_SUPPORTED;
}
