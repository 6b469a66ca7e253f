/* Memory and its health: use, ECC, retired pages (up to Turing), remapped rows (from Ampere).
 *
 * Counters are ecc.vol.* (gone with the power) and ecc.agg.* (nvram) plus corr or unc plus dram, sram, l1, l2,
 * registers, texture, cbu: gpu1.ecc.vol.unc.dram=3. A changed ECC mode waits for the next boot or reset: it counts
 * when volatile/state is another one (boot.token) than the one in which it was asked for. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "activity.h"
#include "sim.h"
#include "structs.h"

#define MIB ((uint64_t)1 << 20)

static struct memory_v2 memory_now(int gpu)
{
    struct memory_v2 now = {0};
    now.total = (uint64_t)gpu_int(gpu, 0, "memory_mib") * MIB;
    now.reserved = (uint64_t)gpu_int(gpu, 0, "memory_reserved_mib") * MIB;
    now.used = ((uint64_t)gpu_int(gpu, 0, "memory_used_mib") + gpu_load(gpu).mib) * MIB;
    now.free = now.total - now.reserved - now.used;
    return now;
}

NVML(nvmlDeviceGetMemoryInfo)(int gpu, struct memory *out)
{
    struct memory_v2 now = memory_now(gpu);
    *out = (struct memory){now.total, now.free, now.used + now.reserved};
    return OK;
}

NVML(nvmlDeviceGetMemoryInfo_v2)(int gpu, struct memory_v2 *out)
{
    if (out->version != VERSION_TAG(memory_v2, 2))
        return ARGUMENT_VERSION_MISMATCH;
    *out = memory_now(gpu);
    out->version = VERSION_TAG(memory_v2, 2);
    return OK;
}

struct bar1_memory {
    uint64_t total, free, used;
};

NVML(nvmlDeviceGetBAR1MemoryInfo)(int gpu, struct bar1_memory *out)
{
    uint64_t total = (uint64_t)gpu_int(gpu, 256, "bar1_mib") * MIB, used = 2 * MIB;
    *out = (struct bar1_memory){total, total - used, used};
    return OK;
}

NVML(nvmlDeviceGetConfComputeProtectedMemoryUsage)(int gpu, struct memory *out)
{
    (void)gpu;
    *out = (struct memory){0, 0, 0};
    return OK;
}

static int has_ecc(int gpu)
{
    return gpu_int(gpu, 0, "ecc") != 0;
}

static int ecc_change_due(int gpu)
{
    const char *asked_in = gpu_str(gpu, "ecc.pending_in"), *now = conf_str("boot.token");
    return !asked_in || !now || strcmp(asked_in, now);
}

static unsigned ecc_mode(int gpu)
{
    long mode = gpu_int(gpu, 1, "ecc.mode");
    return (unsigned)(ecc_change_due(gpu) ? gpu_int(gpu, mode, "ecc.pending") : mode);
}

NVML(nvmlDeviceGetEccMode)(int gpu, unsigned *current, unsigned *pending)
{
    if (!has_ecc(gpu))
        return NOT_SUPPORTED;
    *current = ecc_mode(gpu);
    *pending = (unsigned)gpu_int(gpu, *current, "ecc.pending");
    return OK;
}

NVML(nvmlDeviceGetDefaultEccMode)(int gpu, unsigned *out)
{
    *out = 1;
    return has_ecc(gpu) ? OK : NOT_SUPPORTED;
}

NVML(nvmlDeviceSetEccMode)(int gpu, unsigned mode)
{
    if (!has_ecc(gpu))
        return NOT_SUPPORTED;
    if (geteuid())
        return NO_PERMISSION;
    unsigned code = (unsigned)edit_begin();
    if (code)
        return code;
    char token[32];
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(token, sizeof token, "%lld.%09ld", (long long)now.tv_sec, now.tv_nsec);
    unsigned current = ecc_mode(gpu);
    if (!conf_str("boot.token"))
        edit_put(VOLATILE, "boot.token", token);
    gpu_put(gpu, NVRAM, "ecc.mode", "%u", current);
    gpu_put(gpu, NVRAM, "ecc.pending", "%u", mode ? 1 : 0);
    gpu_put(gpu, NVRAM, "ecc.pending_in", "%s", conf_str("boot.token"));
    return (unsigned)edit_commit();
}

static const char *const locations[] = {"l1", "l2", "dram", "registers", "texture", "shared", "cbu", "sram"};

static int location_known(int gpu, unsigned location)
{
    if (gpu_arch(gpu) >= AMPERE)
        return location == 2 || location == 7;
    return location <= 4 || location == 6;
}

static unsigned long long ecc_count(int gpu, unsigned kind, unsigned counter, unsigned location)
{
    return (unsigned long long)gpu_int(gpu, 0, "ecc.%s.%s.%s", counter ? "agg" : "vol", kind ? "unc" : "corr",
                                       locations[location]);
}

NVML(nvmlDeviceGetMemoryErrorCounter)
(int gpu, unsigned kind, unsigned counter, unsigned location, unsigned long long *out)
{
    if (kind > 1 || counter > 1 || location > 7)
        return INVALID_ARGUMENT;
    if (!has_ecc(gpu) || !ecc_mode(gpu) || !location_known(gpu, location))
        return NOT_SUPPORTED;
    *out = ecc_count(gpu, kind, counter, location);
    return OK;
}

NVML(nvmlDeviceGetTotalEccErrors)(int gpu, unsigned kind, unsigned counter, unsigned long long *out)
{
    if (kind > 1 || counter > 1)
        return INVALID_ARGUMENT;
    if (!has_ecc(gpu) || !ecc_mode(gpu))
        return NOT_SUPPORTED;
    *out = 0;
    for (unsigned location = 0; location < 8; location++)
        *out += location_known(gpu, location) ? ecc_count(gpu, kind, counter, location) : 0;
    return OK;
}

NVML(nvmlDeviceGetDetailedEccErrors)(int gpu, unsigned kind, unsigned counter, struct ecc_counts *out)
{
    if (!has_ecc(gpu) || !ecc_mode(gpu))
        return NOT_SUPPORTED;
    *out = (struct ecc_counts){ecc_count(gpu, kind, counter, 0), ecc_count(gpu, kind, counter, 1),
                               ecc_count(gpu, kind, counter, 2), ecc_count(gpu, kind, counter, 3)};
    return OK;
}

NVML(nvmlDeviceGetSramEccErrorStatus)(int gpu, struct sram_ecc_status *out)
{
    if (!has_ecc(gpu) || gpu_arch(gpu) < AMPERE)
        return NOT_SUPPORTED;
    if (out->version != VERSION_TAG(sram_ecc_status, 1))
        return ARGUMENT_VERSION_MISMATCH;
    memset((char *)out + sizeof out->version, 0, sizeof *out - sizeof out->version);
    out->aggregate_secded = ecc_count(gpu, 1, 1, 7);
    out->aggregate_corrected = ecc_count(gpu, 0, 1, 7);
    out->volatile_secded = ecc_count(gpu, 1, 0, 7);
    out->volatile_corrected = ecc_count(gpu, 0, 0, 7);
    return OK;
}

NVML(nvmlDeviceClearEccErrorCounts)(int gpu, unsigned counter)
{
    static const char *const kinds[] = {"corr", "unc"};
    char key[64];
    if (!has_ecc(gpu))
        return NOT_SUPPORTED;
    if (geteuid())
        return NO_PERMISSION;
    unsigned code = (unsigned)edit_begin();
    for (int i = 0; !code && i < 16; i++) {
        snprintf(key, sizeof key, "ecc.%s.%s.%s", counter ? "agg" : "vol", kinds[i / 8], locations[i % 8]);
        gpu_put(gpu, VOLATILE, key, "%s", "");
        gpu_put(gpu, NVRAM, key, "%s", "");
    }
    return code ? code : (unsigned)edit_commit();
}

/* retired.single and retired.double are lists of page addresses: 0x1a2b000,0x3c4d000 */
NVML(nvmlDeviceGetRetiredPages)(int gpu, unsigned cause, unsigned *count, unsigned long long *out)
{
    if (!has_ecc(gpu) || gpu_arch(gpu) >= AMPERE)
        return NOT_SUPPORTED;
    if (cause > 1 || !count)
        return INVALID_ARGUMENT;
    const char *list = gpu_str(gpu, cause ? "retired.double" : "retired.single");
    unsigned n = 0, room = *count;
    for (const char *at = list; at && *at; at += strcspn(at, ","), at += *at == ',') {
        if (n < room && out)
            out[n] = strtoull(at, NULL, 0);
        n++;
    }
    *count = n;
    return n && (room < n || !out) ? INSUFFICIENT_SIZE : OK;
}

