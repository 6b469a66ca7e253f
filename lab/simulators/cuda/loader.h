/* loader.c: linked into libcudart, libcublas and libnccl. */
#ifndef CUDASIM_LOADER_H
#define CUDASIM_LOADER_H

#include "engine.h"

const struct engine *engine(int *code); /* NULL and a code: no driver, or none that works */

#endif
