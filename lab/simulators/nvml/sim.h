/* The simulated NVML: what the files of this folder share.
 *
 * A call goes: generated wrapper -> gate() (gate.c) -> NVML(nvmlFoo), written in the file of its subject. A function
 * without an implementation answers NOT_SUPPORTED. Device handles become GPU numbers at the gate; a GPU number counts
 * the board's GPUs, an NVML index those present.
 *
 * The state lies under NVMLSIM_DIR (default /run/lab/hw) in lines of key=value, the last one wins:
 *   board.conf       what is plugged in; never written
 *   volatile/state   gone with the power: driver.loaded, gpuN.set.* (settings), loads, faults
 *   nvram/nvram      stays in the GPUs: ECC mode, aggregate counters, retired pages
 * gpuN.key is looked up in volatile, nvram, board, then as model.NAME.key, so a line in volatile/state overrides
 * anything. An empty value is an absent one. Whoever writes volatile/state takes flock on volatile/state.lock.
 */
#ifndef NVMLSIM_H
#define NVMLSIM_H

#include <stddef.h>
#include <stdio.h>

typedef unsigned long word; /* every argument of every NVML function fits one, at most six of them */
typedef unsigned (*nvml_call)(word, word, word, word, word, word);

enum nvml_return {
    OK = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    TIMEOUT = 10,
    GPU_IS_LOST = 15,
    LIB_RM_VERSION_MISMATCH = 18,
    ARGUMENT_VERSION_MISMATCH = 25,
    UNKNOWN_ERROR = 999,
};

#define EXPORTED __attribute__((visibility("default")))
#define NVML(name) unsigned sim_##name
#define MAX_GPUS 64
#define MAX_LINKS 18

enum architecture { VOLTA = 5, TURING = 6, AMPERE = 7, HOPPER = 9 };
enum clock_domain { CLOCK_GRAPHICS, CLOCK_SM, CLOCK_MEMORY, CLOCK_VIDEO };

/* conf.c: the three files, and their atomic change */
enum store { VOLATILE, NVRAM, BOARD, STORES };
void conf_reload(void);
const char *conf_str(const char *key);
long conf_int(const char *key, long absent);
int edit_begin(void);                                              /* lock and re-read; a code */
void edit_put(enum store store, const char *key, const char *value); /* an empty value removes */
void edit_drop_prefix(enum store store, const char *prefix);
int edit_commit(void);                                             /* write what changed, unlock; a code */
const char *sim_path(const char *name);

/* kernel.c: what is loaded and present, by a real kernel where there is one */
const char *driver_loaded(void); /* the version; NULL: none */
long driver_instance(void);      /* another number after each loading */
int gpu_driven(int gpu);         /* whether a driver is bound to it */
int gpu_off_the_bus(int gpu);

/* ticks.c */
int gpu_without_power(int gpu); /* its rail was too low since the power came on */

/* gpu.c: one GPU's values and settings */
int gpu_count(void); /* GPUs of the board, absent ones included */
const char *gpu_str(int gpu, const char *format, ...) __attribute__((format(printf, 2, 3)));
long gpu_int(int gpu, long absent, const char *format, ...) __attribute__((format(printf, 3, 4)));
int gpu_arch(int gpu);
void gpu_put(int gpu, enum store store, const char *key, const char *format, ...) __attribute__((format(printf, 4, 5)));
const char *setting_str(int gpu, const char *name);
long setting_int(int gpu, const char *name, long absent);
int setting_begin(int gpu); /* root only; opens an edit and drops what no client keeps alive */
void setting_put(int gpu, const char *name, unsigned value); /* 0 is the default, and not kept */
void settings_reset(int gpu);
unsigned give_text(int gpu, const char *key, char *out, unsigned size); /* absent: NOT_SUPPORTED */
unsigned give_int(int gpu, const char *key, unsigned *out);             /* absent: NOT_SUPPORTED */

/* clients.c: who keeps the driver awake */
void clients_join(void);
void clients_leave(void);
long clients_epoch(void);
void clients_watch(FILE *locks); /* for a process that is no client: settings count as long as there is one. /proc/locks */

/* handles.c */
int handle_gpu(word handle); /* the GPU number, -1: no handle */
void *gpu_handle(int gpu);
void handles_scan(void);
int present_count(void);
int gpu_of_index(int index); /* -1: none */
int index_of_gpu(int gpu);
struct pci_place { unsigned domain, bus, device, function; };
struct pci_place gpu_place(int gpu);
int parse_place(const char *text, struct pci_place *out);
int gpu_of_bus_id(const char *text);

/* gate.c */
enum { FIRST_IS_DEVICE = 1, BEFORE_INIT = 2, WAITS = 4 };
unsigned gate(const char *name, int flags, nvml_call call, word a, word b, word c, word d, word e, word f);
void sim_lock(void);
void sim_unlock(void);

/* dynamics.c: what load, limits and temperature make of a GPU at this moment */
struct moment {
    unsigned graphics_mhz, memory_mhz, video_mhz, pstate, power_mw, temp_c, memory_temp_c, util, memory_util;
    unsigned average_mw, fan_percent; /* average: of a second */
    unsigned long long reasons, energy_mj;
};
struct moment gpu_now(int gpu);
unsigned busy_clock_mhz(int gpu); /* what a product that begins now runs at */
unsigned power_limit_mw(int gpu);

/* mig.c, which the simulated CUDA leaves out */
int is_mig_device(word handle) __attribute__((weak));
unsigned mig_device_call(const char *name, word handle, word b, word c) __attribute__((weak)); /* a code */

/* nvlink.c */
int link_count(int gpu);
int pair_links(int a, int b);
int pair_links_up(int a, int b);

/* fabric.c */
struct pci_info;
int has_nvswitches(void);
int fabric_runs(void);
unsigned nvswitch_place(int link, struct pci_info *out); /* the NVSwitch at the other end of a link; a code */

/* topology.c */
int pair_level(int a, int b); /* 0 PIX 1 PXB 2 PHB 3 NODE 4 SYS */
unsigned pair_status(int gpu, int peer, unsigned capability); /* read, write, NVLink, atomics, PCI: NVML's P2P status */

/* clocks.c */
int clock_default(int gpu, int memory); /* the default application clock in MHz, 0: none */

/* export.c, and the generated functions that its table points to, one per slot */
#define SLOTS 512
extern const nvml_call slot_functions[SLOTS];
unsigned slot_dispatch(word a, word b, word c, word d, word e, word f, unsigned slot);

#endif
