/* libcudart: memory and copies. */
#include "runtime.h"

typedef int cuda_error;
enum kind { HOST_TO_HOST, HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE, BY_ADDRESS };

EXPORT cuda_error cudaMalloc(void **out, size_t bytes)
{
    DRIVER_OR_RETURN(cuda);
    return note(out ? cuda->allocate(cuda->current(), bytes, out) : INVALID_VALUE);
}

EXPORT cuda_error cudaFree(void *memory)
{
    DRIVER_OR_RETURN(cuda);
    if (!memory) /* how programs ask for a context */
        return note(cuda->enter(cuda->current()));
    return note(cuda->release(memory));
}

EXPORT cuda_error cudaHostAlloc(void **out, size_t bytes, unsigned flags)
{
    (void)flags;
    DRIVER_OR_RETURN(cuda);
    code = cuda->enter(cuda->current());
    return note(code ? code : cuda->allocate(HOST, bytes, out));
}

EXPORT cuda_error cudaMallocHost(void **out, size_t bytes)
{
    return cudaHostAlloc(out, bytes, 0);
}

EXPORT cuda_error cudaFreeHost(void *memory)
{
    DRIVER_OR_RETURN(cuda);
    return note(cuda->release(memory));
}

EXPORT cuda_error cudaMemGetInfo(size_t *free, size_t *total)
{
    DRIVER_OR_RETURN(cuda);
    return note(cuda->memory(cuda->current(), free, total));
}

static int check_kind(const struct engine *cuda, const void *to, const void *from, int kind)
{
    int target = cuda->holder(to) >= 0, source = cuda->holder(from) >= 0;
    if (kind == BY_ADDRESS)
        return SUCCESS;
    if (kind < HOST_TO_HOST || kind > BY_ADDRESS)
        return INVALID_VALUE;
    return target == (kind == HOST_TO_DEVICE || kind == DEVICE_TO_DEVICE) && source == (kind >= DEVICE_TO_HOST)
               ? SUCCESS
               : INVALID_VALUE;
}

static int copy(void *to, const void *from, size_t bytes, int kind, struct stream *stream, int wait)
{
    DRIVER_OR_RETURN(cuda);
    stream = stream_of(cuda, stream, &code);
    code = code ? code : check_kind(cuda, to, from, kind);
    code = code ? code : cuda->copy(to, NOT_OURS, from, NOT_OURS, bytes, stream);
    return note(code || !wait ? code : cuda->stream_wait(stream));
}

EXPORT cuda_error cudaMemcpy(void *to, const void *from, size_t bytes, int kind)
{
    return copy(to, from, bytes, kind, NULL, 1);
}

EXPORT cuda_error cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, struct stream *stream)
{
    return copy(to, from, bytes, kind, stream, 0);
}

static int copy_peer(void *to, int to_device, const void *from, int from_device, size_t bytes, struct stream *stream,
                     int wait)
{
    DRIVER_OR_RETURN(cuda);
    if (to_device < 0 || from_device < 0 || to_device >= cuda->devices() || from_device >= cuda->devices())
        return note(INVALID_DEVICE);
    stream = stream_of(cuda, stream, &code);
    code = code ? code : cuda->copy(to, to_device, from, from_device, bytes, stream);
    return note(code || !wait ? code : cuda->stream_wait(stream));
}

EXPORT cuda_error cudaMemcpyPeer(void *to, int to_device, const void *from, int from_device, size_t bytes)
{
    return copy_peer(to, to_device, from, from_device, bytes, NULL, 1);
}

EXPORT cuda_error
cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes, struct stream *stream)
{
    return copy_peer(to, to_device, from, from_device, bytes, stream, 0);
}

static int fill(void *to, int value, size_t bytes, struct stream *stream, int wait)
{
    DRIVER_OR_RETURN(cuda);
    stream = stream_of(cuda, stream, &code);
    code = code ? code : cuda->fill(to, value, bytes, stream);
    return note(code || !wait ? code : cuda->stream_wait(stream));
}

EXPORT cuda_error cudaMemset(void *to, int value, size_t bytes)
{
    return fill(to, value, bytes, NULL, 1);
}

EXPORT cuda_error cudaMemsetAsync(void *to, int value, size_t bytes, struct stream *stream)
{
    return fill(to, value, bytes, stream, 0);
}
