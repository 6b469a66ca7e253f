"""What NVML, the kernel log and the supplies say while stress.py runs, read with the recorder's own functions.

A GPU that does not answer does not stop the others. Without pynvml.py of nvidia-ml-py beside this file there are no
samples and no counters of GPUs.
"""

import contextlib
import threading
import time

import recorder

SAMPLE_S = 0.1
MOST_SAMPLES = 20000  # of a GPU and phase; when there are more, every second one is left out
SILENT_S = 5  # a reading that takes longer does not end
REASONS = {  # bits of nvmlDeviceGetCurrentClocksThrottleReasons, without idle (0x1)
    0x2: "application clocks",
    0x4: "power limit",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "heat, by the driver",
    0x40: "heat, by the hardware",
    0x80: "power brake",
}
POWER, SM_MHZ, MEMORY_MHZ, CORE_C, MEMORY_C, BITS = range(6)  # the places in a sample of the recorder
MOST_SUPPLIES, LONGEST_NAME = 32, 120


class Gpu(threading.Thread):
    """Reads one GPU until `ended`. `lost`: when it was lost, by time.monotonic(); None while it answers.

    `samples`: pairs of a time and a sample as in recorder.py.
    """

    def __init__(self, handle):
        super().__init__(daemon=True)
        self.handle, self.samples, self.lost, self.ended, self.returned = handle, [], None, False, time.monotonic()

    def run(self):
        while not self.ended:
            at, sample = time.monotonic(), recorder.sample(self.handle)
            if sample == "lost":
                self.lost = self.lost or time.monotonic()
                return
            self.returned = time.monotonic()
            self.samples.append((at, sample))
            if len(self.samples) > MOST_SAMPLES:
                self.samples = self.samples[::2]
            time.sleep(SAMPLE_S)

    def silent(self):
        """Since when NVML does not answer; None if it does."""
        return self.returned if self.is_alive() and time.monotonic() - self.returned > SILENT_S else None


class Sensors:
    """The sensors and counters of GPUs, by CUDA's number; of no GPU without pynvml.py, or without an answer of NVML."""

    def __init__(self, bus_ids):
        self.gpus, pynvml = {}, recorder.pynvml
        if pynvml is None:
            return
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            for number, bus_id in enumerate(bus_ids):
                with contextlib.suppress(pynvml.NVMLError):
                    self.gpus[number] = Gpu(pynvml.nvmlDeviceGetHandleByPciBusId(bus_id.encode()))

    def start(self):
        for gpu in self.gpus.values():
            gpu.start()

    def stop(self):
        for gpu in self.gpus.values():
            gpu.ended = True
        for gpu in self.gpus.values():
            gpu.join(1)

    def forget_samples(self):
        for gpu in self.gpus.values():
            gpu.samples = []

    def limits(self, number):
        """The limits of a GPU that do not change while it works; None: not reported."""
        handle = self.gpus[number].handle if number in self.gpus else None
        limits = {
            "power_limit_w": recorder.watts(recorder.reading("nvmlDeviceGetEnforcedPowerLimit", handle)),
            "sm_most_mhz": recorder.reading("nvmlDeviceGetMaxClockInfo", handle, 1),
        }
        return dict(limits, **recorder.temperature_limits(handle))

    def counters(self, number):
        """Replays of the PCIe link of a GPU, and memory errors since the driver was loaded; None: not reported."""
        gpu = self.gpus.get(number)
        handle = None if gpu is None or gpu.lost or gpu.silent() else gpu.handle
        return {
            "pcie_replays": recorder.reading("nvmlDeviceGetPcieReplayCounter", handle),
            "ecc_corrected": recorder.reading("nvmlDeviceGetTotalEccErrors", handle, 0, 0),
            "ecc_uncorrected": recorder.reading("nvmlDeviceGetTotalEccErrors", handle, 1, 0),
        }

    def between(self, number, start, end):
        """A summary of the samples of a GPU in a span of time.monotonic()."""
        gpu = self.gpus.get(number)
        return summary([sample for at, sample in gpu.samples if start <= at <= end] if gpu else [])

    def lost(self):
        """When each GPU was lost or fell silent, by number."""
        times = {number: gpu.lost or gpu.silent() for number, gpu in self.gpus.items()}
        return {number: at for number, at in times.items() if at is not None}


