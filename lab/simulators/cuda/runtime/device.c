/* libcudart: devices, peer access, errors. cudaGetDeviceProperties is left out: its struct changes with the versions. */
#include <stdio.h>

#include "../driver/errors.h"
#include "runtime.h"

typedef int cuda_error;

static _Thread_local int last;

int note(int code)
{
    if (code && code != NOT_READY)
        last = code;
    return code;
}

const struct engine *driver(int *code)
{
    const struct engine *cuda = engine(code);
    if (cuda && cuda->cuda_version() / 1000 < CUDART_VERSION / 1000) {
        *code = INSUFFICIENT_DRIVER;
        return NULL;
    }
    return cuda;
}

struct stream *stream_of(const struct engine *cuda, struct stream *stream, int *code)
{
    struct stream *found = NULL;
    *code = cuda->enter(cuda->current());
    if (!*code) {
        found = cuda->resolve(stream, cuda->current());
        *code = found ? SUCCESS : INVALID_HANDLE;
    }
    return found;
}

EXPORT cuda_error cudaRuntimeGetVersion(int *out)
{
    *out = CUDART_VERSION;
    return SUCCESS;
}

EXPORT cuda_error cudaDriverGetVersion(int *out)
{
    int code;
    const struct engine *cuda = engine(&code);
    *out = cuda ? cuda->cuda_version() : 0; /* 0: no driver */
    return SUCCESS;
}

EXPORT cuda_error cudaGetDeviceCount(int *out)
{
    *out = 0;
    DRIVER_OR_RETURN(cuda);
    *out = cuda->devices();
    return SUCCESS;
}

EXPORT cuda_error cudaSetDevice(int device)
{
    DRIVER_OR_RETURN(cuda);
    return note(cuda->set_current(device));
}

EXPORT cuda_error cudaGetDevice(int *out)
{
    DRIVER_OR_RETURN(cuda);
    *out = cuda->current();
    return SUCCESS;
}

EXPORT cuda_error cudaDeviceReset(void)
{
    DRIVER_OR_RETURN(cuda);
    cuda->leave(cuda->current());
    return SUCCESS;
}

EXPORT cuda_error cudaDeviceSynchronize(void)
{
    DRIVER_OR_RETURN(cuda);
    code = cuda->enter(cuda->current());
    return note(code ? code : cuda->device_wait(cuda->current()));
}

EXPORT cuda_error cudaDeviceGetPCIBusId(char *out, int size, int device)
{
    DRIVER_OR_RETURN(cuda);
    if (device < 0 || device >= cuda->devices())
        return note(INVALID_DEVICE);
    cuda->bus_id(device, out, size);
    return SUCCESS;
}

EXPORT cuda_error cudaDeviceGetByPCIBusId(int *out, const char *text)
{
    DRIVER_OR_RETURN(cuda);
    *out = cuda->device_of_bus_id(text);
    return note(*out < 0 ? INVALID_DEVICE : SUCCESS);
}

EXPORT cuda_error cudaDeviceGetAttribute(int *out, int attribute, int device)
{
    int major = 0, minor = 0;
    DRIVER_OR_RETURN(cuda);
    const char *text = cuda->device_text(device, "compute_capability");
    if (!text || sscanf(text, "%d.%d", &major, &minor) != 2)
        return note(INVALID_DEVICE);
    switch (attribute) {
    case 13: *out = (int)cuda->device_number(device, "clock.graphics_max", 0) * 1000; break;
    case 16: *out = (int)cuda->device_number(device, "multiprocessors", 0); break;
    case 41: *out = 1; break;
    case 75: *out = major; break;
    case 76: *out = minor; break;
    default: *out = 0;
    }
    return SUCCESS;
}

EXPORT cuda_error cudaDeviceCanAccessPeer(int *out, int device, int peer)
{
    DRIVER_OR_RETURN(cuda);
    return note(cuda->peer_access(device, peer, out));
}

EXPORT cuda_error cudaDeviceGetP2PAttribute(int *out, int attribute, int device, int peer)
{
    struct pair pair;
    DRIVER_OR_RETURN(cuda);
    code = cuda->pair(device, peer, &pair);
    if (code)
        return note(code);
    switch (attribute) {
    case 1: *out = pair.links ? 0 : 1; break; /* rank of performance: the lower the better */
    case 2: *out = pair.accessible; break;
    case 3:
    case 4: *out = pair.accessible && pair.links; break; /* atomics, arrays */
    default: return note(INVALID_VALUE);
    }
    return SUCCESS;
}

EXPORT cuda_error cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    DRIVER_OR_RETURN(cuda);
    return note(flags ? INVALID_VALUE : cuda->enable_peer(cuda->current(), peer, 1));
}

EXPORT cuda_error cudaDeviceDisablePeerAccess(int peer)
{
    DRIVER_OR_RETURN(cuda);
    return note(cuda->enable_peer(cuda->current(), peer, 0));
}

EXPORT cuda_error cudaGetLastError(void)
{
    int code = last;
    last = SUCCESS;
    return code;
}

EXPORT cuda_error cudaPeekAtLastError(void)
{
    return last;
}

EXPORT const char *cudaGetErrorName(cuda_error error)
{
    return runtime_error_name(error);
}

EXPORT const char *cudaGetErrorString(cuda_error error)
{
    return error_text(error);
}
