/* Which way each rank's bytes go, by NCCL's rules of its version, and what its log says about it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/statvfs.h>

#include "nccl.h"

enum distance { LOC, NVL, PIX, PXB, PHB, SYS };

#define SHM_SEGMENT 9637888ul /* bytes of /dev/shm per connection */
#define NET_GB_S 1.1
#define SENDS_SHARE 0.93   /* of what a copy gets */

static enum distance distance_of(const struct pair *pair)
{
    static const enum distance of_level[] = {PIX, PXB, PHB, PHB, SYS}; /* NODE is within one CPU: PHB to NCCL */
    return pair->links ? NVL : of_level[pair->level];
}

/* Up to 2.22 peers may be anywhere, but on Intel within one PCIe tree; from 2.23 that holds for all, except that the two
 * GPUs of a communicator of two may be anywhere on AMD. */
static enum distance farthest(const struct engine *cuda, int ranks)
{
    static const char *const names[] = {"LOC", "NVL", "PIX", "PXB", "PHB", "SYS"};
    static const enum distance numbered[] = {LOC, PIX, PXB, PHB, SYS, SYS}; /* the old way to say it */
    const char *level = getenv("NCCL_P2P_LEVEL"), *vendor = cuda->setting("cpu_vendor");
    int amd = vendor && !strcmp(vendor, "amd");
    if (setting("P2P_DISABLE", 0) == 1)
        return LOC;
    for (int i = 0; level && i <= SYS; i++)
        if (!strcasecmp(level, names[i]))
            return (enum distance)i;
    if (level && *level >= '0' && *level <= '9')
        return numbered[atoi(level) > 5 ? 5 : atoi(level)];
    if (nccl_is(22300))
        return amd && ranks <= 2 ? SYS : PXB;
    return amd ? SYS : PXB;
}

static unsigned long bus_number(const struct engine *cuda, int device)
{
    unsigned domain = 0, bus = 0, slot = 0, function = 0;
    char text[32];
    cuda->bus_id(device, text, sizeof text);
    sscanf(text, "%x:%x:%x.%x", &domain, &bus, &slot, &function);
    return (unsigned long)domain << 20 | bus << 12 | slot << 4 | function;
}

static int both_read(const struct engine *cuda, int a, int b)
{
    const char *one = cuda->device_text(a, "compute_capability"), *other = cuda->device_text(b, "compute_capability");
    return one && other && !strcmp(one, "8.0") && !strcmp(other, "8.0");
}

static int shm_has_room(const struct clique *clique)
{
    struct statvfs room;
    unsigned long needs = SHM_SEGMENT * (unsigned long)clique->ranks;
    return statvfs("/dev/shm", &room) || (unsigned long)room.f_bavail * room.f_frsize >= needs;
}

enum result route(const struct engine *cuda, const struct clique *clique, int from, int to, int aloud, struct route *out)
{
    struct pair pair;
    int a = clique->comms[from]->device, b = clique->comms[to]->device;
    if (cuda->pair(a, b, &pair))
        return UNHANDLED_CUDA_ERROR;
    enum distance distance = distance_of(&pair);
    int direct = distance <= farthest(cuda, clique->ranks);
    *out = (struct route){SHM, 0, pair.staged};
    if (direct && !pair.granted && !setting("IGNORE_DISABLED_P2P", 0)) {
        if (distance <= NVL) {
            warn(a, "P2P is disabled between NVLINK connected GPUs %d and %d. This should not be the case given their "
                    "connectivity, and is probably due to a hardware issue. If you still want to proceed, you can set "
                    "NCCL_IGNORE_DISABLED_P2P=1.", cuda->nvml_index(a), cuda->nvml_index(b));
            return UNHANDLED_CUDA_ERROR;
        }
        if (aloud && distance < SYS)
            info(a, "P2P is disabled between connected GPUs %d and %d. You can repress this message with "
                    "NCCL_IGNORE_DISABLED_P2P=1.", cuda->nvml_index(a), cuda->nvml_index(b));
    } else if (direct && !pair.accessible) {
        if (aloud)
            info(a, "Could not enable P2P between dev %d(=%lx) and dev %d(=%lx)", a, bus_number(cuda, a), b,
                 bus_number(cuda, b));
    } else if (direct) {
        *out = (struct route){P2P, distance == NVL && both_read(cuda, a, b), pair.direct};
    }
    if (out->transport != P2P && setting("SHM_DISABLE", 0) == 1)
        *out = (struct route){NET, 0, {WAY_STAGED, NET_GB_S, 60}};
    if (out->transport == SHM && !shm_has_room(clique)) {
        warn(a, "Error while creating shared memory segment /dev/shm/nccl-%06x (size %lu)", 0xA5A5u, SHM_SEGMENT);
        return SYSTEM_ERROR;
    }
    out->path.gb_s *= SENDS_SHARE;
    return NCCL_SUCCESS;
}

