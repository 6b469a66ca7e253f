/* The table that the other libraries get: each function under the lock, devices made GPUs of the board. */
#include <stdio.h>

#include "errors.h"
#include "memory.h"
#include "streams.h"

int enable_peer(int gpu, int peer, int on); /* links.c */

static _Thread_local int current;

#define LOCKED(type, expression)    \
    do {                            \
        driver_lock();              \
        type answer = (expression); \
        driver_unlock();            \
        return answer;              \
    } while (0)

static int t_initialise(void) { LOCKED(int, initialise()); }
static int t_devices(void) { LOCKED(int, device_count()); }
static int t_current(void) { return current; }
static int t_enter(int device) { LOCKED(int, enter_gpu(gpu_of(device))); }
static int t_nvml_index(int device) { LOCKED(int, index_of_gpu(gpu_of(device))); }
static unsigned t_clock_mhz(int device) { LOCKED(unsigned, busy_clock_mhz(gpu_of(device))); }
static int t_release(void *memory) { LOCKED(int, memory_free(memory)); }
static uint64_t t_now(void) { LOCKED(uint64_t, clock_now()); }
static int t_stream_free(struct stream *stream) { LOCKED(int, stream_free(stream)); }
static uint64_t t_stream_start(struct stream *stream) { LOCKED(uint64_t, stream_start(stream)); }
static int t_stream_query(struct stream *stream) { LOCKED(int, stream_query(stream)); }
static int t_stream_wait(struct stream *stream) { return stream_wait(stream, 0); }
static int t_event_query(struct event *event) { LOCKED(int, event_query(event)); }
static int t_event_ms(float *out, struct event *from, struct event *to) { LOCKED(int, event_ms(out, from, to)); }

static void t_leave(int device)
{
    driver_lock();
    leave_device(device);
    driver_unlock();
}

static int t_set_current(int device)
{
    int code = t_enter(device);
    if (!code)
        current = device;
    return code;
}

/* Values are the caller's for his next few questions: another thread's may read the state anew. */
static const char *kept(const char *value)
{
    static _Thread_local char text[4][256];
    static _Thread_local unsigned turn;
    if (!value)
        return NULL;
    turn++;
    snprintf(text[turn % 4], sizeof *text, "%s", value);
    return text[turn % 4];
}

static const char *t_setting(const char *key)
{
    LOCKED(const char *, kept(conf_str(key)));
}

static const char *t_device_text(int device, const char *key)
{
    LOCKED(const char *, gpu_of(device) < 0 ? NULL : kept(gpu_str(gpu_of(device), "%s", key)));
}

static long t_device_number(int device, const char *key, long absent)
{
    LOCKED(long, gpu_of(device) < 0 ? absent : gpu_int(gpu_of(device), absent, "%s", key));
}

static void t_bus_id(int device, char *out, int size)
{
    driver_lock();
    struct pci_place place = gpu_place(gpu_of(device));
    snprintf(out, (size_t)size, "%04X:%02X:%02X.%X", place.domain, place.bus, place.device, place.function);
    driver_unlock();
}

static int t_device_of_bus_id(const char *text)
{
    LOCKED(int, device_of(gpu_of_bus_id(text)));
}

static int t_allocate(int device, size_t bytes, void **out)
{
    driver_lock();
    int code = device == HOST ? SUCCESS : enter_gpu(gpu_of(device));
    code = code ? code : memory_new(device == HOST ? HOST : gpu_of(device), bytes, out);
    driver_unlock();
    return code;
}

static int t_holder(const void *memory)
{
    driver_lock();
    int gpu = memory_holder(memory), device = gpu >= 0 ? device_of(gpu) : gpu;
    driver_unlock();
    return device;
}

static int t_memory(int device, size_t *free, size_t *total)
{
    driver_lock();
    int code = enter_gpu(gpu_of(device));
    if (!code)
        memory_amounts(gpu_of(device), free, total);
    driver_unlock();
    return code;
}

static int board(int device)
{
    return device >= 0 ? gpu_of(device) : device;
}

static int t_copy(void *to, int to_device, const void *from, int from_device, size_t bytes, struct stream *stream)
{
    LOCKED(int, memory_copy(to, board(to_device), from, board(from_device), bytes, stream));
}

static int t_fill(void *to, int value, size_t bytes, struct stream *stream)
{
    LOCKED(int, memory_fill(to, value, bytes, stream));
}

static int t_repeats(const void *to, const void *from, size_t bytes)
{
    LOCKED(int, memory_repeats(to, from, bytes));
}

static unsigned long t_writes(void)
{
    LOCKED(unsigned long, memory_writes());
}

static void t_moved(uint64_t from_ns)
{
    driver_lock();
    clock_moved(from_ns);
    driver_unlock();
}

static int t_peer_access(int device, int peer, int *out)
{
    driver_lock();
    int a = gpu_of(device), b = gpu_of(peer), code = a < 0 || b < 0 ? INVALID_DEVICE : SUCCESS;
    if (!code)
        *out = can_access(a, b);
    driver_unlock();
    return code;
}

