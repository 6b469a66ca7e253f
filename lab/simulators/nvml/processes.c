/* Who computes on a GPU: those of gpuN.procs=PID:MIB:NAME;... which need not exist, then the processes that have a CUDA
 * context. One without a name here has the one that /proc knows. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "activity.h"
#include "sim.h"
#include "structs.h"

struct running {
    unsigned pid, mib;
    char name[256];
};

static const char *next_running(const char *text, struct running *out)
{
    char *end;
    if (!text || !*text)
        return NULL;
    out->pid = (unsigned)strtoul(text, &end, 10);
    out->mib = *end == ':' ? (unsigned)strtoul(end + 1, &end, 10) : 0;
    end += *end == ':';
    size_t size = strcspn(end, ";");
    snprintf(out->name, sizeof out->name, "%.*s", (int)size, end);
    return end[size] ? end + size + 1 : end + size;
}

/* The program's name as it was called; empty when there is no such process. */
static void name_from_proc(unsigned pid, char *out, size_t size)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *file = fopen(path, "re");
    out[file ? fread(out, 1, size - 1, file) : 0] = 0;
    if (file)
        fclose(file);
}

/* The number-th process of a GPU; 0 when there are fewer. */
static int running_at(int gpu, int number, struct running *out)
{
    for (const char *at = gpu_str(gpu, "procs"); (at = next_running(at, out));)
        if (!number--)
            return 1;
    if (!context_holder(gpu, number, &out->pid, &out->mib))
        return 0;
    name_from_proc(out->pid, out->name, sizeof out->name);
    return 1;
}

/* The number of processes goes to *count; INSUFFICIENT_SIZE when the caller's room is less. */
static unsigned check_room(int gpu, unsigned *count, const void *out)
{
    struct running one;
    unsigned n = 0, room = *count;
    while (running_at(gpu, (int)n, &one))
        n++;
    *count = n;
    return n && (n > room || !out) ? INSUFFICIENT_SIZE : OK;
}

unsigned list_processes(int gpu, unsigned *count, struct listed_process *out)
{
    struct running one;
    unsigned code = check_room(gpu, count, out);
    for (unsigned i = 0; !code && i < *count && running_at(gpu, (int)i, &one); i++) {
        memset(&out[i], 0, sizeof out[i]);
        out[i].pid = one.pid;
        out[i].used_bytes = (uint64_t)one.mib << 20;
        out[i].gpu_instance = out[i].compute_instance = ~0u;
        memcpy(out[i].name, one.name, sizeof one.name);
    }
    return code;
}

NVML(nvmlDeviceGetComputeRunningProcesses_v3)(int gpu, unsigned *count, struct process_info *out)
{
    struct running one;
    unsigned code = check_room(gpu, count, out);
    for (unsigned i = 0; !code && i < *count && running_at(gpu, (int)i, &one); i++)
        out[i] = (struct process_info){one.pid, (uint64_t)one.mib << 20, ~0u, ~0u};
    return code;
}

NVML(nvmlDeviceGetComputeRunningProcesses_v2)(int gpu, unsigned *count, struct process_info *out)
{
    return sim_nvmlDeviceGetComputeRunningProcesses_v3(gpu, count, out);
}

#define NONE_RUNNING(function)                      \
    NVML(function)(int gpu, unsigned *count)        \
    {                                               \
        (void)gpu;                                  \
        *count = 0;                                 \
        return OK;                                  \
    }

NONE_RUNNING(nvmlDeviceGetGraphicsRunningProcesses_v3)
NONE_RUNNING(nvmlDeviceGetGraphicsRunningProcesses_v2)
NONE_RUNNING(nvmlDeviceGetMPSComputeRunningProcesses_v3)
NONE_RUNNING(nvmlDeviceGetMPSComputeRunningProcesses_v2)

static int name_of(unsigned pid, struct running *out)
{
    for (int gpu = 0; gpu < gpu_count(); gpu++)
        for (const char *at = gpu_str(gpu, "procs"); (at = next_running(at, out));)
            if (out->pid == pid && out->name[0])
                return 1;
    return 0;
}

NVML(nvmlSystemGetProcessName)(unsigned pid, char *out, unsigned size)
{
    struct running one = {0};
    if (!size || !out)
        return INVALID_ARGUMENT;
    if (!name_of(pid, &one))
        name_from_proc(pid, one.name, sizeof one.name);
    if (!one.name[0])
        return NOT_FOUND;
    snprintf(out, size, "%s", one.name);
    return OK;
}
