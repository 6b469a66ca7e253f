/* Multi-instance GPUs. model.mig says of how many slices of its processors a GPU consists; its memory has one more.
 *
 *   gpuN.mig.mode=1          in nvram up to Ampere, else in volatile: it then ends with the driver
 *   gpuN.mig.pending=0|1     a mode that waits: the GPU was in use, or mig.needs_boot=1 (a guest that cannot reset it)
 *   gpuN.mig.gi.ID=P:S       a GPU instance: number of its profile, and its first slice of memory
 *   gpuN.mig.ci.ID.N=P:S     a compute instance of it: number of its profile, and its first slice of processors
 *   gpuN.mig.no_room=ID      the driver lists the profile with this id, and refuses an instance of it
 * Instances end with the driver (gpuN.mig.load is driver.instance). Profiles, placements and what the functions refuse:
 * NVIDIA's MIG user guide; the profiles are those of an A100, scaled to the GPU's memory. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim.h"
#include "structs.h"

enum { IN_USE = 19, RESET_REQUIRED = 16, INSUFFICIENT_RESOURCES = 23, GIS = 8, CIS = 8, MEMORY_SLICES = 8 };

static const struct profile {
    unsigned number, id, slices, memory, most, starts[8]; /* number: NVML's; memory: slices; starts: 99 is the end */
    const char *suffix;
} profiles[] = {
    {0, 19, 1, 1, 7, {0, 1, 2, 3, 4, 5, 6, 99}, ""},
    {7, 20, 1, 1, 1, {0, 1, 2, 3, 4, 5, 6, 99}, "+me"},
    {9, 15, 1, 2, 4, {0, 2, 4, 6, 99}, ""},
    {1, 14, 2, 2, 3, {0, 2, 4, 99}, ""},
    {2, 9, 3, 4, 2, {0, 4, 99}, ""},
    {3, 5, 4, 4, 1, {0, 99}, ""},
    {4, 0, 7, 8, 1, {0, 99}, ""},
};
enum { PROFILES = sizeof profiles / sizeof *profiles };

static const struct { unsigned number, slices; } parts[] = {{0, 1}, {1, 2}, {2, 3}, {3, 4}, {4, 7}};
enum { PARTS = sizeof parts / sizeof *parts };

static char gpu_instances[MAX_GPUS * GIS], compute_instances[MAX_GPUS * GIS * CIS], devices[MAX_GPUS * GIS * CIS];

struct instance { int profile, start; };

static int has_mig(int gpu)
{
    return gpu_int(gpu, 0, "mig") != 0;
}

static int of_this_driver(int gpu)
{
    return gpu_int(gpu, -1, "mig.load") == driver_instance();
}

static int keeps_mode(int gpu)
{
    return gpu_arch(gpu) <= AMPERE;
}

/* A mode that waits for a boot counts when volatile/state is another one than that in which it was asked for. */
static unsigned mode_now(int gpu)
{
    long mode = keeps_mode(gpu) || of_this_driver(gpu) ? gpu_int(gpu, 0, "mig.mode") : 0;
    const char *asked_in = gpu_str(gpu, "mig.pending_in"), *now = conf_str("boot.token");
    int due = asked_in && now && strcmp(asked_in, now);
    return (unsigned)(keeps_mode(gpu) && due ? gpu_int(gpu, mode, "mig.pending") : mode);
}

static int in_use(int gpu)
{
    unsigned count = 0;
    unsigned sim_nvmlDeviceGetComputeRunningProcesses_v3(int, unsigned *, struct process_info *);
    return sim_nvmlDeviceGetComputeRunningProcesses_v3(gpu, &count, NULL) == INSUFFICIENT_SIZE;
}

static int gi_at(int gpu, int id, struct instance *out)
{
    const char *text = of_this_driver(gpu) && mode_now(gpu) ? gpu_str(gpu, "mig.gi.%d", id) : NULL;
    return text && sscanf(text, "%d:%d", &out->profile, &out->start) == 2;
}

static int ci_at(int gpu, int gi, int id, struct instance *out)
{
    struct instance of;
    const char *text = gi_at(gpu, gi, &of) ? gpu_str(gpu, "mig.ci.%d.%d", gi, id) : NULL;
    return text && sscanf(text, "%d:%d", &out->profile, &out->start) == 2;
}

