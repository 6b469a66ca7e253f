/* What belongs to the driver as a whole: versions, and the names of errors. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

static unsigned give(const char *text, char *out, unsigned size)
{
    if (!out)
        return INVALID_ARGUMENT;
    if (strlen(text) >= size)
        return INSUFFICIENT_SIZE;
    strcpy(out, text);
    return OK;
}

/* The CUDA version of a driver series, as its nvidia-smi prints it (release notes). */
static int cuda_version(void)
{
    static const struct {
        int series, cuda;
    } known[] = {{580, 13000}, {575, 12090}, {570, 12080}, {565, 12070}, {560, 12060}, {555, 12050}, {550, 12040},
                 {545, 12030}, {535, 12020}, {530, 12010}, {525, 12000}, {520, 11080}, {515, 11070}, {510, 11060},
                 {495, 11050}, {470, 11040}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (atoi(LIBRARY_VERSION) >= known[i].series)
            return known[i].cuda;
    return 11000;
}

NVML(nvmlSystemGetDriverVersion)(char *out, unsigned size)
{
    return give(LIBRARY_VERSION, out, size);
}

NVML(nvmlSystemGetNVMLVersion)(char *out, unsigned size)
{
    char text[80];
    snprintf(text, sizeof text, "%d.%s", cuda_version() / 1000, LIBRARY_VERSION);
    return give(text, out, size);
}

NVML(nvmlSystemGetCudaDriverVersion)(int *out)
{
    *out = cuda_version();
    return OK;
}

NVML(nvmlSystemGetCudaDriverVersion_v2)(int *out)
{
    *out = cuda_version();
    return OK;
}

EXPORTED const char *nvmlErrorString(unsigned code)
{
    static const char *const texts[] = {
        "Success",
        "Uninitialized",
        "Invalid Argument",
        "Not Supported",
        "Insufficient Permissions",
        "Already Initialized",
        "Not Found",
        "Insufficient Size",
        "Insufficient External Power",
        "Driver Not Loaded",
        "Timeout",
        "Interrupt Request Issue",
        "NVML Shared Library Not Found",
        "Function Not Found",
        "Corrupted infoROM",
        "GPU is lost",
        "GPU requires reset",
        "GPU access blocked by the operating system",
        "Driver/library version mismatch",
        "In use by another client",
        "Insufficient Memory",
        "No data",
        "The requested vgpu operation is not available on target device because ECC is enabled",
        "Insufficient Resources",
        "Requested frequency is not supported",
        "Argument version mismatch",
        "Deprecated",
        "Not Ready",
        "GPU not found",
        "Invalid State",
    };
    return code < sizeof texts / sizeof *texts ? texts[code] : "Unknown Error";
}
