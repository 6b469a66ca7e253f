#!/usr/bin/env python3
"""all_reduce_perf and sendrecv_perf for a simulated host: NVIDIA's options and table, over the simulated CUDA and NCCL.

A stand-in, and its first line says so: NVIDIA's own programs are built with nvcc and hold machine code for GPUs. This
one is called by either name and finds the libraries as the loader does, or beside itself, or where rigwright brought
them. Each size is sent once, however many iterations are asked for, since simulated time does not vary; up to 8 MiB the
data is compared, and N/A stands for the rest. `--layout old` prints the table as it was until 2021. Exit status 1 with
wrong data, as NVIDIA's have it.
"""

from __future__ import annotations

import argparse
import array
import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

KEPT = Path("/var/lib/rigwright/libraries")
FLOAT, SUM, TO_DEVICE, FROM_DEVICE = 7, 0, 1, 2
COMPARED = 8 << 20
UNITS = {"K": 10, "M": 20, "G": 30}


def library(name: str) -> ctypes.CDLL:
    """Returns the library from the loader, this program's folder, or the libraries that rigwright copied to this host.

    Exits with status 127 if there is none.
    """
    try:
        return ctypes.CDLL(name)
    except OSError:
        below = [*Path(sys.argv[0]).resolve().parent.glob(name), *sorted(KEPT.glob(f"*/{name}"))]
        if not below:
            program = Path(sys.argv[0]).name
            sys.stderr.write(
                f"{program}: error while loading shared libraries: {name}: cannot open shared object file\n"
            )
            sys.exit(127)
        return ctypes.CDLL(str(below[0]))


def size_of(text: str) -> int:
    """Converts a size to bytes: `8M` is 8388608."""
    shift = UNITS.get(text[-1:].upper())
    return int(text[:-1]) << shift if shift else int(text)


