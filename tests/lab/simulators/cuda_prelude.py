"""The first part of the programs of test_cuda.py: loads the four libraries through ctypes, as any program does."""

import ctypes as C
import json
import threading
import time

V, S, Int = C.c_void_p, C.c_size_t, C.c_int
cu, rt = C.CDLL("libcuda.so.1"), C.CDLL("libcudart.so.12")
bl, nc = C.CDLL("libcublas.so.12"), C.CDLL("libnccl.so.2")
FLOAT, SUM, MIB = 7, 0, 1 << 20
SIZE = 16 * MIB


class Gpu:
    """A GPU with a stream and two buffers."""

    def __init__(self, device):
        self.device, self.stream, self.a, self.b = device, V(), V(), V()
        ok(rt.cudaSetDevice(device))
        ok(rt.cudaStreamCreateWithFlags(C.byref(self.stream), 1))
        for buffer in (self.a, self.b):
            ok(rt.cudaMalloc(C.byref(buffer), S(2 * SIZE)))


class UniqueId(C.Structure):
    _fields_ = [("bytes", C.c_char * 128)]


known = {}


def say(value):
    print(json.dumps(value), flush=True)


def ok(code):
    assert code == 0, code


def integer(function):
    out = Int()
    ok(function(C.byref(out)))
    return out.value


def error_name(code):
    out = C.c_char_p()
    ok(cu.cuGetErrorName(code, C.byref(out)))
    return out.value.decode()


def bus_id(device):
    text = C.create_string_buffer(32)
    ok(rt.cudaDeviceGetPCIBusId(text, 32, device))
    return text.value.decode()


def gpu(device):
    if device not in known:
        known[device] = Gpu(device)
    ok(rt.cudaSetDevice(device))
    return known[device]


def gpus(count):
    return [gpu(device) for device in range(count)]


def access(a, b):
    out = Int()
    ok(rt.cudaDeviceCanAccessPeer(C.byref(out), a, b))
    return out.value


def put(pointer, values):
    ok(rt.cudaMemcpy(pointer, (C.c_float * len(values))(*values), S(4 * len(values)), 1))


def got(pointer, count):
    out = (C.c_float * count)()
    ok(rt.cudaMemcpy(out, pointer, S(4 * count), 2))
    return list(out)


def seconds(device, action, times):
    """Returns the seconds per action, measured between two events of the device's stream."""
    stream, events = gpu(device).stream, [V(), V()]
    for event in events:
        ok(rt.cudaEventCreate(C.byref(event)))
    action()
    ok(rt.cudaStreamSynchronize(stream))
    ok(rt.cudaEventRecord(events[0], stream))
    for _ in range(times):
        action()
    ok(rt.cudaEventRecord(events[1], stream))
    ok(rt.cudaEventSynchronize(events[1]))
    ms = C.c_float()
    ok(rt.cudaEventElapsedTime(C.byref(ms), *events))
    return ms.value / 1000 / times


def enable(a, b, on=True):
    for one, other in ((a, b), (b, a)):
        gpu(one)
        if access(one, other):
            rt.cudaDeviceEnablePeerAccess(other, 0) if on else rt.cudaDeviceDisablePeerAccess(other)


def copy(a, b, size):
    one, other = gpu(b), gpu(a)
    ok(rt.cudaMemcpyPeerAsync(one.b, b, other.a, a, S(size), other.stream))


def p2p(a, b, mib=16, on=True):
    enable(a, b, on)
    best = min(seconds(a, lambda: copy(a, b, mib * MIB), 10) for _ in range(3))  # a busy machine only takes longer
    return mib * MIB / best / 1e9


def small(a, b):
    """Returns the microseconds of a copy of four bytes."""
    enable(a, b)
    return 1e6 * seconds(a, lambda: copy(a, b, 4), 10)


