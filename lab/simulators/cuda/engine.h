/* The simulated CUDA: what libcuda offers the other three libraries, and every state key that is read here.
 *
 * As in life, libcudart, libcublas and libnccl find the driver by loading libcuda.so.1 by name, and get a table of
 * functions from it (cuGetExportTable). Everything that is shared within a process lives in libcuda: devices, memory,
 * streams, links. A program loads the libraries by name too: libcuda.so.1 lies in the library path, the toolkit's folder
 * is named in /etc/ld.so.conf.d.
 *
 * Device memory is memory of the host, reserved and not touched. Bytes move when a call is made; time is told by a clock
 * per stream, and synchronising sleeps until it is reached. What moving the bytes really took is taken off the wait, and
 * events count neither that nor the program's own time between two calls: programs that measure use events.
 *
 * State keys besides those of lab/simulators/nvml (nvlink.A-B, p2p.A-B, topo.A-B, pcie.*_now, gpuN.absent, gpuN.linkL.state,
 * compute_mode, driver.loaded). A and B are numbers of the board's GPUs, the lower one first; the pair is one.
 *   bandwidth.A-B=GB/s         of the direct path, both ways each; else from links, or generation, width and level
 *   bandwidth_shm.A-B=GB/s     through the host's memory
 *   latency_us.A-B=US          of a direct copy
 *   fault.pair.A-B=hang        what uses the direct path never ends, the GPUs stay busy
 *                 =corrupt     it ends, with wrong bytes
 *                 =refuse      no peer access, though NVML grants it; NCCL goes through SHM
 *                 =slow:F      the direct path is F times slower
 *                 hang@545     each of the first three also while a driver of that branch is loaded, and else not
 *   gpuN.fault=CODE            lost: a new context gets 999, one that is there 719
 *   gpuN.fault.open=CODE       lost before this process: CUDA does not count it
 *   fault.cuda.init=CODE       cuInit fails so (999)
 *   nvswitches=N               GPUs need the fabric manager: without it cuInit answers 802; it runs while somebody
 *                              holds an exclusive flock on volatile/fabric
 *   nccl.irq_hang=1            collectives never end, at full utilization, with a busy thread called nv_queue
 *   nccl.version=2.18.3        the NCCL of this host, whichever was built; chooses the wording and the rules
 *   cpu_vendor=intel|amd       for NCCL's choice of a default P2P level; absent: intel
 *   gpuN.tflops_fp32           else from cores and the clock of the moment
 *   gpuN.cores, gpuN.multiprocessors         of the model, as are
 *   gpuN.tensor_factor, gpuN.double_divisor  FP16 and FP64 against FP32
 *   gpuN.memory_gb_s
 *   gpuN.speed_percent         products take longer than the clock says (100)
 *   gpuN.wrong_bit=N           of every Nth product on it, of a process, one bit is wrong
 *   gpuN.context_mib           what a context takes (300)
 */
#ifndef CUDASIM_ENGINE_H
#define CUDASIM_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

enum code { /* the same numbers in CUresult and cudaError_t */
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    INSUFFICIENT_DRIVER = 35,
    DEVICES_UNAVAILABLE = 46,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    PEER_ACCESS_UNSUPPORTED = 217,
    INVALID_HANDLE = 400,
    NOT_READY = 600,
    PEER_ACCESS_ALREADY_ENABLED = 704,
    PEER_ACCESS_NOT_ENABLED = 705,
    LAUNCH_FAILED = 719,
    SYSTEM_NOT_READY = 802,
    SYSTEM_DRIVER_MISMATCH = 803,
    UNKNOWN = 999,
};

#define NEVER UINT64_MAX /* the end of what hangs */
#define HOST (-1)        /* in place of a device */
#define NOT_OURS (-2)

struct stream; /* NULL, 1 and 2 are the current device's default stream */
struct event;

enum way { WAY_LOCAL, WAY_NVLINK, WAY_PCIE, WAY_STAGED, WAY_HOST };

