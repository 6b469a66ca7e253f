"""The work of stress.py, in a child process that may hang, crash or lose its GPUs: products, copies, all-reduces.

A batch is a number of products C = A x A - C + A x A - ..., so that an error of any of them stays in C. Its result is
compared with that of the first batch on the GPU itself, bit for bit: cuBLAS gives the same bits for the same call on
the same GPU in one stream. After each batch the parent gets what was measured so far; without that for as long as the
step's time limit it is a hang.
"""

import contextlib
import ctypes
import functools
import json
import os
import random
import time
import zlib

import nccl_cuda
import nccl_steps
from nccl_steps import MIB

BLOCK = MIB  # random numbers, repeated
SEED = 20261123  # the same numbers in every process
BATCH_S = 0.12
AHEAD = 2  # batches that a GPU has in its stream
POLL_S = 0.004
ON_HOST, ON_DEVICE = 0, 1  # cublasPointerMode_t
MOST_IN_BATCH = 20001
COPY, HOST_COPY = 256 * MIB, 64 * MIB
MOST_WRONG = 20  # wrong batches of a GPU that are described
TRAINING_STEPS = 4  # products and all-reduces between two pauses
PRODUCTS_S, PAUSE_S = 0.2, 0.4  # of training: longer than a supply's control and NVML's readings (assumed)
DEVICE_TO_DEVICE = 3


class Kind:
    """A kind of products: cuBLAS' numbers of the types of A, of C and of the computation, and the chips that have it.

    `large`: from that compute capability on the side is 8192, because a smaller product is shorter than its start.
    """

    def __init__(self, a_type, c_type, compute, number, side=4096, since=(0, 0), large=None):
        self.a_type, self.c_type, self.compute, self.number = a_type, c_type, compute, number
        self.side, self.since, self.large = side, since, large
        self.letter = "D" if number is ctypes.c_double else "S"


R_32F, R_64F, R_16F = 0, 1, 2  # cudaDataType
COMPUTE_32F, COMPUTE_64F, COMPUTE_FAST_TF32 = 68, 70, 77  # cublasComputeType_t, since cuBLAS 11
KINDS = {
    "fp32": Kind(R_32F, R_32F, COMPUTE_32F, ctypes.c_float),
    "tf32": Kind(R_32F, R_32F, COMPUTE_FAST_TF32, ctypes.c_float, since=(8, 0)),
    "fp16": Kind(R_16F, R_32F, COMPUTE_32F, ctypes.c_float, since=(7, 0), large=(8, 0)),
    "fp64": Kind(R_64F, R_64F, COMPUTE_64F, ctypes.c_double, side=2048),
}
SIZES = {R_32F: 4, R_64F: 8, R_16F: 2}
MASKS = {  # the bits of a fraction, and 1.0
    R_32F: (0x007FFFFF, 0x3F800000),
    R_64F: (0x000FFFFFFFFFFFFF, 0x3FF0000000000000),
    R_16F: (0x03FF, 0x3C00),
}


def kinds_of(capability):
    """The kinds of products that a chip of that compute capability, such as "7.0", has units for."""
    number = tuple(int(part) for part in capability.split("."))
    return [name for name, kind in KINDS.items() if number >= kind.since]


