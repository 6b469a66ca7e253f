/* memory.c, for the table of functions. */
#ifndef CUDASIM_MEMORY_H
#define CUDASIM_MEMORY_H

#include "driver.h"

int memory_new(int gpu, size_t bytes, void **out);
int memory_free(void *memory);
int memory_holder(const void *memory); /* a GPU, HOST or NOT_OURS */
void memory_amounts(int gpu, size_t *free, size_t *total);
int memory_copy(void *to, int to_gpu, const void *from, int from_gpu, size_t bytes, struct stream *stream);
int memory_fill(void *to, int value, size_t bytes, struct stream *stream);
int memory_repeats(const void *to, const void *from, size_t bytes); /* as in engine.h */
unsigned long memory_writes(void); /* as in engine.h */
void memory_spoil(void *memory, size_t bytes);

#endif