static int t_enable_peer(int device, int peer, int on)
{
    driver_lock();
    int a = gpu_of(device), b = gpu_of(peer), code = a < 0 || b < 0 || a == b ? INVALID_DEVICE : enable_peer(a, b, on);
    driver_unlock();
    return code;
}

static int t_pair(int device, int peer, struct pair *out)
{
    driver_lock();
    int a = gpu_of(device), b = gpu_of(peer), code = a < 0 || b < 0 ? INVALID_DEVICE : SUCCESS;
    if (!code) {
        out->links = pair_links_up(a, b);
        out->level = pair_level(a, b);
        out->granted = !pair_status(a, b, 0) && !pair_status(a, b, 1);
        out->accessible = can_access(a, b);
        out->direct = pair_path(a, b, 1);
        out->staged = pair_path(a, b, 0);
    }
    driver_unlock();
    return code;
}

static uint64_t t_transfer(int from, int to, size_t bytes, const struct path *path, uint64_t start)
{
    driver_lock();
    int a = board(from), b = board(to), direct = path->way == WAY_NVLINK || path->way == WAY_PCIE;
    uint64_t end = direct && fault_of_pair(a, b) == HANGS ? NEVER : occupy(a, b, bytes, path, start);
    driver_unlock();
    return end;
}

static int t_corrupts(int from, int to)
{
    LOCKED(int, fault_of_pair(gpu_of(from), gpu_of(to)) == CORRUPTS);
}

static struct stream *t_resolve(struct stream *stream, int device)
{
    LOCKED(struct stream *, stream_resolve(stream, gpu_of(device)));
}

static int t_stream_new(unsigned flags, struct stream **out)
{
    driver_lock();
    int code = enter_gpu(gpu_of(current));
    code = code ? code : stream_new(gpu_of(current), flags, out);
    driver_unlock();
    return code;
}

static int t_stream_device(struct stream *stream)
{
    LOCKED(int, device_of(stream->gpu));
}

static void t_stream_until(struct stream *stream, uint64_t end, int effort)
{
    driver_lock();
    stream_until(stream, end, effort);
    driver_unlock();
}

static void t_stream_hold(struct stream *stream, int more)
{
    driver_lock();
    stream_hold(stream, more);
    driver_unlock();
}

static void t_stream_spin(struct stream *stream)
{
    driver_lock();
    stream_spin(stream);
    driver_unlock();
}

static void t_stream_revive(struct stream *stream)
{
    driver_lock();
    stream_revive(stream);
    driver_unlock();
}

static int t_device_wait(int device)
{
    struct stream *usual = t_resolve(NULL, device);
    return usual ? stream_wait(usual, 1) : INVALID_DEVICE;
}

static int t_event_new(unsigned flags, struct event **out) { return event_new(flags, out); }
static int t_event_free(struct event *event) { LOCKED(int, event_free(event)); }

static int t_event_record(struct event *event, struct stream *stream)
{
    LOCKED(int, event_record(event, stream));
}

static int t_stream_wait_event(struct stream *stream, struct event *event)
{
    LOCKED(int, stream_wait_event(stream, event));
}

const struct engine engine = {
    .initialise = t_initialise, .devices = t_devices, .cuda_version = cuda_version_of_driver, .current = t_current,
    .set_current = t_set_current, .enter = t_enter, .leave = t_leave, .device_text = t_device_text,
    .device_number = t_device_number, .nvml_index = t_nvml_index, .clock_mhz = t_clock_mhz, .bus_id = t_bus_id,
    .device_of_bus_id = t_device_of_bus_id, .setting = t_setting, .allocate = t_allocate, .release = t_release,
    .holder = t_holder, .memory = t_memory, .copy = t_copy, .fill = t_fill, .real_now = real_now, .moved = t_moved,
    .peer_access = t_peer_access, .enable_peer = t_enable_peer, .pair = t_pair, .transfer = t_transfer,
    .corrupts = t_corrupts, .now = t_now, .resolve = t_resolve, .stream_new = t_stream_new,
    .stream_free = t_stream_free, .stream_device = t_stream_device, .stream_start = t_stream_start,
    .stream_until = t_stream_until, .stream_hold = t_stream_hold, .stream_spin = t_stream_spin, .stream_wait = t_stream_wait,
    .stream_query = t_stream_query, .device_wait = t_device_wait, .stream_revive = t_stream_revive,
    .event_new = t_event_new, .event_free = t_event_free, .event_record = t_event_record,
    .event_query = t_event_query, .event_wait = event_wait, .event_ms = t_event_ms,
    .stream_wait_event = t_stream_wait_event, .error_name = runtime_error_name, .error_text = error_text,
    .lock = driver_lock, .unlock = driver_unlock, .repeats = t_repeats,
    .writes = t_writes,
};