static int instances_of(int gpu)
{
    struct instance one;
    int count = 0;
    for (int id = 0; id < GIS; id++)
        count += gi_at(gpu, id, &one);
    return count;
}

static int number_of(const char *handles, size_t size, word handle)
{
    word first = (word)(uintptr_t)handles;
    return handle >= first && handle < first + size ? (int)(handle - first) : -1;
}

/* --- the mode */

NVML(nvmlDeviceGetMigMode)(int gpu, unsigned *current, unsigned *pending)
{
    if (!has_mig(gpu))
        return NOT_SUPPORTED;
    *current = mode_now(gpu);
    *pending = (unsigned)gpu_int(gpu, *current, "mig.pending");
    return OK;
}

static void forget_instances(int gpu)
{
    char prefix[32];
    for (const char *const *kind = (const char *const[]){"gi", "ci", NULL}; *kind; kind++) {
        snprintf(prefix, sizeof prefix, "gpu%d.mig.%s.", gpu, *kind);
        edit_drop_prefix(VOLATILE, prefix);
    }
}

NVML(nvmlDeviceSetMigMode)(int gpu, unsigned mode, unsigned *activation)
{
    if (!has_mig(gpu))
        return NOT_SUPPORTED;
    if (geteuid())
        return NO_PERMISSION;
    if (mode > 1)
        return INVALID_ARGUMENT;
    *activation = OK;
    if (mode != mode_now(gpu) && (in_use(gpu) || instances_of(gpu)))
        *activation = IN_USE;
    else if (mode != mode_now(gpu) && gpu_int(gpu, 0, "mig.needs_boot"))
        *activation = RESET_REQUIRED;
    unsigned code = (unsigned)edit_begin();
    if (code)
        return code;
    enum store store = keeps_mode(gpu) ? NVRAM : VOLATILE;
    if (*activation) {
        gpu_put(gpu, store, "mig.mode", "%u", mode_now(gpu));
        gpu_put(gpu, store, "mig.pending", "%u", mode);
        gpu_put(gpu, store, "mig.pending_in", "%s", conf_str("boot.token") ? conf_str("boot.token") : "");
        return (unsigned)edit_commit();
    }
    if (mode != mode_now(gpu) || !of_this_driver(gpu)) {
        forget_instances(gpu);
        gpu_put(gpu, VOLATILE, "mig.load", "%ld", driver_instance());
    }
    gpu_put(gpu, store, "mig.mode", "%s", mode ? "1" : "");
    gpu_put(gpu, store, "mig.pending", "%s", "");
    gpu_put(gpu, store, "mig.pending_in", "%s", "");
    return (unsigned)edit_commit();
}

/* --- profiles and placements */

static const struct profile *with_number(unsigned number)
{
    for (int i = 0; i < PROFILES; i++)
        if (profiles[i].number == number)
            return &profiles[i];
    return NULL;
}

static const struct profile *with_id(unsigned id)
{
    for (int i = 0; i < PROFILES; i++)
        if (profiles[i].id == id)
            return &profiles[i];
    return NULL;
}

/* The memory of a profile as its name says it: a share of what the data sheet says, in GB. */
static unsigned named_gb(int gpu, const struct profile *profile)
{
    unsigned total = (unsigned)(gpu_int(gpu, 0, "memory_mib") / 1000 / 4 * 4);
    total = total == 140 || total == 144 ? 141 : total == 184 || total == 180 ? 180 : total;
    return (total * profile->memory * 2 + MEMORY_SLICES) / (2 * MEMORY_SLICES);
}

static uint64_t memory_mib(int gpu, const struct profile *profile)
{
    return (uint64_t)gpu_int(gpu, 0, "memory_mib") * profile->memory / MEMORY_SLICES;
}

static unsigned processors(int gpu, unsigned slices)
{
    unsigned all = (unsigned)gpu_int(gpu, 0, "cores") / (gpu_arch(gpu) >= HOPPER ? 128 : 64);
    return all / 7 / 2 * 2 * slices;
}

