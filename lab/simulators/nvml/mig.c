/* Multi-instance GPUs: model.mig says into how many a GPU could be split; it never is. */
#include "sim.h"

NVML(nvmlDeviceGetMigMode)(int gpu, unsigned *current, unsigned *pending)
{
    if (!gpu_int(gpu, 0, "mig"))
        return NOT_SUPPORTED;
    *current = *pending = 0;
    return OK;
}

NVML(nvmlDeviceGetMaxMigDeviceCount)(int gpu, unsigned *out)
{
    *out = (unsigned)gpu_int(gpu, 0, "mig");
    return OK;
}

NVML(nvmlDeviceGetMigDeviceHandleByIndex)(int gpu, unsigned index, void **out)
{
    (void)index, (void)out;
    return gpu_int(gpu, 0, "mig") ? NOT_FOUND : NOT_SUPPORTED;
}
