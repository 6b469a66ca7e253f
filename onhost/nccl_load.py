#!/usr/bin/env python3
"""Measures the speed of this machine's GPUs under a short load, several times. Prints a JSON document.

    nccl_load.py                        two processes of three rounds, about 20 s
    nccl_load.py --without collective   no NCCL; copies: no copies between GPUs; both: collective,copies

Needs what nccl_p2p.py needs. A round is: products of 4096 x 4096 matrices of 32-bit floats on all GPUs at once, copies
of 64 MiB from every GPU to every other one, and NCCL's all-reduce of 256 MiB. The first round of a process warms the
GPUs up and is not counted. Clock, power and temperature are read with NVML while the products run (the median of a
round), if pynvml.py of nvidia-ml-py is beside this file. Each part runs with a time limit in a child process; one that
hangs is killed, and that part is not run again.

Exit status: 0 measured, 1 a part failed, 2 could not run. The document:

    {"schema": 1, "outcome": "ok" | "failed" | "could not run", "started", "seconds", "versions", "libraries",
     "gpus": [{"index", "bus_id", "uuid", "name"}],
     "rounds": [{"process", "tflops": [one per GPU] | null, "copies": [{"start", "end", "gb_s"}] | null,
                 "all_reduce_gb_s" (bus bandwidth) | null,
                 "sensors": [{"clock_mhz", "power_w", "temperature_c", "reasons"}, one per GPU] | null}],
     "errors": [{"where", "what"}], "left_behind"}
"""

import contextlib
import ctypes
import os
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
try:
    import pynvml
except ImportError:
    pynvml = None
import nccl_cuda
import nccl_steps
from nccl_measurement import Measurement, carried_out, parse, parser_of, parts_without
from nccl_steps import MIB, OK, SIDE
from nccl_watch import Watch, in_words, step

PARTS = ("copies", "collective")
COPY, SUM = 64 * MIB, 256 * MIB
PRODUCT = 2.0 * SIDE**3  # operations
SAMPLE_S = 0.1
IDLE = 0x1  # NVML's reason for a lower clock: nothing runs
START_S, PRODUCTS_S, SUM_S = 60, 60, 30  # limits: of NCCL's connections, of the products, of an all-reduce (assumed)


