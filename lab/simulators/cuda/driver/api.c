/* libcuda's own functions: what a program asks to see whether a context can be had at all. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "errors.h"

typedef int cu_result, cu_device;

static int ready(void)
{
    return engine.devices() ? SUCCESS : NOT_INITIALIZED;
}

static int known(cu_device device)
{
    int code = ready();
    return code ? code : device < 0 || device >= engine.devices() ? INVALID_DEVICE : SUCCESS;
}

EXPORT cu_result cuInit(unsigned flags)
{
    return flags ? INVALID_VALUE : engine.initialise();
}

EXPORT cu_result cuDriverGetVersion(int *out)
{
    if (!out)
        return INVALID_VALUE;
    *out = engine.cuda_version();
    return SUCCESS;
}

EXPORT cu_result cuDeviceGetCount(int *out)
{
    int code = ready();
    if (!code)
        *out = engine.devices();
    return code;
}

EXPORT cu_result cuDeviceGet(cu_device *out, int ordinal)
{
    int code = known(ordinal);
    if (!code)
        *out = ordinal;
    return code;
}

EXPORT cu_result cuDeviceGetName(char *out, int size, cu_device device)
{
    int code = known(device);
    const char *name = code ? NULL : engine.device_text(device, "name");
    if (!code)
        snprintf(out, (size_t)size, "%s", name ? name : "");
    return code;
}

EXPORT cu_result cuDeviceGetUuid(unsigned char out[16], cu_device device)
{
    int code = known(device), n = 0;
    const char *at = code ? NULL : engine.device_text(device, "uuid");
    if (!code)
        memset(out, 0, 16);
    for (at = at && !strncmp(at, "GPU-", 4) ? at + 4 : at; at && *at && n < 32; at++) {
        unsigned digit;
        if (sscanf(at, "%1x", &digit) == 1) {
            out[n / 2] = (unsigned char)(out[n / 2] << 4 | digit);
            n++;
        }
    }
    return code;
}

EXPORT cu_result cuDeviceGetUuid_v2(unsigned char out[16], cu_device device)
{
    return cuDeviceGetUuid(out, device);
}

EXPORT cu_result cuDeviceGetPCIBusId(char *out, int size, cu_device device)
{
    int code = known(device);
    if (!code)
        engine.bus_id(device, out, size);
    return code;
}

EXPORT cu_result cuDeviceGetByPCIBusId(cu_device *out, const char *text)
{
    int code = ready();
    *out = code ? 0 : engine.device_of_bus_id(text);
    return code ? code : *out < 0 ? INVALID_DEVICE : SUCCESS;
}

EXPORT cu_result cuDeviceComputeCapability(int *major, int *minor, cu_device device)
{
    int code = known(device);
    const char *text = code ? NULL : engine.device_text(device, "compute_capability");
    if (!code && (!text || sscanf(text, "%d.%d", major, minor) != 2))
        return INVALID_VALUE;
    return code;
}

EXPORT cu_result cuDeviceGetAttribute(int *out, int attribute, cu_device device)
{
    int major = 0, minor = 0, code = cuDeviceComputeCapability(&major, &minor, device);
    struct pci_place place;
    if (code)
        return code;
    driver_lock();
    place = gpu_place(gpu_of(device));
    driver_unlock();
    switch (attribute) {
    case 13: *out = (int)engine.device_number(device, "clock.graphics_max", 0) * 1000; return SUCCESS;
    case 16: *out = (int)engine.device_number(device, "multiprocessors", 0); return SUCCESS;
    case 33: *out = (int)place.bus; return SUCCESS;
    case 34: *out = (int)place.device; return SUCCESS;
    case 50: *out = (int)place.domain; return SUCCESS;
    case 41: *out = 1; return SUCCESS; /* unified addressing */
    case 75: *out = major; return SUCCESS;
    case 76: *out = minor; return SUCCESS;
    }
    *out = 0;
    return SUCCESS;
}

EXPORT cu_result cuDeviceTotalMem_v2(size_t *out, cu_device device)
{
    int code = known(device);
    if (!code)
        *out = (size_t)(engine.device_number(device, "memory_mib", 0) -
                        engine.device_number(device, "memory_reserved_mib", 0)) << 20;
    return code;
}

EXPORT cu_result cuDeviceCanAccessPeer(int *out, cu_device device, cu_device peer)
{
    int code = ready();
    return code ? code : engine.peer_access(device, peer, out);
}