NVML(nvmlDeviceGetRetiredPages_v2)
(int gpu, unsigned cause, unsigned *count, unsigned long long *out, unsigned long long *when)
{
    unsigned code = sim_nvmlDeviceGetRetiredPages(gpu, cause, count, out);
    for (unsigned i = 0; !code && when && i < *count; i++)
        when[i] = 1700000000; /* one fixed moment in seconds: the simulation keeps none */
    return code;
}

NVML(nvmlDeviceGetRetiredPagesPendingStatus)(int gpu, unsigned *out)
{
    *out = (unsigned)gpu_int(gpu, 0, "retired.pending");
    return has_ecc(gpu) && gpu_arch(gpu) < AMPERE ? OK : NOT_SUPPORTED;
}

NVML(nvmlDeviceGetRemappedRows)(int gpu, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed)
{
    if (!has_ecc(gpu) || gpu_arch(gpu) < AMPERE)
        return NOT_SUPPORTED;
    *corrected = (unsigned)gpu_int(gpu, 0, "remap.corrected");
    *uncorrected = (unsigned)gpu_int(gpu, 0, "remap.uncorrected");
    *pending = (unsigned)gpu_int(gpu, 0, "remap.pending");
    *failed = (unsigned)gpu_int(gpu, 0, "remap.failed");
    return OK;
}

NVML(nvmlDeviceGetRowRemapperHistogram)(int gpu, struct row_remapper_histogram *out)
{
    if (!has_ecc(gpu) || gpu_arch(gpu) < AMPERE)
        return NOT_SUPPORTED;
    *out = (struct row_remapper_histogram){(uint32_t)gpu_int(gpu, 640, "remap.banks"), 0, 0, 0, 0};
    return OK;
}