class LoadWork(nccl_steps.PlacedWork):
    """The steps of the load. What they allocate stays until the process ends."""

    def __init__(self, job, report_fd):
        super().__init__(job, report_fd)
        self.gradients, self.peers, self.product_s, self.sensors = {}, set(), None, None

    # --- products

    def do_products(self, gpus, seconds):
        """Products on all GPUs at once for about that long: TFLOPS of each GPU, and what NVML says meanwhile."""
        for gpu in gpus:
            self.prepare(gpu)
        if self.product_s is None:
            self.multiply_each(gpus, [4] * len(gpus))
            self.product_s = max(self.multiply_each(gpus, [8] * len(gpus))) / 8
        number = max(4, round(seconds / self.product_s))
        took, sensors = self.with_sensors(gpus, lambda: self.multiply_each(gpus, [number] * len(gpus)))
        self.product_s = max(took) / number
        rates = [round(number * PRODUCT / one / 1e12, 4) for one in took]
        return dict(OK, tflops=rates, sensors=sensors)

    def with_sensors(self, gpus, act):
        """The result of `act()`, and what NVML says of the GPUs meanwhile."""
        sampler = Sampler(self.nvml_handles(gpus))
        sampler.start()
        try:
            result = act()
        finally:
            sensors = sampler.stop()
        return result, sensors

    def multiply_each(self, gpus, numbers):
        """Seconds of each GPU for its number of products. They start in turns, so that no GPU waits."""
        most = max(numbers)

        def launch():
            for turn in range(most):
                for at, gpu in enumerate(gpus):
                    if (turn + 1) * numbers[at] // most != turn * numbers[at] // most:
                        self.multiply(gpu)

        return list(self.seconds_of(gpus, launch).values())

    def nvml_handles(self, gpus):
        """NVML's handle of each GPU; [] without pynvml.py beside this file, or without an answer of NVML."""
        if self.sensors is None:
            self.sensors = []
            with contextlib.suppress(Exception):  # of many kinds; without sensors the speeds are still measured
                pynvml.nvmlInit()
                self.sensors = [pynvml.nvmlDeviceGetHandleByPciBusId(self.bus_id(gpu)) for gpu in gpus]
        return self.sensors

    def bus_id(self, gpu):
        text = ctypes.create_string_buffer(32)
        self.cudart.cudaDeviceGetPCIBusId(text, 32, self.job["devices"][str(gpu)])
        return text.value

    # --- between GPUs

    def do_copies(self, pairs):
        """The speed of each pair [from, to, with peer access]."""
        speeds = []
        for a, b, direct in pairs:
            if direct and (a, b) not in self.peers:
                self.set_access([(a, b)], True)
                self.peers |= {(a, b), (b, a)}
            start, source, target = self.copier(a, b), self.buffer("copies", a, COPY), self.buffer("copies", b, COPY)

            def copy(start=start, source=source, target=target):
                start(source, target, COPY)

            copy()
            self.cudart.cudaStreamSynchronize(self.stream(a))
            speeds.append({"start": a, "end": b, "gb_s": round(COPY / self.round_seconds(a, 4, copy) / 1e9, 4)})
        return dict(OK, copies=speeds)

    def do_sum(self, ranks):
        """The bus bandwidth of the all-reduce over these GPUs."""
        self.communicator(ranks)
        for gpu in ranks:
            if gpu not in self.gradients:
                self.gradients[gpu] = (self.memory(gpu, SUM),) * 2

        def reduce():
            self.reduce(self.gradients, SUM // 4, nccl_cuda.FLOAT)

        reduce()
        for gpu in ranks:
            self.device(gpu)
            self.cudart.cudaStreamSynchronize(self.stream(gpu))
        took = self.round_seconds(ranks[0], 3, reduce)
        shares = 2.0 * (len(ranks) - 1) / len(ranks)
        return dict(OK, busbw_gb_s=round(SUM * shares / took / 1e9, 4))


class Sampler(threading.Thread):
    """Reads clock, power, temperature and the reasons for a lower clock of these GPUs every SAMPLE_S seconds."""

    def __init__(self, handles):
        super().__init__(daemon=True)
        self.handles, self.ended = handles, threading.Event()
        self.samples = [[] for _ in handles]

    def run(self):
        while not self.ended.wait(SAMPLE_S):
            for number, handle in enumerate(self.handles):
                self.samples[number].append(sample(handle))

    def stop(self):
        """The median of each value and all reasons, by GPU; the first quarter is left out. None without samples."""
        self.ended.set()
        self.join()
        if not self.handles or not all(self.samples):
            return None
        return [summary(samples[len(samples) // 4 :]) for samples in self.samples]


def sample(handle):
    def ask(name, *arguments):
        try:
            return getattr(pynvml, name)(handle, *arguments)
        except (pynvml.NVMLError, AttributeError):
            return None

    power_mw = ask("nvmlDeviceGetPowerUsage")
    return {
        "clock_mhz": ask("nvmlDeviceGetClockInfo", 0),
        "power_w": None if power_mw is None else power_mw / 1000.0,
        "temperature_c": ask("nvmlDeviceGetTemperature", 0),
        "reasons": ask("nvmlDeviceGetCurrentClocksThrottleReasons"),
    }


def summary(samples):
    made = {}
    for name in ("clock_mhz", "power_w", "temperature_c"):
        values = sorted(one[name] for one in samples if one[name] is not None)
        made[name] = round(values[len(values) // 2], 1) if values else None
    reasons = [one["reasons"] & ~IDLE for one in samples if one["reasons"] is not None]
    made["reasons"] = 0 if reasons else None
    for one in reasons:
        made["reasons"] |= one
    return made


class Load(Measurement):
    """One measurement; adds its results to `document`."""

    def __init__(self, options, watch):
        super().__init__(options, watch, rounds=[])
        self.failed_parts = set()

    def run(self):
        collective = "collective" not in self.options.without
        look = self.look(collective)
        if not self.looked(look):
            return
        pairs = look["peers"] if "copies" not in self.options.without else []
        gpus = list(range(len(self.document["gpus"])))
        for process in range(self.options.processes):
            self.process(process, gpus, pairs, collective and len(gpus) > 1)

    def process(self, process, gpus, pairs, collective):
        """A process of its own: a new context and a new communicator. The first round is not counted."""
        steps, seconds = [], self.options.round_s
        for number in range(self.options.rounds + 1):
            title = "process %d, %s" % (process + 1, "round %d" % number if number else "warm-up")
            made = [
                step("products", title + ": products", "products %d" % number, [gpus, seconds], timeout_s=PRODUCTS_S)
            ]
            if pairs and "copies" not in self.failed_parts:
                limit_s = 10 + len(pairs)
                made.append(step("copies", title + ": copies", "copies %d" % number, [pairs], timeout_s=limit_s))
            if collective and "collective" not in self.failed_parts:
                ranks = list(gpus)
                made.append(step("sum", title + ": all-reduce", "sum %d" % number, [ranks], [], ranks, SUM_S))
            steps += [dict(one, init_s=START_S) for one in made]
        answers = self.watch.run(steps)
        for ident, answer in answers.items():
            part = {"products": "products", "copies": "copies", "sum": "collective"}[ident.partition(" ")[0]]
            if answer["ok"] is not True and part not in self.failed_parts:
                self.failed_parts.add(part)
                self.wrong(part, in_words(answer))
        for number in range(1, self.options.rounds + 1):
            products, copies, total = (answers.get("%s %d" % (do, number), {}) for do in ("products", "copies", "sum"))
            made = {"process": process, "tflops": products.get("tflops"), "copies": copies.get("copies")}
            made.update(all_reduce_gb_s=total.get("busbw_gb_s"), sensors=products.get("sensors"))
            self.document["rounds"].append(made)


def options_of(words):
    parser = parser_of(__doc__)
    parser.add_argument("--without", default="", help="parts to leave out: copies, collective")
    parser.add_argument("--processes", type=int, default=2, help="processes, one after the other (2)")
    parser.add_argument("--rounds", type=int, default=3, help="counted rounds of each process (3)")
    parser.add_argument("--round-s", type=float, default=1.5, help="duration of the products of a round (1.5)")
    parser.add_argument("--timeout-s", type=float, default=300, help="time limit of the whole measurement (300)")
    parser.add_argument("--step-timeout-s", type=float, help="time limit of one step (default: 10 to 60)")
    options = parse(parser, words, quick=True, journal=None)
    options.without = parts_without(parser, options.without, PARTS)
    if options.processes < 1 or options.rounds < 1 or not 0 < options.round_s <= 60:
        parser.error("--processes and --rounds are 1 or more, --round-s is up to 60")
    return options


def main():
    if sys.argv[1:2] == ["--worker"]:
        return nccl_steps.main(sys.argv[2], int(sys.argv[3]), LoadWork)
    options = options_of(sys.argv[1:])
    watch = Watch(options, os.path.abspath(__file__))
    return carried_out(Load(options, watch), watch)


if __name__ == "__main__":
    sys.exit(main())