/* A context is its device's number and one, as nothing hangs on it. A context of the runtime's outlives every release. */
static int retained[MAX_GPUS], runtimes[MAX_GPUS];

EXPORT cu_result cuDevicePrimaryCtxRetain(void **out, cu_device device)
{
    int code = known(device);
    if (code)
        return code;
    driver_lock();
    if (!retained[device])
        runtimes[device] = has_context(gpu_of(device));
    code = engine.enter(device);
    retained[device] += !code;
    driver_unlock();
    if (!code)
        *out = (void *)(uintptr_t)(device + 1);
    return code;
}

EXPORT cu_result cuDevicePrimaryCtxRelease_v2(cu_device device)
{
    int code = known(device);
    if (code)
        return code;
    driver_lock();
    code = retained[device] ? SUCCESS : INVALID_CONTEXT;
    if (!code && !--retained[device] && !runtimes[device])
        engine.leave(device);
    driver_unlock();
    return code;
}

EXPORT cu_result cuDevicePrimaryCtxRelease(cu_device device)
{
    return cuDevicePrimaryCtxRelease_v2(device);
}

EXPORT cu_result cuDevicePrimaryCtxGetState(cu_device device, unsigned *flags, int *active)
{
    int code = known(device);
    if (code)
        return code;
    *flags = 0;
    driver_lock();
    *active = has_context(gpu_of(device));
    driver_unlock();
    return SUCCESS;
}

EXPORT cu_result cuCtxSetCurrent(void *context)
{
    int code = ready();
    return code || !context ? code : engine.set_current((int)(uintptr_t)context - 1);
}

EXPORT cu_result cuCtxGetCurrent(void **out)
{
    int code = ready();
    if (!code)
        *out = (void *)(uintptr_t)(engine.current() + 1);
    return code;
}

EXPORT cu_result cuCtxCreate_v2(void **out, unsigned flags, cu_device device)
{
    (void)flags;
    int code = cuDevicePrimaryCtxRetain(out, device);
    return code ? code : cuCtxSetCurrent(*out);
}

EXPORT cu_result cuCtxDestroy_v2(void *context)
{
    return cuDevicePrimaryCtxRelease_v2((int)(uintptr_t)context - 1);
}

EXPORT cu_result cuCtxGetDevice(cu_device *out)
{
    int code = ready();
    if (!code)
        *out = engine.current();
    return code;
}

EXPORT cu_result cuCtxSynchronize(void)
{
    int code = ready();
    return code ? code : engine.device_wait(engine.current());
}

EXPORT cu_result cuMemGetInfo_v2(size_t *free, size_t *total)
{
    int code = ready();
    return code ? code : engine.memory(engine.current(), free, total);
}

EXPORT cu_result cuMemAlloc_v2(void **out, size_t bytes)
{
    int code = ready();
    return code ? code : engine.allocate(engine.current(), bytes, out);
}

EXPORT cu_result cuMemFree_v2(void *memory)
{
    return engine.release(memory);
}

static int copy_and_wait(void *to, const void *from, size_t bytes)
{
    struct stream *stream = engine.resolve(NULL, engine.current());
    int code = stream ? engine.copy(to, NOT_OURS, from, NOT_OURS, bytes, stream) : NOT_INITIALIZED;
    return code ? code : engine.stream_wait(stream);
}

EXPORT cu_result cuMemcpyHtoD_v2(void *to, const void *from, size_t bytes)
{
    return copy_and_wait(to, from, bytes);
}

EXPORT cu_result cuMemcpyDtoH_v2(void *to, const void *from, size_t bytes)
{
    return copy_and_wait(to, from, bytes);
}

EXPORT cu_result cuGetErrorName(int code, const char **out)
{
    *out = driver_error_name(code);
    return *out ? SUCCESS : INVALID_VALUE;
}

EXPORT cu_result cuGetErrorString(int code, const char **out)
{
    *out = driver_error_name(code) ? error_text(code) : NULL;
    return *out ? SUCCESS : INVALID_VALUE;
}

EXPORT cu_result cuGetExportTable(const void **out, const void *identity)
{
    if (memcmp(identity, ENGINE_TABLE, sizeof ENGINE_TABLE))
        return INVALID_VALUE;
    *out = &engine;
    return SUCCESS;
}
