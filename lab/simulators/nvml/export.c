/* The undocumented part: the table of functions that nvidia-smi asks for through nvmlInternalGetExportTable. Meanings
 * found by changing answers and reading the real nvidia-smi's output, alike in 535 and 550. Never write through the
 * arguments of an unknown slot: registers beyond its arity hold stale pointers. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim.h"
#include "structs.h"

unsigned list_processes(int gpu, unsigned *count, struct listed_process *out); /* processes.c */

static const void *table[SLOTS];

EXPORTED unsigned nvmlInternalGetExportTable(const void **out, const unsigned char *id)
{
    static const unsigned char known[16] = {0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e,
                                            0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4};
    if (!out || memcmp(id, known, sizeof known))
        return NOT_FOUND;
    for (int slot = 1; slot < SLOTS; slot++)
        table[slot] = (const void *)slot_functions[slot];
    table[0] = (const void *)sizeof table; /* callers check that their slot lies inside */
    *out = table;
    return OK;
}

static unsigned give_bus_id(word index, char *out, word size)
{
    int gpu = gpu_of_index((int)index);
    if (gpu < 0 || !out)
        return INVALID_ARGUMENT;
    struct pci_place place = gpu_place(gpu);
    snprintf(out, size, "%04X:%02X:%02X.0", place.domain & 0xFFFF, place.bus & 0xFF, place.device & 0xFF);
    return OK;
}

static unsigned give_place(int known, const struct pci_place *place, word *out[4])
{
    const unsigned parts[] = {place->domain, place->bus, place->device, place->function};
    for (int i = 0; known && i < 4; i++)
        if (out[i])
            memcpy(out[i], &parts[i], sizeof parts[i]);
    return known ? OK : INVALID_ARGUMENT;
}

/* Resetting a GPU takes its settings and the step that it asks for, and brings a waiting ECC mode into force. */
static unsigned reset(word count, const word *handles)
{
    if (geteuid())
        return NO_PERMISSION;
    unsigned code = (unsigned)edit_begin();
    for (word i = 0; !code && i < count; i++) {
        int gpu = handle_gpu(handles[i]);
        if (gpu < 0)
            continue;
        settings_reset(gpu);
        gpu_put(gpu, VOLATILE, "recovery_action", "%s", "");
        const char *pending = gpu_str(gpu, "ecc.pending");
        if (pending)
            gpu_put(gpu, NVRAM, "ecc.mode", "%s", pending);
        gpu_put(gpu, NVRAM, "ecc.pending", "%s", "");
        gpu_put(gpu, NVRAM, "ecc.pending_in", "%s", "");
    }
    return code ? code : (unsigned)edit_commit();
}

static unsigned device_slot(int gpu, word b, word c, unsigned slot)
{
    unsigned *count = (unsigned *)b;
    switch (slot) {
    case 20: /* is it the primary display? */
        *(unsigned *)b = 0;
        return OK;
    case 72: /* may be monitored (dmon, pmon) */
        *(unsigned *)b = 1;
        return OK;
    case 209:
        return give_int(gpu, "voltage_uv", (unsigned *)b);
    case 213:
        return list_processes(gpu, count, (struct listed_process *)c);
    case 214:
    case 215:
        *count = 0;
        return OK;
    case 230:
        return give_int(gpu, "pcie.gen_host", (unsigned *)b);
    case 231:
        return give_text(gpu, "gpu_part", (char *)b, (unsigned)c);
    case 240: /* degrees to the temperature at which it slows down */
        if (!gpu_int(gpu, 0, "tlimit"))
            return NOT_SUPPORTED;
        *(int *)b = (int)(gpu_int(gpu, 0, "temp.gpu_max") - gpu_now(gpu).temp_c);
        return OK;
    case 237:
        return give_text(gpu, "fru_part", (char *)b, (unsigned)c);
    }
    return NOT_SUPPORTED;
}

static unsigned driver_slot(word a, word b, word c, word d, word e, unsigned slot)
{
    struct pci_place place = {0};
    switch (slot) {
    case 12: {
        word *out[] = {(word *)b, (word *)c, (word *)d, (word *)e};
        int known = parse_place((const char *)a, &place);
        return give_place(known, &place, out);
    }
    case 23: {
        int left = gpu_of_bus_id((const char *)a), right = gpu_of_bus_id((const char *)b);
        if (left < 0 || right < 0)
            return INVALID_ARGUMENT;
        *(unsigned *)c = (unsigned)pair_level(left, right);
        return OK;
    }
    case 75: {
        word *out[] = {(word *)b, (word *)c, (word *)d, NULL};
        int gpu = gpu_of_index((int)a);
        if (gpu >= 0)
            place = gpu_place(gpu);
        return give_place(gpu >= 0, &place, out);
    }
    case 81:
        return give_bus_id(a, (char *)b, c);
    case 168:
        return reset(a, (const word *)b);
    }
    return OK;
}

static unsigned fault_of(int gpu)
{
    return (unsigned)gpu_int(gpu, index_of_gpu(gpu) < 0 ? GPU_IS_LOST : OK, "fault");
}

unsigned slot_dispatch(word a, word b, word c, word d, word e, word f, unsigned slot)
{
    unsigned code;
    (void)f;
    if (slot == 26) /* nvidia-smi shows every line it prints */
        return OK;
    sim_lock();
    conf_reload();
    int gpu = handle_gpu(a);
    if (gpu < 0)
        code = driver_slot(a, b, c, d, e, slot);
    else
        code = fault_of(gpu) ? fault_of(gpu) : device_slot(gpu, b, c, slot);
    sim_unlock();
    return code;
}