static void name_profile(int gpu, const struct profile *profile, unsigned compute, char *out, size_t size)
{
    char part[16] = "";
    if (compute != profile->slices)
        snprintf(part, sizeof part, "%uc.", compute);
    snprintf(out, size, "MIG %s%ug.%ugb%s", part, profile->slices, named_gb(gpu, profile), profile->suffix);
}

static unsigned fill_profile(int gpu, unsigned number, unsigned *out)
{
    const struct profile *profile = with_number(number);
    if (!has_mig(gpu) || !profile)
        return NOT_SUPPORTED;
    const unsigned values[10] = {profile->id, 0, profile->slices, profile->most, processors(gpu, profile->slices),
                                 profile->slices, profile->memory / 2, 0, 0, 0};
    memcpy(out, values, sizeof values);
    return OK;
}

struct profile_info { unsigned values[10]; uint64_t memory_mib; };
struct profile_info_v2 { unsigned version, values[10]; uint64_t memory_mib; char name[96]; };
SIZED(profile_info_v2, 0x98);

NVML(nvmlDeviceGetGpuInstanceProfileInfo)(int gpu, unsigned number, struct profile_info *out)
{
    unsigned code = fill_profile(gpu, number, out->values);
    if (!code)
        out->memory_mib = memory_mib(gpu, with_number(number));
    return code;
}

NVML(nvmlDeviceGetGpuInstanceProfileInfoV)(int gpu, unsigned number, struct profile_info_v2 *out)
{
    if (out->version != VERSION_TAG(profile_info_v2, 2))
        return ARGUMENT_VERSION_MISMATCH;
    unsigned code = fill_profile(gpu, number, out->values);
    if (code)
        return code;
    out->memory_mib = memory_mib(gpu, with_number(number));
    name_profile(gpu, with_number(number), with_number(number)->slices, out->name, sizeof out->name);
    return OK;
}

struct placement { unsigned start, size; };

NVML(nvmlDeviceGetGpuInstancePossiblePlacements_v2)(int gpu, unsigned id, struct placement *out, unsigned *count)
{
    const struct profile *profile = with_id(id);
    if (!has_mig(gpu) || !mode_now(gpu) || !profile)
        return NOT_SUPPORTED;
    unsigned n = 0;
    for (; profile->starts[n] != 99; n++)
        if (out)
            out[n] = (struct placement){profile->starts[n], profile->memory};
    *count = n;
    return OK;
}

/* --- GPU instances */

static int is_free(int gpu, const struct profile *profile, unsigned start)
{
    struct instance other;
    unsigned same = 0, slices = profile->slices;
    for (int id = 0; id < GIS; id++) {
        if (!gi_at(gpu, id, &other))
            continue;
        const struct profile *of = with_number((unsigned)other.profile);
        same += of == profile;
        slices += of->slices;
        if (start < (unsigned)other.start + of->memory && (unsigned)other.start < start + profile->memory)
            return 0;
    }
    return same < profile->most && slices <= (unsigned)gpu_int(gpu, 0, "mig");
}

NVML(nvmlDeviceGetGpuInstanceRemainingCapacity)(int gpu, unsigned id, unsigned *out)
{
    const struct profile *profile = with_id(id);
    if (!has_mig(gpu) || !mode_now(gpu) || !profile)
        return NOT_SUPPORTED;
    *out = 0;
    for (const unsigned *start = profile->starts; *start != 99; start++)
        *out += (unsigned)is_free(gpu, profile, *start);
    return OK;
}

static unsigned create_gi(int gpu, unsigned id, const struct placement *placement, void **out)
{
    const struct profile *profile = with_id(id);
    struct instance one;
    char key[32];
    if (!has_mig(gpu) || !mode_now(gpu) || !profile)
        return NOT_SUPPORTED;
    if (geteuid())
        return NO_PERMISSION;
    if (gpu_int(gpu, -1, "mig.no_room") == (long)id)
        return INSUFFICIENT_RESOURCES;
    const unsigned *start = profile->starts;
    while (*start != 99 && !((!placement || placement->start == *start) && is_free(gpu, profile, *start)))
        start++;
    if (*start == 99)
        return INSUFFICIENT_RESOURCES;
    int free_id = profile->slices == 7 ? 0 : 1;
    while (free_id < GIS && gi_at(gpu, free_id, &one))
        free_id++;
    if (free_id == GIS)
        return INSUFFICIENT_RESOURCES;
    unsigned code = (unsigned)edit_begin();
    if (code)
        return code;
    if (!of_this_driver(gpu))
        forget_instances(gpu);
    gpu_put(gpu, VOLATILE, "mig.load", "%ld", driver_instance());
    snprintf(key, sizeof key, "mig.gi.%d", free_id);
    gpu_put(gpu, VOLATILE, key, "%u:%u", profile->number, *start);
    *out = &gpu_instances[gpu * GIS + free_id];
    return (unsigned)edit_commit();
}

