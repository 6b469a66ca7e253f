/* libcudart: streams and events. */
#include "runtime.h"

typedef int cuda_error;

EXPORT cuda_error cudaStreamCreateWithFlags(struct stream **out, unsigned flags)
{
    DRIVER_OR_RETURN(cuda);
    return note(flags > 1 ? INVALID_VALUE : cuda->stream_new(flags, out));
}

EXPORT cuda_error cudaStreamCreate(struct stream **out)
{
    return cudaStreamCreateWithFlags(out, 0);
}

EXPORT cuda_error cudaStreamCreateWithPriority(struct stream **out, unsigned flags, int priority)
{
    (void)priority;
    return cudaStreamCreateWithFlags(out, flags);
}

EXPORT cuda_error cudaStreamDestroy(struct stream *stream)
{
    DRIVER_OR_RETURN(cuda);
    return note(cuda->stream_free(stream));
}

EXPORT cuda_error cudaStreamSynchronize(struct stream *stream)
{
    DRIVER_OR_RETURN(cuda);
    stream = stream_of(cuda, stream, &code);
    return note(code ? code : cuda->stream_wait(stream));
}

EXPORT cuda_error cudaStreamQuery(struct stream *stream)
{
    DRIVER_OR_RETURN(cuda);
    stream = stream_of(cuda, stream, &code);
    return note(code ? code : cuda->stream_query(stream));
}

EXPORT cuda_error cudaStreamWaitEvent(struct stream *stream, struct event *event, unsigned flags)
{
    (void)flags;
    DRIVER_OR_RETURN(cuda);
    stream = stream_of(cuda, stream, &code);
    code = code || event ? code : INVALID_HANDLE;
    return note(code ? code : cuda->stream_wait_event(stream, event));
}

EXPORT cuda_error cudaEventCreateWithFlags(struct event **out, unsigned flags)
{
    DRIVER_OR_RETURN(cuda);
    code = cuda->enter(cuda->current());
    return note(code ? code : cuda->event_new(flags, out));
}

EXPORT cuda_error cudaEventCreate(struct event **out)
{
    return cudaEventCreateWithFlags(out, 0);
}

EXPORT cuda_error cudaEventDestroy(struct event *event)
{
    DRIVER_OR_RETURN(cuda);
    return note(cuda->event_free(event));
}

EXPORT cuda_error cudaEventRecord(struct event *event, struct stream *stream)
{
    DRIVER_OR_RETURN(cuda);
    stream = stream_of(cuda, stream, &code);
    code = code || event ? code : INVALID_HANDLE;
    return note(code ? code : cuda->event_record(event, stream));
}

EXPORT cuda_error cudaEventSynchronize(struct event *event)
{
    DRIVER_OR_RETURN(cuda);
    return note(event ? cuda->event_wait(event) : INVALID_HANDLE);
}

EXPORT cuda_error cudaEventQuery(struct event *event)
{
    DRIVER_OR_RETURN(cuda);
    return note(event ? cuda->event_query(event) : INVALID_HANDLE);
}

EXPORT cuda_error cudaEventElapsedTime(float *out, struct event *from, struct event *to)
{
    DRIVER_OR_RETURN(cuda);
    return note(from && to ? cuda->event_ms(out, from, to) : INVALID_HANDLE);
}