class Gpus:
    """The GPUs; each has a stream, two buffers and a communicator."""

    def __init__(self, count: int, largest: int) -> None:
        self.cudart, self.nccl = library("libcudart.so.12"), library("libnccl.so.2")
        self.count, self.streams, self.buffers = count, [], []
        for gpu in range(count):
            self.cuda("cudaSetDevice", gpu)
            self.streams.append(self.made("cudaStreamCreateWithFlags", 1))
            self.buffers.append([self.made("cudaMalloc", ctypes.c_size_t(largest)) for _ in range(2)])
        self.comms = (ctypes.c_void_p * count)()
        self.must(
            self.nccl.ncclCommInitAll(self.comms, count, (ctypes.c_int * count)(*range(count))), "ncclCommInitAll"
        )

    def cuda(self, name: str, *arguments: Any) -> None:
        self.must(getattr(self.cudart, name)(*arguments), name, "CUDA")

    def made(self, name: str, *arguments: Any) -> ctypes.c_void_p:
        out = ctypes.c_void_p()
        self.cuda(name, ctypes.byref(out), *arguments)
        return out

    def must(self, code: int, name: str, whose: str = "NCCL") -> None:
        if code:
            print(f"lab: Test {whose} failure nccl_tests.py '{name}: error {code}'")
            print(f"lab: Test failure nccl_tests.py: stopped at {name}", flush=True)
            sys.exit(3)

    def each(self, call: Callable[[int], int], name: str) -> None:
        """Calls `call` for every GPU in one NCCL group."""
        self.must(self.nccl.ncclGroupStart(), "ncclGroupStart")
        for gpu in range(self.count):
            self.must(call(gpu), name)
        self.must(self.nccl.ncclGroupEnd(), name)

    def all_reduce(self, count: int, inplace: bool) -> None:
        def call(gpu: int) -> int:
            source, target = self.buffers[gpu][int(inplace)], self.buffers[gpu][1]
            words = (
                source,
                target,
                ctypes.c_size_t(count),
                FLOAT,
                SUM,
                ctypes.c_void_p(self.comms[gpu]),
                self.streams[gpu],
            )
            return int(self.nccl.ncclAllReduce(*words))

        self.each(call, "ncclAllReduce")

    def sendrecv(self, count: int, _inplace: bool) -> None:
        def call(gpu: int) -> int:
            comm, stream, size = ctypes.c_void_p(self.comms[gpu]), self.streams[gpu], ctypes.c_size_t(count)
            before, after = (gpu - 1) % self.count, (gpu + 1) % self.count
            sent = int(self.nccl.ncclSend(self.buffers[gpu][0], size, FLOAT, after, comm, stream))
            return sent or int(self.nccl.ncclRecv(self.buffers[gpu][1], size, FLOAT, before, comm, stream))

        self.each(call, "ncclSend")

    def fill(self, which: int, count: int) -> None:
        """Fills one buffer of every GPU with the pattern 1, 2, 3 ... 1000, 1, ... times the GPU's number (from 1)."""
        for gpu in range(self.count):
            numbers = array.array("f", [float(value * (gpu + 1)) for value in range(1, 1001)])
            data = (numbers * (count // 1000 + 1))[:count].tobytes()
            self.cuda("cudaSetDevice", gpu)
            self.cuda("cudaMemcpy", self.buffers[gpu][which], data, ctypes.c_size_t(len(data)), TO_DEVICE)

    def wrong(self, count: int, factor: Callable[[int], int]) -> int:
        """Returns the number of values on all GPUs that differ from the pattern times factor(GPU)."""
        found = 0
        for gpu in range(self.count):
            got = ctypes.create_string_buffer(4 * count)
            self.cuda("cudaSetDevice", gpu)
            self.cuda("cudaMemcpy", got, self.buffers[gpu][1], ctypes.c_size_t(4 * count), FROM_DEVICE)
            numbers = array.array("f", [float(value * factor(gpu)) for value in range(1, 1001)])
            data, pattern = memoryview(got.raw), numbers.tobytes()
            for at in range(0, len(data), len(pattern)):
                if (part := data[at : at + len(pattern)]) != pattern[: len(part)]:
                    found += sum(a != b for a, b in zip(array.array("f", bytes(part)), numbers, strict=False))
        return found

    def seconds(self, act: Callable[[], None]) -> float:
        """Returns the duration of one call in seconds, between two events of the first GPU's stream."""
        self.cuda("cudaSetDevice", 0)
        start, end, ms = self.made("cudaEventCreate"), self.made("cudaEventCreate"), ctypes.c_float()
        self.cuda("cudaEventRecord", start, self.streams[0])
        act()
        self.cuda("cudaSetDevice", 0)
        self.cuda("cudaEventRecord", end, self.streams[0])
        self.cuda("cudaEventSynchronize", end)
        self.cuda("cudaEventElapsedTime", ctypes.byref(ms), start, end)
        for gpu in range(self.count):
            self.cuda("cudaSetDevice", gpu)
            self.cuda("cudaStreamSynchronize", self.streams[gpu])
        return max(ms.value, 1e-6) / 1000


def measured(gpus: Gpus, name: str, size: int, check: bool, inplace: bool) -> tuple[float, float, float, str]:
    """Measures one size.

    Returns time in microseconds, algbw and busbw in GB/s, and the number of wrong values (or N/A).
    """
    count, sums = size // 4, name == "all_reduce_perf"
    act = gpus.all_reduce if sums else gpus.sendrecv
    compare = check and size <= COMPARED and not (inplace and not sums)
    if compare:
        gpus.fill(int(inplace), count)
    took = gpus.seconds(lambda: act(count, inplace))
    total = gpus.count * (gpus.count + 1) // 2
    factor = (lambda _gpu: total) if sums else (lambda gpu: (gpu - 1) % gpus.count + 1)
    wrong = str(gpus.wrong(count, factor)) if compare else "N/A"
    speed = size / took / 1e9
    return took * 1e6, speed, speed * (2 * (gpus.count - 1) / gpus.count if sums else 1), wrong


def options_of(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for letter, usual in (("b", "32M"), ("e", "32M")):
        parser.add_argument(f"-{letter}", type=size_of, default=usual)
    for letter, number in (("f", 2), ("g", 1), ("c", 1), ("n", 20), ("w", 1)):
        parser.add_argument(f"-{letter}", type=int, default=number)
    parser.add_argument("--layout", choices=("old", "new"), default="new")
    return parser.parse_args(words)


def main() -> int:
    """Prints the table. Returns 1 if data was wrong."""
    name, options = Path(sys.argv[0]).name, options_of(sys.argv[1:])
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    print(f"# {name}: a stand-in for NVIDIA's, over simulated GPUs; every size is sent once")
    print(f"# nThread 1 nGpus {options.g} minBytes {options.b} maxBytes {options.e} step: {options.f}(factor)")
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    gpus, old = Gpus(options.g, options.e), options.layout == "old"
    group = ["time", "algbw", "busbw", "error" if old else "#wrong"]
    leading = ["size", "count", "type", "redop", *([] if old else ["root"])]
    print("#" + "".join(word.rjust(12) for word in (*leading, *group, *group)))
    size, bad, speeds = options.b, 0, []
    while size <= options.e:
        row = [
            str(size),
            str(size // 4),
            "float",
            "sum" if name == "all_reduce_perf" else "none",
            *([] if old else ["-1"]),
        ]
        for inplace in (False, True):
            took, speed, bus, wrong = measured(gpus, name, size, bool(options.c), inplace)
            bad += int(wrong) if wrong != "N/A" else 0
            speeds.append(bus)
            row += [f"{took:.1f}", f"{speed:.2f}", f"{bus:.2f}", wrong]
        print(" " + "".join(word.rjust(12) for word in row))
        size *= options.f
    print(f"# Out of bounds values : {bad} {'FAILED' if bad else 'OK'}")
    print(f"# Avg bus bandwidth    : {sum(speeds) / len(speeds):g}\n#")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
