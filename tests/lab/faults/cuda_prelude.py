"""The first part of test programs: loads the four libraries of CUDA through ctypes, as any program does."""

import ctypes as C
import json

V, S, Int = C.c_void_p, C.c_size_t, C.c_int
rt, bl, nc = (C.CDLL(name) for name in ("libcudart.so.12", "libcublas.so.12", "libnccl.so.2"))
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


known = {}


def say(value):
    print(json.dumps(value), flush=True)


def ok(code):
    assert code == 0, code


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


def right(a, b):
    values = [float(n % 97 + a) for n in range(4096)]
    gpus(max(a, b) + 1)
    enable(a, b)
    gpu(a)
    put(known[a].a, values)
    copy(a, b, 4 * len(values))
    ok(rt.cudaStreamSynchronize(known[a].stream))
    return got(known[b].b, len(values)) == values


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


def summed(count):
    comms = group(count)
    for rank in range(count):
        put(gpu(rank).a, [float(n % 31 + rank) for n in range(4096)])
    all_reduce(comms, 4096)
    for rank in range(count):
        wait(rank)
    wanted = [float(count * (n % 31) + count * (count - 1) // 2) for n in range(4096)]
    return all(got(known[rank].b, 4096) == wanted for rank in range(count))


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