NVML(nvmlDeviceCreateGpuInstance)(int gpu, unsigned id, void **out)
{
    return create_gi(gpu, id, NULL, out);
}

NVML(nvmlDeviceCreateGpuInstanceWithPlacement)(int gpu, unsigned id, const struct placement *placement, void **out)
{
    return create_gi(gpu, id, placement, out);
}

NVML(nvmlDeviceGetGpuInstances)(int gpu, unsigned id, void **out, unsigned *count)
{
    struct instance one;
    const struct profile *profile = with_id(id);
    if (!has_mig(gpu) || !mode_now(gpu) || !profile)
        return NOT_SUPPORTED;
    *count = 0;
    for (int gi = 0; gi < GIS; gi++)
        if (gi_at(gpu, gi, &one) && one.profile == (int)profile->number)
            out[(*count)++] = &gpu_instances[gpu * GIS + gi];
    return OK;
}

NVML(nvmlDeviceGetGpuInstanceById)(int gpu, unsigned gi, void **out)
{
    struct instance one;
    if (gi >= GIS || !gi_at(gpu, (int)gi, &one))
        return NOT_FOUND;
    *out = &gpu_instances[gpu * GIS + (int)gi];
    return OK;
}

static int find_gi(word handle, int *gpu, int *gi, struct instance *out)
{
    int number = number_of(gpu_instances, sizeof gpu_instances, handle);
    *gpu = number / GIS;
    *gi = number % GIS;
    return number >= 0 && gi_at(*gpu, *gi, out);
}

struct gi_info { void *device; unsigned id, profile; struct placement placement; };

NVML(nvmlGpuInstanceGetInfo)(word handle, struct gi_info *out)
{
    struct instance one;
    int gpu, gi;
    if (!find_gi(handle, &gpu, &gi, &one))
        return INVALID_ARGUMENT;
    const struct profile *profile = with_number((unsigned)one.profile);
    *out = (struct gi_info){gpu_handle(gpu), (unsigned)gi, profile->id, {(unsigned)one.start, profile->memory}};
    return OK;
}

NVML(nvmlGpuInstanceDestroy)(word handle)
{
    struct instance one;
    int gpu, gi;
    char key[32];
    if (!find_gi(handle, &gpu, &gi, &one))
        return INVALID_ARGUMENT;
    if (geteuid())
        return NO_PERMISSION;
    for (int ci = 0; ci < CIS; ci++)
        if (ci_at(gpu, gi, ci, &one))
            return IN_USE;
    unsigned code = (unsigned)edit_begin();
    if (code)
        return code;
    snprintf(key, sizeof key, "mig.gi.%d", gi);
    gpu_put(gpu, VOLATILE, key, "%s", "");
    return (unsigned)edit_commit();
}

/* --- compute instances. The id of a profile is its number */

static unsigned part_slices(unsigned number)
{
    for (int i = 0; i < PARTS; i++)
        if (parts[i].number == number)
            return parts[i].slices;
    return 0;
}

static unsigned slices_left(int gpu, int gi, const struct profile *of, unsigned *next)
{
    struct instance one;
    unsigned used = 0;
    for (int ci = 0; ci < CIS; ci++)
        if (ci_at(gpu, gi, ci, &one))
            used += part_slices((unsigned)one.profile);
    *next = used;
    return of->slices - used;
}

struct part_info { unsigned values[9]; };
struct part_info_v2 { unsigned version, values[9]; char name[96]; };
SIZED(part_info_v2, 0x88);

