/* Memory of GPUs and pinned memory of the host, and the copies between them. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "../../nvml/activity.h"
#include "memory.h"

#define MIB ((size_t)1 << 20)
#define COPY_EFFORT 15     /* percent of full power */
#define CORRUPT_EVERY 65536 /* bytes */

struct block {
    char *at;
    size_t bytes;
    int gpu; /* HOST: pinned */
    struct block *next;
};

static struct block *blocks;
static unsigned long writes;
static struct {
    const char *to, *from;
    size_t bytes;
} last; /* what was copied last, if nothing else was written since */

static struct block *block_of(const void *memory)
{
    for (struct block *block = blocks; block; block = block->next)
        if ((const char *)memory >= block->at && (const char *)memory < block->at + block->bytes)
            return block;
    return NULL;
}

size_t memory_held(int gpu)
{
    size_t sum = 0;
    for (struct block *block = blocks; block; block = block->next)
        sum += block->gpu == gpu ? block->bytes : 0;
    return sum;
}

static void announce(int gpu)
{
    if (gpu != HOST)
        presence_memory(gpu, (unsigned)((size_t)gpu_int(gpu, 300, "context_mib") + memory_held(gpu) / MIB));
}

void memory_amounts(int gpu, size_t *free, size_t *total)
{
    long mib = gpu_int(gpu, 0, "memory_mib") - gpu_int(gpu, 0, "memory_reserved_mib");
    long used = gpu_int(gpu, 0, "memory_used_mib") + (long)gpu_load(gpu).mib;
    *total = (size_t)mib * MIB;
    *free = used < mib ? (size_t)(mib - used) * MIB : 0;
}

/* Reserved, not touched: most of it never holds anything. */
int memory_new(int gpu, size_t bytes, void **out)
{
    size_t left = 0, total;
    if (gpu != HOST)
        memory_amounts(gpu, &left, &total);
    if (gpu != HOST && bytes > left)
        return OUT_OF_MEMORY;
    struct block *block = malloc(sizeof *block);
    void *at = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!block || at == MAP_FAILED)
        return OUT_OF_MEMORY;
    *block = (struct block){at, bytes ? bytes : 1, gpu, blocks};
    blocks = block;
    *out = at;
    announce(gpu);
    return SUCCESS;
}

int memory_free(void *memory)
{
    last.bytes = 0;
    writes++;
    for (struct block **link = &blocks; *link; link = &(*link)->next) {
        struct block *block = *link;
        if (block->at != memory)
            continue;
        *link = block->next;
        munmap(block->at, block->bytes);
        announce(block->gpu);
        free(block);
        return SUCCESS;
    }
    return memory ? INVALID_VALUE : SUCCESS;
}

void memory_forget(int gpu)
{
    last.bytes = 0;
    writes++;
    for (struct block **link = &blocks; *link;) {
        struct block *block = *link;
        if (block->gpu != gpu) {
            link = &block->next;
            continue;
        }
        *link = block->next;
        munmap(block->at, block->bytes);
        free(block);
    }
}

unsigned long memory_writes(void)
{
    return writes;
}

int memory_holder(const void *memory)
{
    struct block *block = block_of(memory);
    return block ? block->gpu : NOT_OURS;
}

static int reaches_too_far(const void *memory, size_t bytes)
{
    struct block *block = block_of(memory);
    return block && (const char *)memory + bytes > block->at + block->bytes;
}

/* Programs write to pinned memory by themselves, so only copies between GPUs are known to be repeated. */
int memory_repeats(const void *to, const void *from, size_t bytes)
{
    const char *target = to, *source = from;
    writes++;
    int same = bytes && last.bytes == bytes && last.to == target && last.from == source;
    int apart = target + bytes <= source || source + bytes <= target;
    last.to = target;
    last.from = source;
    last.bytes = apart && memory_holder(to) >= 0 && memory_holder(from) >= 0 ? bytes : 0;
    return same;
}

void memory_spoil(void *memory, size_t bytes)
{
    last.bytes = 0;
    writes++;
    for (size_t at = 0; at < bytes; at += CORRUPT_EVERY)
        ((char *)memory)[at] ^= 0x10;
}

static int copy_between_gpus(int to, int from, size_t bytes, struct stream *stream, int *spoilt)
{
    int direct = can_access(from, to) && peer_enabled(from, to);
    struct path path = pair_path(from, to, direct);
    enum pair_fault fault = direct ? fault_of_pair(from, to) : NO_FAULT;
    uint64_t end = fault == HANGS ? NEVER : occupy(from, to, bytes, &path, stream_start(stream));
    int code = enter_gpu(from);
    code = code ? code : enter_gpu(to);
    if (code)
        return code;
    *spoilt = fault == CORRUPTS;
    presence_busy(stream->gpu == from ? to : from, real_now(), end, COPY_EFFORT);
    stream_until(stream, end, COPY_EFFORT);
    return SUCCESS;
}

static int copy_with_host(int gpu, int upward, int pinned, size_t bytes, struct stream *stream)
{
    struct path path = host_path(gpu, pinned);
    int code = enter_gpu(gpu);
    if (!code)
        stream_until(stream, occupy(upward ? gpu : HOST, upward ? HOST : gpu, bytes, &path, stream_start(stream)),
                     COPY_EFFORT);
    return code;
}

/* The holders may be given (they then must be right) or be NOT_OURS. */
int memory_copy(void *to, int to_gpu, const void *from, int from_gpu, size_t bytes, struct stream *stream)
{
    int target = memory_holder(to), source = memory_holder(from), spoilt = 0, code = SUCCESS;
    if ((to_gpu >= 0 && target != to_gpu) || (from_gpu >= 0 && source != from_gpu) || !to || !from ||
        reaches_too_far(to, bytes) || reaches_too_far(from, bytes))
        return INVALID_VALUE;
    if (target >= 0 && source >= 0 && target != source) {
        code = copy_between_gpus(target, source, bytes, stream, &spoilt);
    } else if (target >= 0 && source >= 0) {
        struct path path = pair_path(target, target, 1);
        stream_until(stream, occupy(target, target, bytes, &path, stream_start(stream)), COPY_EFFORT);
    } else if (target >= 0 || source >= 0) {
        int pinned = (target >= 0 ? source : target) == HOST;
        code = copy_with_host(target >= 0 ? target : source, source >= 0, pinned, bytes, stream);
    }
    if (code)
        return code;
    uint64_t began = real_now();
    if (!memory_repeats(to, from, bytes))
        memmove(to, from, bytes);
    if (spoilt)
        memory_spoil(to, bytes);
    clock_moved(began);
    return SUCCESS;
}

int memory_fill(void *to, int value, size_t bytes, struct stream *stream)
{
    int gpu = memory_holder(to);
    if (gpu == NOT_OURS || reaches_too_far(to, bytes))
        return INVALID_VALUE;
    uint64_t began = real_now();
    if (gpu >= 0)
        stream_until(stream, stream_start(stream) + 1000 + (uint64_t)((double)bytes / (0.8 * memory_gb_s(gpu))),
                     COPY_EFFORT);
    last.bytes = 0;
    writes++;
    memset(to, value, bytes);
    clock_moved(began);
    return SUCCESS;
}
