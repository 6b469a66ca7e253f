/* What the files of libcudart share. */
#ifndef CUDASIM_RUNTIME_H
#define CUDASIM_RUNTIME_H

#include "../loader.h"

int note(int code); /* keeps an error for cudaGetLastError */
const struct engine *driver(int *code); /* NULL: the code says why; the runtime's own demands included */
struct stream *stream_of(const struct engine *cuda, struct stream *stream, int *code); /* with a context */

#define DRIVER_OR_RETURN(cuda)                 \
    int code;                                  \
    const struct engine *cuda = driver(&code); \
    if (!cuda)                                 \
    return note(code)

#endif