/* A cycle over NVLinks alone, by trying; -1: there is none. */
static int close_ring(const struct engine *cuda, struct clique *clique, int placed, unsigned long long used)
{
    struct pair pair;
    int last = clique->comms[clique->ring[placed - 1]]->device;
    if (placed == clique->ranks)
        return !cuda->pair(last, clique->comms[clique->ring[0]]->device, &pair) && pair.links ? 0 : -1;
    for (int rank = 1; rank < clique->ranks; rank++) {
        if (used >> rank & 1 || cuda->pair(last, clique->comms[rank]->device, &pair) || !pair.links)
            continue;
        clique->ring[placed] = rank;
        if (!close_ring(cuda, clique, placed + 1, used | 1ull << rank))
            return 0;
    }
    return -1;
}

enum result plan(const struct engine *cuda, struct clique *clique)
{
    struct route next;
    struct pair pair;
    clique->ring[0] = 0;
    clique->ring_is_nvlink = clique->ranks > 1 && !close_ring(cuda, clique, 1, 1);
    clique->channels = 2;
    for (int i = 0; i < clique->ranks && !clique->ring_is_nvlink; i++)
        clique->ring[i] = i;
    for (int i = 0; clique->ranks > 1 && i < clique->ranks; i++) {
        int from = clique->ring[i], to = clique->ring[(i + 1) % clique->ranks];
        enum result result = route(cuda, clique, from, to, 1, &next);
        if (result)
            return result;
        clique->ring_is_nvlink &= next.transport == P2P;
        if (!cuda->pair(clique->comms[from]->device, clique->comms[to]->device, &pair) && clique->ring_is_nvlink)
            clique->channels = pair.links > 12 ? 24 : 2 * pair.links;
    }
    return NCCL_SUCCESS;
}

void tell_start(const struct engine *cuda, const struct clique *clique, int complete)
{
    const char *function = nccl_is(21900) ? "ncclCommInitAll " : "";
    for (int rank = 0; rank < clique->ranks; rank++) {
        const struct comm *comm = clique->comms[rank];
        char before[32] = "";
        if (nccl_is(22900) && !complete)
            snprintf(before, sizeof before, "[Rank %d] ", rank);
        log_as(rank);
        info(comm->device, "%s%scomm %p rank %d nranks %d cudaDev %d nvmlDev %d busId %lx commId 0x%llx - Init %s", before,
             function, (const void *)comm, rank, clique->ranks, comm->device, cuda->nvml_index(comm->device),
             bus_number(cuda, comm->device), clique->id, complete ? "COMPLETE" : "START");
    }
}

static void tell_connection(const struct engine *cuda, const struct clique *clique, int from, int to, int channel, int kind)
{
    struct route way;
    char ends[64], line[160];
    int a = clique->comms[from]->device, b = clique->comms[to]->device;
    int cumem = nccl_is(21900) && setting("CUMEM_ENABLE", 1);
    if (route(cuda, clique, from, to, 0, &way))
        return;
    if (nccl_is(21800)) /* which device NVML calls it; before, where it sits */
        snprintf(ends, sizeof ends, "%d[%d] -> %d[%d]", from, cuda->nvml_index(a), to, cuda->nvml_index(b));
    else
        snprintf(ends, sizeof ends, "%d[%lx] -> %d[%lx]", from, bus_number(cuda, a), to, bus_number(cuda, b));
    if (way.transport == P2P) {
        const char *direct = setting("P2P_DIRECT_DISABLE", 0) != 1 ? "direct pointer" : cumem ? "CUMEM" : "IPC";
        snprintf(line, sizeof line, "Channel %02d/%d : %s via P2P/%s%s", channel, kind, ends, direct, way.read ? "/read" : "");
    } else if (way.transport == SHM) {
        snprintf(line, sizeof line, "Channel %02d : %s via SHM/%s", channel, ends, nccl_is(23000) ? "direct" : "direct/direct");
    } else {
        log_as(to);
        info(b, "Channel %02d/%d : %s [receive] via NET/Socket/0", channel, kind, ends);
        snprintf(line, sizeof line, "Channel %02d/%d : %s [send] via NET/Socket/0", channel, kind, ends);
    }
    log_as(from);
    info(a, "%s", line);
}