def right(a, b):
    values = [float(n % 97 + a) for n in range(4096)]
    gpus(max(a, b) + 1)
    enable(a, b)
    gpu(a)
    put(known[a].a, values)
    copy(a, b, 4 * len(values))
    ok(rt.cudaStreamSynchronize(known[a].stream))
    return got(known[b].b, len(values)) == values


def matrix(count):
    host, out = V(), {"on": [], "off": []}
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    for a, b in pairs:
        out["on"].append(p2p(a, b))
    for a, b in pairs[:3]:
        out["off"].append(p2p(a, b, on=False))
    ok(rt.cudaHostAlloc(C.byref(host), S(SIZE), 0))
    one = gpu(0)
    up = lambda: ok(rt.cudaMemcpyAsync(one.a, host, S(SIZE), 1, one.stream))  # noqa: E731
    out["up"] = SIZE / seconds(0, up, 10) / 1e9
    out["right"] = all(right(a, b) for a, b in pairs)
    return out


def group(count):
    comms = (V * count)()
    gpus(count)
    ok(nc.ncclCommInitAll(comms, count, (Int * count)(*range(count))))
    return comms


def wait(device):
    ok(rt.cudaStreamSynchronize(gpu(device).stream))


def all_reduce(comms, count):
    ok(nc.ncclGroupStart())
    for rank, comm in enumerate(comms):
        one = known[rank]
        ok(nc.ncclAllReduce(one.a, one.b, S(count), FLOAT, SUM, V(comm), one.stream))
    ok(nc.ncclGroupEnd())


def send(comms, a, b, count):
    ok(nc.ncclGroupStart())
    ok(nc.ncclSend(known[a].a, S(count), FLOAT, b, V(comms[a]), known[a].stream))
    ok(nc.ncclRecv(known[b].b, S(count), FLOAT, a, V(comms[b]), known[b].stream))
    ok(nc.ncclGroupEnd())


def sent(a, b):
    comms, values = group(max(a, b) + 1), [float(n % 89 + a) for n in range(4096)]
    put(known[a].a, values)
    send(comms, a, b, len(values))
    wait(b)
    return got(known[b].b, len(values)) == values