struct path { /* how bytes get from one GPU to another */
    enum way way;
    double gb_s, latency_us;
};

struct pair {
    int links;             /* NVLinks that are up */
    int level;             /* 0 PIX 1 PXB 2 PHB 3 NODE 4 SYS */
    int granted;           /* NVML says that reading and writing is supported */
    int accessible;        /* the driver gives peer access */
    struct path direct, staged;
};

struct engine {
    int (*initialise)(void);
    int (*devices)(void);
    int (*cuda_version)(void);
    int (*current)(void);
    int (*set_current)(int device); /* makes its context */
    int (*enter)(int device);       /* its context is there and the GPU answers */
    void (*leave)(int device);      /* its context is gone, and all memory and streams in it */
    const char *(*device_text)(int device, const char *key);
    long (*device_number)(int device, const char *key, long absent);
    int (*nvml_index)(int device);
    unsigned (*clock_mhz)(int device); /* under full load */
    void (*bus_id)(int device, char *out, int size);
    int (*device_of_bus_id)(const char *text);
    const char *(*setting)(const char *key); /* of the host as a whole */

    int (*allocate)(int device, size_t bytes, void **out);
    int (*release)(void *memory);
    int (*holder)(const void *memory); /* device, HOST (pinned) or NOT_OURS */
    int (*memory)(int device, size_t *free, size_t *total);
    int (*copy)(void *to, int to_device, const void *from, int from_device, size_t bytes, struct stream *stream);
    int (*fill)(void *to, int value, size_t bytes, struct stream *stream);
    uint64_t (*real_now)(void);
    void (*moved)(uint64_t from_ns); /* real time since then went into moving bytes */

    int (*peer_access)(int device, int peer, int *out);
    int (*enable_peer)(int device, int peer, int on);
    int (*pair)(int a, int b, struct pair *out);
    uint64_t (*transfer)(int from, int to, size_t bytes, const struct path *path, uint64_t start);
    int (*corrupts)(int a, int b);

    uint64_t (*now)(void); /* ns; the clock of streams, without the real cost of moving bytes */
    struct stream *(*resolve)(struct stream *stream, int device); /* default streams become real ones */
    int (*stream_new)(unsigned flags, struct stream **out);
    int (*stream_free)(struct stream *stream);
    int (*stream_device)(struct stream *stream);
    uint64_t (*stream_start)(struct stream *stream); /* when something put into it now would start */
    void (*stream_until)(struct stream *stream, uint64_t end, int effort); /* it is busy from its start until then */
    void (*stream_hold)(struct stream *stream, int more); /* waits for others: +1, -1 */
    void (*stream_spin)(struct stream *stream);           /* busy as long as it waits for others */
    int (*stream_wait)(struct stream *stream);
    int (*stream_query)(struct stream *stream);
    int (*device_wait)(int device);
    void (*stream_revive)(struct stream *stream); /* what hung in it was aborted */
    int (*event_new)(unsigned flags, struct event **out);
    int (*event_free)(struct event *event);
    int (*event_record)(struct event *event, struct stream *stream);
    int (*event_query)(struct event *event);
    int (*event_wait)(struct event *event);
    int (*event_ms)(float *out, struct event *from, struct event *to);
    int (*stream_wait_event)(struct stream *stream, struct event *event);

    const char *(*error_name)(int code);
    const char *(*error_text)(int code);
    void (*lock)(void); /* recursive; every function of the table takes it */
    void (*unlock)(void);
    /* Called before bytes are copied, with NULL before others are written: the same copy was the last thing that was
     * written, so the bytes are there. Programs that measure repeat a copy many times. */
    int (*repeats)(const void *to, const void *from, size_t bytes);
    unsigned long (*writes)(void); /* counts what was written or freed: as long as it stays, all memory is as it was */
};

#define ENGINE_TABLE "rigwright lab 2" /* 16 bytes: the identity of the table for cuGetExportTable */

#endif
