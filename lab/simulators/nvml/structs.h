/* The few public structs that callers pass, restated from the documented interface; the assertions hold the layout. */
#ifndef NVMLSIM_STRUCTS_H
#define NVMLSIM_STRUCTS_H

#include <stdint.h>

#define SIZED(type, size) _Static_assert(sizeof(struct type) == (size), #type)
#define VERSION_TAG(type, version) ((uint32_t)(sizeof(struct type) | (version) << 24))

struct pci_info {
    char bus_id_legacy[16];
    uint32_t domain, bus, device, device_id, subsystem_id;
    char bus_id[32]; /* callers of v1 and v2 do not own this field */
};
SIZED(pci_info, 68);

struct pci_info_ext {
    uint32_t version, domain, bus, device, device_id, subsystem_id, base_class, sub_class;
    char bus_id[32];
};
SIZED(pci_info_ext, 64);

struct memory {
    uint64_t total, free, used;
};
SIZED(memory, 24);

struct memory_v2 {
    uint32_t version;
    uint64_t total, reserved, free, used;
};
SIZED(memory_v2, 40);

struct utilization {
    uint32_t gpu, memory;
};

union value {
    double d;
    int32_t i;
    uint32_t ui;
    uint64_t ull;
};
enum value_type { VALUE_DOUBLE, VALUE_UINT, VALUE_ULONG, VALUE_ULLONG, VALUE_LLONG, VALUE_INT };

struct field_value {
    uint32_t field, scope;
    int64_t timestamp_us, latency_us;
    uint32_t value_type, code;
    union value value;
};
SIZED(field_value, 40);

struct power_value_v2 {
    uint32_t version;
    uint8_t scope; /* 0 the GPU, 1 the module, 2 the memory */
    uint32_t power_mw;
};
SIZED(power_value_v2, 12);

struct process_info_v1 {
    uint32_t pid;
    uint64_t used_bytes;
};
SIZED(process_info_v1, 16);

struct process_info {
    uint32_t pid;
    uint64_t used_bytes;
    uint32_t gpu_instance, compute_instance;
};
SIZED(process_info, 24);

struct listed_process { /* of the undocumented process lists */
    uint32_t pid;
    uint64_t used_bytes;
    uint32_t gpu_instance, compute_instance;
    uint64_t unknown;
    char name[4096];
};
SIZED(listed_process, 4128);

struct sample {
    uint64_t timestamp_us;
    union value value;
};
SIZED(sample, 16);

struct row_remapper_histogram {
    uint32_t max, high, partial, low, none;
};
SIZED(row_remapper_histogram, 20);

struct sram_ecc_status {
    uint32_t version;
    uint64_t aggregate_parity, aggregate_secded, aggregate_corrected, volatile_parity, volatile_secded,
        volatile_corrected, bucket_l2, bucket_sm, bucket_pcie, bucket_mcu, bucket_other;
    uint32_t threshold_exceeded;
};
SIZED(sram_ecc_status, 104);

struct ecc_counts {
    uint64_t l1, l2, memory, registers;
};

struct event_data {
    void *device;
    uint64_t type, data;
    uint32_t gpu_instance, compute_instance;
};
SIZED(event_data, 32);

struct fbc_stats {
    uint32_t running, fps, latency;
};

struct violation_time {
    uint64_t reference_us, violation_ns;
};

#endif