/* Trees are chains along the ring: who is below, which rank, who is above. */
static void tell_trees(const struct clique *clique)
{
    for (int i = 0; i < clique->ranks; i++) {
        char line[32 * 24 + 8] = "Trees";
        int rank = clique->ring[i], above = i ? clique->ring[i - 1] : -1;
        int below = i + 1 < clique->ranks ? clique->ring[i + 1] : -1;
        for (int channel = 0; channel < clique->channels && channel < 24; channel++)
            snprintf(line + strlen(line), 32, " [%d] %d/-1/-1->%d->%d", channel, below, rank, above);
        log_as(rank);
        info(clique->comms[rank]->device, "%s", line);
    }
}

void tell_ring(const struct engine *cuda, struct clique *clique)
{
    char order[MAX_RANKS * 5 + 1] = "";
    if (clique->told_ring++)
        return;
    for (int i = 0; i < clique->ranks; i++)
        snprintf(order + strlen(order), 6, "%4d", clique->ring[i]);
    log_as(0);
    for (int channel = 0; channel < clique->channels; channel++)
        info(clique->comms[0]->device, "Channel %02d/%02d : %s", channel, clique->channels, order);
    tell_trees(clique);
    log_as(0);
    info(clique->comms[0]->device, "P2P Chunksize set to %d", clique->ring_is_nvlink ? 524288 : 131072);
    for (int channel = 0; clique->ranks > 1 && channel < clique->channels; channel++)
        for (int i = 0; i < clique->ranks; i++)
            tell_connection(cuda, clique, clique->ring[i], clique->ring[(i + 1) % clique->ranks], channel, 0);
    for (int rank = 0; rank < clique->ranks; rank++) {
        log_as(rank);
        info(clique->comms[rank]->device, nccl_is(22700) ? "Connected all rings, use ring PXN 0 GDR 1" : "Connected all rings");
        if (!nccl_is(22700))
            info(clique->comms[rank]->device, "Connected all trees");
    }
}

/* The ring goes in the order of the ranks. What is in other processes goes over the network. */
void tell_spread(const struct engine *cuda, const struct clique *clique)
{
    for (int rank = 0; rank < clique->ranks; rank++) {
        const struct comm *comm = clique->comms[rank];
        int after = (rank + 1) % clique->ranks, before = (rank + clique->ranks - 1) % clique->ranks;
        if (!comm)
            continue;
        log_as(rank);
        info(comm->device, "comm %p rank %d nranks %d cudaDev %d nvmlDev %d busId %lx commId 0x%llx - Init COMPLETE",
             (const void *)comm, rank, clique->ranks, comm->device, cuda->nvml_index(comm->device),
             bus_number(cuda, comm->device), clique->id);
        if (clique->comms[after])
            tell_connection(cuda, clique, rank, after, 0, 0);
        else
            info(comm->device, "Channel 00/0 : %d[%d] -> %d[0] [send] via NET/Socket/0", rank, cuda->nvml_index(comm->device), after);
        if (!clique->comms[before])
            info(comm->device, "Channel 00/0 : %d[0] -> %d[%d] [receive] via NET/Socket/0", before, rank, cuda->nvml_index(comm->device));
    }
}

void tell_pair(const struct engine *cuda, struct clique *clique, int from, int to)
{
    if (from == to || clique->told_pair[from][to])
        return;
    clique->told_pair[from][to] = 1;
    for (int channel = 0; channel < clique->channels && channel < 4; channel++)
        tell_connection(cuda, clique, from, to, channel, 1);
}