static unsigned fill_part(word handle, unsigned number, unsigned engines, unsigned *out, char *name)
{
    struct instance one;
    int gpu, gi;
    unsigned slices = part_slices(number);
    if (!find_gi(handle, &gpu, &gi, &one))
        return INVALID_ARGUMENT;
    const struct profile *of = with_number((unsigned)one.profile);
    if (!slices || slices > of->slices || engines)
        return NOT_SUPPORTED;
    const unsigned values[9] = {number, slices, of->slices / slices, processors(gpu, slices), of->slices, 0, 0, 0, 0};
    memcpy(out, values, sizeof values);
    if (name)
        name_profile(gpu, of, slices, name, 96);
    return OK;
}

NVML(nvmlGpuInstanceGetComputeInstanceProfileInfo)(word handle, unsigned number, unsigned engines, struct part_info *out)
{
    return fill_part(handle, number, engines, out->values, NULL);
}

NVML(nvmlGpuInstanceGetComputeInstanceProfileInfoV)
(word handle, unsigned number, unsigned engines, struct part_info_v2 *out)
{
    if (out->version != VERSION_TAG(part_info_v2, 2))
        return ARGUMENT_VERSION_MISMATCH;
    return fill_part(handle, number, engines, out->values, out->name);
}

NVML(nvmlGpuInstanceCreateComputeInstance)(word handle, unsigned number, void **out)
{
    struct instance of, one;
    int gpu, gi, ci = 0;
    unsigned next = 0, slices = part_slices(number);
    char key[32];
    if (!find_gi(handle, &gpu, &gi, &of))
        return INVALID_ARGUMENT;
    if (geteuid())
        return NO_PERMISSION;
    if (!slices)
        return NOT_SUPPORTED;
    if (slices > slices_left(gpu, gi, with_number((unsigned)of.profile), &next))
        return INSUFFICIENT_RESOURCES;
    while (ci_at(gpu, gi, ci, &one))
        ci++;
    unsigned code = (unsigned)edit_begin();
    if (code)
        return code;
    snprintf(key, sizeof key, "mig.ci.%d.%d", gi, ci);
    gpu_put(gpu, VOLATILE, key, "%u:%u", number, next);
    *out = &compute_instances[(gpu * GIS + gi) * CIS + ci];
    return (unsigned)edit_commit();
}

NVML(nvmlGpuInstanceGetComputeInstances)(word handle, unsigned number, void **out, unsigned *count)
{
    struct instance one;
    int gpu, gi;
    if (!find_gi(handle, &gpu, &gi, &one))
        return INVALID_ARGUMENT;
    *count = 0;
    for (int ci = 0; ci < CIS; ci++)
        if (ci_at(gpu, gi, ci, &one) && one.profile == (int)number)
            out[(*count)++] = &compute_instances[(gpu * GIS + gi) * CIS + ci];
    return OK;
}

struct ci_info { void *device, *gpu_instance; unsigned id, profile; struct placement placement; };

static int find_ci(const char *handles, size_t size, word handle, int *gpu, int *gi, int *ci, struct instance *out)
{
    int number = number_of(handles, size, handle);
    *ci = number % CIS;
    *gi = number / CIS % GIS;
    *gpu = number / CIS / GIS;
    return number >= 0 && ci_at(*gpu, *gi, *ci, out);
}

NVML(nvmlComputeInstanceGetInfo_v2)(word handle, struct ci_info *out)
{
    struct instance one;
    int gpu, gi, ci;
    if (!find_ci(compute_instances, sizeof compute_instances, handle, &gpu, &gi, &ci, &one))
        return INVALID_ARGUMENT;
    *out = (struct ci_info){gpu_handle(gpu), &gpu_instances[gpu * GIS + gi], (unsigned)ci, (unsigned)one.profile,
                            {(unsigned)one.start, part_slices((unsigned)one.profile)}};
    return OK;
}