class StressWork(nccl_steps.PlacedWork):
    """The steps of the stress. What they allocate stays until the process ends, but for the memory of copies."""

    def __init__(self, job, report_fd):
        super().__init__(job, report_fd)
        self.matrices, self.products, self.lengths, self.gradients = {}, {}, {}, {}
        self.blocks, self.rates, self.value = {}, [], {}

    # --- what was measured so far

    def begins(self, gpus, marks):
        """Begins a step: what is measured from now on is its value."""
        self.value = dict(nccl_steps.OK, began=time.monotonic(), gpus={})
        for gpu in gpus:
            self.value["gpus"][str(gpu)] = {"kinds": {}, "gb_s": {}, "digests": {}, "wrong": []}
        self.mark(marks, gpus, "begin")
        self.tell()

    def tell(self):
        self.say(part=self.step["id"] + " so far", value=self.value)

    def ends(self, gpus, marks):
        self.value["ended"] = time.monotonic()
        self.mark(marks, gpus, "end")
        self.value["words"] = self.words()
        wrong = [gpu for gpu, measured in self.value["gpus"].items() if measured["wrong"]]
        if wrong:
            text = "wrong results on GPU %s" % ", ".join(wrong)
            self.value.update(ok=False, outcome="wrong data", error=text)
        return self.value

    def words(self):
        """What was measured, as texts for a line of progress: of several GPUs the slowest."""
        rates = {}
        for measured in self.value["gpus"].values():
            for kind, product in measured["kinds"].items():
                rates.setdefault(kind, []).append(product["tflops"])
        least = "from " if len(self.value["gpus"]) > 1 else ""
        made = ["%s %s%.1f TFLOPS" % (kind.upper(), least, min(values)) for kind, values in rates.items()]
        rate = self.value.get("all_reduce_gb_s")
        return made + (["all-reduce %.1f GB/s" % rate] if rate else [])

    def mark(self, marks, gpus, event):
        """Appends a line to the file of marks, for whoever records the machine meanwhile."""
        if not marks:
            return
        line = {"t": round(time.time(), 3), "stage": self.step["title"], "gpus": list(gpus), "event": event}
        with contextlib.suppress(OSError), open(marks, "a") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def of(self, gpu):
        return self.value["gpus"][str(gpu)]

    # --- the steps

    def do_alone(self, gpu, seconds, kinds, marks):
        """One GPU: each kind of product, and its copies."""
        self.begins([gpu], marks)
        for kind in kinds:
            self.load([gpu], kind, 0.8 * seconds / len(kinds), digest=True)
        self.copy(gpu, 0.2 * seconds)
        return self.ends([gpu], marks)

    def do_together(self, gpus, seconds, kind, marks):
        """Products on these GPUs at once."""
        gpus = list(gpus)
        self.begins(gpus, marks)
        if gpus:
            self.load(gpus, kind, seconds)
        return self.ends(gpus, marks)

    def do_in_step(self, gpus, seconds, kind, collective, marks):
        """All GPUs in step, as in training: products and all-reduces, then a pause in which no GPU has work."""
        gpus = list(gpus)
        self.begins(gpus, marks)
        if not gpus:
            return self.ends(gpus, marks)
        collective = collective and len(gpus) > 1
        if collective:
            self.communicator(gpus)
        self.prepare(gpus, kind)
        number = odd(PRODUCTS_S / self.longest(gpus, kind))
        for gpu in gpus:
            self.lengths[gpu, kind] = number
            self.products[gpu, kind]["first"] = True
            if collective:
                self.gradient(gpu)
        until = time.monotonic() + seconds
        while True:
            for _ in range(TRAINING_STEPS):
                self.batch(gpus, kind)
                if collective:
                    self.all_reduced(gpus)
            self.tell()
            if time.monotonic() >= until:
                return self.ends(gpus, marks)
            time.sleep(PAUSE_S)

    # --- products

    def load(self, gpus, kind, seconds, digest=False):
        """Products on these GPUs for about that long. Each gets its next batch early, and waits for no other GPU."""
        self.prepare(gpus, kind)
        slowest = self.longest(gpus, kind)
        lanes = []
        for gpu in gpus:
            self.lengths[gpu, kind] = odd(min(BATCH_S, seconds / 4) / slowest)
            self.products[gpu, kind]["first"] = True
            lanes.append(Lane(self, gpu, kind))
        until = time.monotonic() + seconds
        while True:
            more = time.monotonic() < until
            for lane in lanes:
                lane.take_results()
                if len(lane.waiting) < AHEAD and (more or not lane.begun):
                    lane.begin()
            if all(lane.done > lane.said or not lane.waiting for lane in lanes):
                for lane in lanes:
                    lane.said = lane.done
                self.tell()
            if not more and not any(lane.waiting for lane in lanes):
                break
            time.sleep(POLL_S)
        for gpu in gpus if digest else ():
            self.of(gpu)["digests"][kind] = self.digest(gpu, kind)

    def prepare(self, gpus, kind):
        """Allocates and fills the matrices of a kind on these GPUs, and starts cuBLAS there."""
        for gpu in gpus:
            if (gpu, kind) in self.products:
                continue
            of, capability = KINDS[kind], self.compute_capability(self.job["devices"][str(gpu)])
            side = 8192 if of.large and capability >= of.large else of.side
            self.cublas_handle(gpu)
            size = side * side * SIZES[of.c_type]
            self.products[gpu, kind] = {
                "side": side,
                "a": self.filled(gpu, of.a_type, side),
                "c": self.memory(gpu, size),
                "kept": self.memory(gpu, size),
                "left": self.memory(gpu, 8),
                "outcomes": self.cudart.made("cudaHostAlloc", 8 * (AHEAD + 1), 0),
                "first": True,
            }
            self.tell()

    def filled(self, gpu, type_, side):
        """A square matrix of random numbers from 1 to 2, the same ones on every GPU and in every process."""
        if type_ not in self.blocks:
            bits = random.Random(SEED).getrandbits(8 * SIZES[type_] * BLOCK)
            self.blocks[type_] = nccl_steps.floats(bits, *MASKS[type_], SIZES[type_], BLOCK)
        if (gpu, type_, side) not in self.matrices:
            made, block = self.memory(gpu, side * side * SIZES[type_]), self.blocks[type_]
            for at in range(0, side * side * SIZES[type_], len(block)):
                self.cudart.cudaMemcpy(made.value + at, block, len(block), nccl_cuda.TO_DEVICE)
            self.matrices[gpu, type_, side] = made
        return self.matrices[gpu, type_, side]

    def longest(self, gpus, kind):
        """Seconds of a product on the slowest of these GPUs, all at once, after a warm-up."""
        for number in (1, 3):
            took = self.multiplied(gpus, kind, dict.fromkeys(gpus, number))
        return max(took.values()) / 3

    def batch(self, gpus, kind):
        """A batch on each GPU; adds its speed to what was measured, and compares its result."""
        began = time.monotonic()
        took = self.multiplied(gpus, kind, {gpu: self.lengths[gpu, kind] for gpu in gpus})
        for gpu in gpus:
            self.count(gpu, kind, took[gpu], began)
        for gpu in gpus:
            self.compare(gpu, kind)

    def count(self, gpu, kind, seconds, began):
        """Adds a batch that took that long to what was measured."""
        side, number = self.products[gpu, kind]["side"], self.lengths[gpu, kind]
        new = {"products": 0, "seconds": 0.0, "tflops": 0.0, "span": [began, began]}
        sums = self.of(gpu)["kinds"].setdefault(kind, new)
        sums["products"] += number
        sums["seconds"] += seconds
        sums["tflops"] = 2.0 * side**3 * sums["products"] / sums["seconds"] / 1e12
        sums["span"][1] = time.monotonic()

    def multiplied(self, gpus, kind, numbers):
        """Seconds that each GPU took for that many products."""
        return self.seconds_of(gpus, lambda: self.launch(gpus, kind, numbers))

    def launch(self, gpus, kind, numbers):
        """Puts that many products into the stream of each GPU: C = A x A, - A x A + C, A x A + C, ..."""
        of = KINDS[kind]
        signs, none = {sign: of.number(sign) for sign in (1, -1)}, of.number(0)
        for at in range(max(numbers.values())):
            sign, kept = signs[-1 if at % 2 else 1], signs[1] if at else none
            for gpu in gpus:
                if at >= numbers[gpu]:
                    continue
                product = self.products[gpu, kind]
                self.multiply_kind(gpu, of, product["side"], product["a"], product["c"], sign, kept)

    def multiply_kind(self, gpu, of, side, a, c, sign, kept):
        """Puts C = sign A x A + kept C into the stream of the GPU."""
        self.device(gpu)
        self.cublas.cublasGemmEx(
            self.handles[gpu], 0, 0, side, side, side, ctypes.byref(sign), a, of.a_type, side, a, of.a_type, side,
            ctypes.byref(kept), c, of.c_type, side, of.compute, -1,
        )  # fmt: skip

    def compare(self, gpu, kind):
        """Keeps the result of the first batch; subtracts it from that of a later one, in which nothing may be left."""
        product, of = self.products[gpu, kind], KINDS[kind]
        count = product["side"] ** 2
        if product["first"]:
            product["first"] = False
            self.vectors(gpu, of, "copy", count, product["c"], 1, product["kept"], 1)
            return
        self.add_difference(gpu, kind, self.difference(gpu, of, count, product["c"], product["kept"]))

    def vectors(self, gpu, of, name, *arguments):
        self.device(gpu)
        getattr(self.cublas, "cublas%s%s_v2" % (of.letter, name))(self.handles[gpu], *arguments)

    def difference(self, gpu, of, count, result, kept):
        """Subtracts `kept` from `found`; the sum of what is left, without signs."""
        minus, left = of.number(-1), of.number()
        self.vectors(gpu, of, "axpy", count, ctypes.byref(minus), kept, 1, result, 1)
        self.vectors(gpu, of, "asum", count, result, 1, ctypes.byref(left))
        return left.value

    def add_difference(self, gpu, kind, difference):
        if difference != 0:  # also when it is not a number
            text = "products in %s: a result differs from the first one, by %g in all" % (kind, difference)
            self.add_wrong(gpu, kind, text)

    def add_wrong(self, gpu, kind, text):
        wrong = self.of(gpu)["wrong"]
        if len(wrong) < MOST_WRONG:
            wrong.append({"kind": kind, "at": time.monotonic(), "text": text})

    def digest(self, gpu, kind):
        """A checksum of one product: equal on GPUs of the same model."""
        self.multiplied([gpu], kind, {gpu: 1})
        product = self.products[gpu, kind]
        size = product["side"] ** 2 * SIZES[KINDS[kind].c_type]
        _, got = self.host(HOST_COPY)
        code = 0
        for at in range(0, size, HOST_COPY):
            length = min(HOST_COPY, size - at)
            self.device(gpu)
            self.cudart.cudaMemcpy(got, product["c"].value + at, length, nccl_cuda.FROM_DEVICE)
            code = zlib.crc32((ctypes.c_char * length).from_address(got.value), code)
        return "%08x" % (code & 0xFFFFFFFF)

    # --- all-reduce

    def gradient(self, gpu):
        """Buffers for the all-reduce: two results of products, their sum, and the first sum."""
        if gpu in self.gradients:
            return
        of, side = KINDS["fp32"], KINDS["fp32"].side
        count = 2 * side * side
        source, target, kept = (self.memory(gpu, 4 * count) for _ in range(3))
        a, unit, none = self.filled(gpu, R_32F, side), of.number(1), of.number(0)
        for at in (0, 4 * side * side):
            self.multiply_kind(gpu, of, side, a, source.value + at, unit, none)
        self.gradients[gpu] = {"source": source, "target": target, "kept": kept, "count": count, "first": True}

    def all_reduced(self, gpus):
        """An all-reduce over these GPUs; adds its speed to the value, and compares its result with the first."""
        count = self.gradients[gpus[0]]["count"]
        buffers = {gpu: (self.gradients[gpu]["source"], self.gradients[gpu]["target"]) for gpu in gpus}
        took = self.seconds_of(gpus[:1], lambda: self.reduce(buffers, count, nccl_cuda.FLOAT))[gpus[0]]
        shares = 2 * (len(gpus) - 1) / len(gpus)
        self.rates.append(4 * count * shares / took / 1e9)
        del self.rates[:-1000]
        self.value["all_reduce_gb_s"] = sorted(self.rates)[len(self.rates) // 2]
        of = KINDS["fp32"]
        for gpu in gpus:
            gradient = self.gradients[gpu]
            if gradient["first"]:
                gradient["first"] = False
                self.vectors(gpu, of, "copy", count, gradient["target"], 1, gradient["kept"], 1)
                continue
            left = self.difference(gpu, of, count, gradient["target"], gradient["kept"])
            if left != 0:
                self.add_wrong(gpu, "all-reduce", "all-reduce: a sum differs from the first one, by %g in all" % left)

    # --- copies

    def copy(self, gpu, seconds):
        """GB/s of the GPU's own memory (reads and writes), to the GPU and back; the data is compared."""
        cudart, stream = self.cudart, self.stream(gpu)
        sent, got = self.host(HOST_COPY)
        source, target = self.memory(gpu, COPY), self.memory(gpu, COPY)
        ways = (
            ("memory", 2 * COPY, (target, source, COPY, DEVICE_TO_DEVICE)),
            ("to_device", HOST_COPY, (source, sent, HOST_COPY, nccl_cuda.TO_DEVICE)),
            ("from_device", HOST_COPY, (got, source, HOST_COPY, nccl_cuda.FROM_DEVICE)),
        )
        for name, size, arguments in ways:
            copy = functools.partial(cudart.cudaMemcpyAsync, *arguments, stream)
            times = max(1, min(2000, int(seconds / 3 / 3 / self.seconds(gpu, 1, copy))))
            self.of(gpu)["gb_s"][name] = size / self.seconds(gpu, times, copy) / 1e9
            self.tell()
        value = nccl_steps.comparison(sent, got, HOST_COPY)
        if not value["ok"]:
            self.add_wrong(gpu, "copies", "copies to the GPU and back: %s" % value["error"])
        self.free(gpu, source, target)


class Lane:
    """The batches of one GPU: begun without waiting, in its stream; their results are taken when they are there.

    `waiting`: events and result of each batch that has begun; `done`: how many have ended.
    """

    def __init__(self, work, gpu, kind):
        self.work, self.gpu, self.kind = work, gpu, kind
        self.waiting, self.begun, self.done, self.said = [], 0, 0, 0

    def begin(self):
        """Puts a batch, its comparison with the first one, and the copy of the outcome into the stream."""
        work, gpu, of = self.work, self.gpu, KINDS[self.kind]
        stream, product, began = work.stream(gpu), work.products[gpu, self.kind], time.monotonic()
        outcome = ctypes.cast(product["outcomes"].value + 8 * (self.begun % (AHEAD + 1)), ctypes.POINTER(of.number))
        events = [work.record(gpu)]
        work.launch([gpu], self.kind, {gpu: work.lengths[gpu, self.kind]})
        events.append(work.record(gpu))
        if product["first"]:
            product["first"] = False
            outcome[0] = 0
            work.vectors(gpu, of, "copy", product["side"] ** 2, product["c"], 1, product["kept"], 1)
        else:
            minus, count = of.number(-1), product["side"] ** 2
            work.vectors(gpu, of, "axpy", count, ctypes.byref(minus), product["kept"], 1, product["c"], 1)
            work.cublas.cublasSetPointerMode_v2(work.handles[gpu], ON_DEVICE)
            work.vectors(gpu, of, "asum", count, product["c"], 1, product["left"])
            work.cublas.cublasSetPointerMode_v2(work.handles[gpu], ON_HOST)
            work.cudart.cudaMemcpyAsync(outcome, product["left"], SIZES[of.c_type], nccl_cuda.FROM_DEVICE, stream)
        events.append(work.record(gpu))
        self.begun += 1
        self.waiting.append((events, outcome, began))

    def take_results(self):
        """Adds the batches that have ended to what was measured."""
        work = self.work
        work.device(self.gpu)
        while self.waiting and work.cudart.is_done("cudaEventQuery", self.waiting[0][0][2]):
            (start, end, last), outcome, began = self.waiting.pop(0)
            work.count(self.gpu, self.kind, work.seconds_between(self.gpu, start, end), began)
            work.add_difference(self.gpu, self.kind, outcome[0])
            work.cudart.cudaEventDestroy(last)
            self.done += 1


def odd(number):
    """The nearest odd number, from 1 to MOST_IN_BATCH."""
    return min(MOST_IN_BATCH, max(1, 2 * int(number / 2) + 1))