def send_rate(a, b):
    comms = group(max(a, b) + 1)
    return SIZE / seconds(a, lambda: send(comms, a, b, SIZE // 4), 10) / 1e9


def sum_rate(count):
    """Returns the bus bandwidth of an all-reduce, GB/s."""
    comms = group(count)
    return 2 * SIZE * 2 * (count - 1) / count / seconds(0, lambda: all_reduce(comms, SIZE // 2), 4) / 1e9


def summed(count):
    comms = group(count)
    for rank in range(count):
        put(gpu(rank).a, [float(n % 31 + rank) for n in range(4096)])
    all_reduce(comms, 4096)
    for rank in range(count):
        wait(rank)
    wanted = [float(count * (n % 31) + count * (count - 1) // 2) for n in range(4096)]
    return all(got(known[rank].b, 4096) == wanted for rank in range(count))


def collectives():
    """Runs broadcast, all-gather, reduce-scatter and the mean over two ranks."""
    comms, seen = group(2), []
    two = [known[0], known[1]]

    def each(call):
        for one in two:
            put(one.a, [one.device + 1.0] * 8)
        ok(nc.ncclGroupStart())
        for one in two:
            ok(call(one, V(comms[one.device])))
        ok(nc.ncclGroupEnd())
        wait(0)
        wait(1)
        return [got(one.b, 4) for one in two]

    seen.append(each(lambda g, c: nc.ncclBroadcast(g.a, g.b, S(4), FLOAT, 1, c, g.stream)) == [[2.0] * 4] * 2)
    seen.append(each(lambda g, c: nc.ncclAllGather(g.a, g.b, S(2), FLOAT, c, g.stream)) == [[1.0, 1.0, 2.0, 2.0]] * 2)
    seen.append(each(lambda g, c: nc.ncclReduceScatter(g.a, g.b, S(4), FLOAT, 2, c, g.stream)) == [[2.0] * 4] * 2)
    seen.append(each(lambda g, c: nc.ncclAllReduce(g.a, g.b, S(4), FLOAT, 4, c, g.stream)) == [[1.5] * 4] * 2)
    return seen


def threaded(count):
    """Runs a thread per rank, each with its own communicator."""
    name, comms, done = UniqueId(), (V * count)(), []
    gpus(count)
    ok(nc.ncclGetUniqueId(C.byref(name)))

    def rank_of(rank):
        one = gpu(rank)
        put(one.a, [1.0 + rank])
        comm = V()
        ok(nc.ncclCommInitRank(C.byref(comm), count, name, rank))
        comms[rank] = comm
        ok(nc.ncclAllReduce(one.a, one.b, S(1), FLOAT, SUM, comm, one.stream))
        ok(rt.cudaStreamSynchronize(one.stream))
        done.append(got(one.b, 1)[0])

    threads = [threading.Thread(target=rank_of, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return done == [count * (count + 1) / 2] * count


def unmatched():
    """A receive without a matching send does not complete."""
    comms = group(2)
    ok(nc.ncclRecv(known[1].b, S(4), FLOAT, 0, V(comms[1]), known[1].stream))
    return rt.cudaStreamQuery(known[1].stream)


def blas(device):
    handle, one = V(), gpu(device)
    ok(bl.cublasCreate_v2(C.byref(handle)))
    ok(bl.cublasSetStream_v2(handle, one.stream))
    return handle


def product(handle, m, n, k, a, b, c):
    one, none = C.byref(C.c_float(1)), C.byref(C.c_float(0))
    ok(bl.cublasSgemm_v2(handle, 0, 0, m, n, k, one, a, m, b, k, none, c, m))


def small_product():
    """Multiplies [[1, 2], [3, 4]] by [[5, 6], [7, 8]], in column-major order."""
    handle, one = blas(0), gpu(0)
    put(one.a, [1, 3, 2, 4, 5, 7, 6, 8])
    product(handle, 2, 2, 2, one.a, V(one.a.value + 16), one.b)
    return got(one.b, 4)


def heat(device, long_s):
    """Multiplies large matrices for that long; three matrices of 64 MiB. Always has work in the stream, as programs
    do."""
    handle, sides = blas(device), [V(), V(), V()]
    for side in sides:
        ok(rt.cudaMalloc(C.byref(side), S(64 * MIB)))
    ends = time.monotonic() + long_s
    marks = []
    while time.monotonic() < ends:
        for _ in range(40):
            product(handle, 4096, 4096, 4096, *sides)
        marks.append(V())
        ok(rt.cudaEventCreate(C.byref(marks[-1])))
        ok(rt.cudaEventRecord(marks[-1], gpu(device).stream))
        if len(marks) > 2:
            ok(rt.cudaEventSynchronize(marks[-3]))
    ok(rt.cudaStreamSynchronize(gpu(device).stream))


def wrong(device, number):
    """Returns how many of that many large products differ from the first one, and what the first ones' corners are."""
    handle, sides = blas(device), [V(), V(), V()]
    for side in sides:
        ok(rt.cudaMalloc(C.byref(side), S(16 * MIB)))
    for side in sides[:2]:
        put(side, [float(n % 5 + 1) for n in range(1024 * 1024)])
    seen = []
    for _ in range(number):
        product(handle, 1024, 1024, 1024, *sides)
        seen.append(got(sides[2], 4))
    return [sum(one != seen[0] for one in seen), seen[0]]


def tflops(device, times=3):
    handle, sides = blas(device), [V(), V(), V()]
    for side in sides:
        ok(rt.cudaMalloc(C.byref(side), S(64 * MIB)))
    return 2 * 4096**3 / seconds(device, lambda: product(handle, 4096, 4096, 4096, *sides), times) / 1e12