NVML(nvmlComputeInstanceDestroy)(word handle)
{
    struct instance one;
    int gpu, gi, ci;
    char key[32];
    if (!find_ci(compute_instances, sizeof compute_instances, handle, &gpu, &gi, &ci, &one))
        return INVALID_ARGUMENT;
    if (geteuid())
        return NO_PERMISSION;
    if (in_use(gpu))
        return IN_USE;
    unsigned code = (unsigned)edit_begin();
    if (code)
        return code;
    snprintf(key, sizeof key, "mig.ci.%d.%d", gi, ci);
    gpu_put(gpu, VOLATILE, key, "%s", "");
    return (unsigned)edit_commit();
}

/* --- MIG devices: a compute instance as a device of its own */

NVML(nvmlDeviceGetMaxMigDeviceCount)(int gpu, unsigned *out)
{
    *out = (unsigned)gpu_int(gpu, 0, "mig");
    return OK;
}

NVML(nvmlDeviceGetMigDeviceHandleByIndex)(int gpu, unsigned index, void **out)
{
    struct instance one;
    unsigned seen = 0;
    if (!has_mig(gpu))
        return NOT_SUPPORTED;
    for (int number = 0; number < GIS * CIS; number++)
        if (ci_at(gpu, number / CIS, number % CIS, &one) && seen++ == index) {
            *out = &devices[gpu * GIS * CIS + number];
            return OK;
        }
    return NOT_FOUND;
}

int is_mig_device(word handle)
{
    return number_of(devices, sizeof devices, handle) >= 0;
}

struct device_attributes {
    unsigned processors, copy_engines, decoders, encoders, jpeg, ofa, slices, compute_slices;
    uint64_t memory_mib;
};

/* What a MIG device answers; for all else NVML says that it is not supported, as on real ones for most. */
unsigned mig_device_call(const char *name, word handle, word b, word c)
{
    struct instance of, one;
    int gpu, gi, ci;
    if (!find_ci(devices, sizeof devices, handle, &gpu, &gi, &ci, &one) || !gi_at(gpu, gi, &of))
        return INVALID_ARGUMENT;
    const struct profile *profile = with_number((unsigned)of.profile);
    unsigned slices = part_slices((unsigned)one.profile);
    char text[160];
    if (!strcmp(name, "nvmlDeviceGetName")) {
        char label[64];
        name_profile(gpu, profile, slices, label, sizeof label);
        snprintf(text, sizeof text, "%s %s", gpu_str(gpu, "name"), label);
    } else if (!strcmp(name, "nvmlDeviceGetUUID")) {
        const char *uuid = gpu_str(gpu, "uuid"); /* GPU-xxxxxxxx-...: another one for each instance */
        snprintf(text, sizeof text, "MIG-%02x%02x%s", gi, ci, uuid + 8);
    } else if (!strcmp(name, "nvmlDeviceIsMigDeviceHandle")) {
        *(unsigned *)b = 1;
        return OK;
    } else if (!strcmp(name, "nvmlDeviceGetGpuInstanceId")) {
        *(unsigned *)b = (unsigned)gi;
        return OK;
    } else if (!strcmp(name, "nvmlDeviceGetComputeInstanceId")) {
        *(unsigned *)b = (unsigned)ci;
        return OK;
    } else if (!strcmp(name, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle")) {
        *(void **)b = gpu_handle(gpu);
        return OK;
    } else if (!strcmp(name, "nvmlDeviceGetAttributes_v2")) {
        *(struct device_attributes *)b = (struct device_attributes){
            processors(gpu, slices), slices, profile->memory / 2, 0, 0, 0, profile->slices, slices, memory_mib(gpu, profile)};
        return OK;
    } else if (!strcmp(name, "nvmlDeviceGetMemoryInfo")) {
        uint64_t total = memory_mib(gpu, profile) << 20;
        *(struct memory *)b = (struct memory){total, total - (12 << 20), 12 << 20};
        return OK;
    } else if (!strcmp(name, "nvmlDeviceGetMemoryInfo_v2")) {
        uint64_t total = memory_mib(gpu, profile) << 20;
        *(struct memory_v2 *)b = (struct memory_v2){VERSION_TAG(memory_v2, 2), total, 0, total - (12 << 20), 12 << 20};
        return OK;
    } else {
        return NOT_SUPPORTED;
    }
    if (strlen(text) >= c)
        return INSUFFICIENT_SIZE;
    strcpy((char *)b, text);
    return OK;
}