def mean(values):
    return sum(values) / len(values)


KEYS = {  # of a summary: the place in a sample, and what is made of the values
    "power_mean_w": (POWER, mean),
    "power_max_w": (POWER, max),
    "sm_mean_mhz": (SM_MHZ, mean),
    "sm_min_mhz": (SM_MHZ, min),
    "memory_mean_mhz": (MEMORY_MHZ, mean),
    "core_max_c": (CORE_C, max),
    "memory_max_c": (MEMORY_C, max),
}


def summary(samples):
    """Means and maxima of samples; None where no sample has a value. "reasons": their shares of the samples."""
    made = {"samples": len(samples)}
    for key, (place, function) in KEYS.items():
        values = [sample[place] for sample in samples if sample[place] is not None]
        if place == MEMORY_C:
            values = [value for value in values if value]  # 0: not reported
        made[key] = round(function(values), 1) if values else None
    known = [sample[BITS] for sample in samples if sample[BITS] is not None]
    shares = {name: sum(bool(bits & bit) for bits in known) for bit, name in REASONS.items()}
    made["reasons"] = {name: round(count / len(known), 3) for name, count in shares.items() if count}
    return made


class KernelLog:
    """Follows the kernel log for Xids until `stop`. `found`: (time.monotonic(), bus id, code, text) of each."""

    def __init__(self):
        self.found, self.reader = [], None
        with contextlib.suppress(OSError):
            self.reader = recorder.KernelLog(self)

    def start(self):
        if self.reader:
            self.reader.start()

    def add(self, line, **_):
        """Takes an Xid from the reader, as a line of the recorder's journal."""
        self.found.append((time.monotonic(), *line["xid"], line["text"]))

    def stop(self):
        """Reads the rest of the log, and ends."""
        if self.reader:
            self.reader.ended = True
            if self.reader.ident is not None:
                self.reader.join(2)
            with contextlib.suppress(OSError):
                self.reader.read_all()


class Supplies:
    """Reads supplies in a thread: the lowest 12 V rail, and the power of each supply at the highest load of all."""

    def __init__(self, scratch, began):
        self.began, self.lock = began, threading.Lock()
        self.lowest, self.watts, self.words, self.source = None, {}, {}, None
        self.thread = recorder.Sensors(self, scratch)

    def add(self, line):
        """Takes a reading from the thread, as a line of the recorder's journal."""
        read = line.get("ipmi")
        if not isinstance(read, dict):
            return
        with self.lock:
            self.source = line.get("from") or self.source
            volts = read.get("12V")
            if volts is not None and (self.lowest is None or volts < self.lowest[0]):
                self.lowest = (volts, time.monotonic())
            supplies = read.get("psu") or {}
            numbers = {name: value for name, value in supplies.items() if not isinstance(value, str)}
            watts = {name: value for name, value in numbers.items() if name.endswith(" W")}
            if sum(watts.values()) > sum(self.watts.values()):
                self.watts = watts
            for name, value in supplies.items():
                if name not in numbers:
                    self.words[name] = max(self.words.get(name, value), value, key=len)

    def document(self):
        """The key "supplies" of the document."""
        with self.lock:
            volts, at = self.lowest or (None, None)
            watts, words = sorted(self.watts.items())[:MOST_SUPPLIES], sorted(self.words.items())[:MOST_SUPPLIES]
            return {
                "source": self.source,
                "lowest_12v": volts,
                "lowest_at_s": None if at is None else round(max(0.0, at - self.began), 1),
                "watts": {name[: -len(" W")][:LONGEST_NAME]: value for name, value in watts},
                "words": {name[:LONGEST_NAME]: value[:LONGEST_NAME] for name, value in words},
            }
