"""What NVML and the kernel log say while stress.py runs: samples of each GPU in a thread of its own, counters, and
Xids.

A GPU that does not answer does not stop the others. Needs pynvml.py of nvidia-ml-py beside this file; without it there
are no samples and no counters.
"""

import contextlib
import os
import re
import threading
import time

try:
    import pynvml
except ImportError:
    pynvml = None

SAMPLE_S = 0.1
MOST_SAMPLES = 20000  # of a GPU and phase; when there are more, every second one is left out
SILENT_S = 5  # a reading that takes longer does not end
MOST_XIDS = 100
LOST = 15  # NVML_ERROR_GPU_IS_LOST
POWER_INSTANT, MEMORY_TEMPERATURE = 186, 82  # fields of nvmlDeviceGetFieldValues
SLOWDOWN, MEMORY_MOST = 1, 2  # thresholds of nvmlDeviceGetTemperatureThreshold
REASONS = {  # bits of nvmlDeviceGetCurrentClocksThrottleReasons, without idle (0x1)
    0x2: "application clocks",
    0x4: "power limit",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "heat, by the driver",
    0x40: "heat, by the hardware",
    0x80: "power brake",
}
XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]{7,20})\): (\d{1,4})(.{0,200})")


def ask(name, *arguments):
    """The answer of a function of pynvml; None where the GPU or the driver does not have it. Raises the error of a lost
    GPU."""
    try:
        value = getattr(pynvml, name)(*arguments)
    except AttributeError:
        return None
    except pynvml.NVMLError as error:
        if error.value == LOST:
            raise
        return None
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def field(handle, number):
    """The value of a field as an integer; None where the GPU or the driver does not have it."""
    answers = ask("nvmlDeviceGetFieldValues", handle, [number])
    if not answers or answers[0].nvmlReturn != 0:
        return None
    value = answers[0].value
    return {1: value.uiVal, 2: value.ulVal, 3: value.ullVal}.get(answers[0].valueType)


class Sample:
    """One reading of a GPU; None: not reported."""

    __slots__ = ("at", "core_c", "memory_c", "memory_mhz", "power_w", "reasons", "sm_mhz")

    def __init__(self, handle):
        self.at = time.monotonic()
        power_mw = field(handle, POWER_INSTANT)
        power_mw = ask("nvmlDeviceGetPowerUsage", handle) if power_mw is None else power_mw
        self.power_w = None if power_mw is None else power_mw / 1000.0
        self.sm_mhz = ask("nvmlDeviceGetClockInfo", handle, 1)
        self.memory_mhz = ask("nvmlDeviceGetClockInfo", handle, 2)
        self.core_c = ask("nvmlDeviceGetTemperature", handle, 0)
        self.memory_c = field(handle, MEMORY_TEMPERATURE) or None
        self.reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)


class Gpu(threading.Thread):
    """Reads one GPU until `stop`. `lost`: when it was lost, by time.monotonic(); None while it answers."""

    def __init__(self, handle):
        super().__init__(daemon=True)
        self.handle, self.samples, self.lost, self.ended, self.returned = handle, [], None, False, time.monotonic()

    def run(self):
        while not self.ended:
            try:
                sample = Sample(self.handle)
            except pynvml.NVMLError:
                self.lost = self.lost or time.monotonic()
                return
            self.returned = time.monotonic()
            self.samples.append(sample)
            if len(self.samples) > MOST_SAMPLES:
                self.samples = self.samples[::2]
            time.sleep(SAMPLE_S)

    def silent(self):
        """Since when NVML does not answer; None if it does."""
        return self.returned if self.is_alive() and time.monotonic() - self.returned > SILENT_S else None


class Sensors:
    """The sensors and counters of GPUs, by CUDA's number; without pynvml.py, or without an answer of NVML, of none."""

    def __init__(self, bus_ids):
        self.gpus, self.bus_ids = {}, bus_ids
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

    def forget(self):
        """Forgets the samples: a new phase begins."""
        for gpu in self.gpus.values():
            gpu.samples = []

    def limits(self, number):
        """The limits of a GPU that do not change while it works; None: not reported."""
        gpu = self.gpus.get(number)
        if gpu is None:
            return {"power_limit_w": None, "sm_most_mhz": None, "slowdown_c": None, "memory_most_c": None}
        limit_mw = self.safely("nvmlDeviceGetEnforcedPowerLimit", gpu.handle)
        return {
            "power_limit_w": None if limit_mw is None else limit_mw / 1000.0,
            "sm_most_mhz": self.safely("nvmlDeviceGetMaxClockInfo", gpu.handle, 1),
            "slowdown_c": self.safely("nvmlDeviceGetTemperatureThreshold", gpu.handle, SLOWDOWN),
            "memory_most_c": self.safely("nvmlDeviceGetTemperatureThreshold", gpu.handle, MEMORY_MOST),
        }

    def counters(self, number):
        """The counters of a GPU: replays of its PCIe link, and memory errors since the driver was loaded; None: not
        reported."""
        gpu = self.gpus.get(number)
        if gpu is None or gpu.lost or gpu.silent():
            return {"pcie_replays": None, "ecc_corrected": None, "ecc_uncorrected": None}
        return {
            "pcie_replays": self.safely("nvmlDeviceGetPcieReplayCounter", gpu.handle),
            "ecc_corrected": self.safely("nvmlDeviceGetTotalEccErrors", gpu.handle, 0, 0),
            "ecc_uncorrected": self.safely("nvmlDeviceGetTotalEccErrors", gpu.handle, 1, 0),
        }

    def safely(self, name, *arguments):
        try:
            return ask(name, *arguments)
        except pynvml.NVMLError:
            return None

    def between(self, number, start, end):
        """A summary of the samples of a GPU in a span of time.monotonic()."""
        gpu = self.gpus.get(number)
        return summary([one for one in gpu.samples if start <= one.at <= end] if gpu else [])

    def lost(self):
        """When each GPU was lost or fell silent, by number."""
        found = {number: gpu.lost or gpu.silent() for number, gpu in self.gpus.items()}
        return {number: at for number, at in found.items() if at is not None}


def summary(samples):
    """Means and maxima of samples; None where no sample has a value. "reasons": their shares of the samples."""
    made = {"samples": len(samples)}
    for name, choose in (
        ("power_w", (("mean", mean), ("max", max))),
        ("sm_mhz", (("mean", mean), ("min", min))),
        ("memory_mhz", (("mean", mean),)),
        ("core_c", (("max", max),)),
        ("memory_c", (("max", max),)),
    ):
        values = [value for value in (getattr(one, name) for one in samples) if value is not None]
        stem, _, unit = name.rpartition("_")
        for word, function in choose:
            made["%s_%s_%s" % (stem, word, unit)] = round(function(values), 1) if values else None
    known = [one.reasons for one in samples if one.reasons is not None]
    shares = {name: sum(bool(bits & bit) for bits in known) for bit, name in REASONS.items()}
    made["reasons"] = {name: round(count / len(known), 3) for name, count in shares.items() if count}
    return made


def mean(values):
    return sum(values) / len(values)


class KernelLog(threading.Thread):
    """Follows the kernel log for Xids until `stop`. `found`: (time.monotonic(), bus id, code, text) of each."""

    def __init__(self, path="/dev/kmsg"):
        super().__init__(daemon=True)
        self.path, self.found, self.ended, self.file = path, [], False, None
        with contextlib.suppress(OSError):
            self.file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self.file, 0, os.SEEK_END)

    def run(self):
        while self.file is not None and not self.ended:
            if not self.read():
                time.sleep(0.2)

    def read(self):
        """Reads one record; whether there was one."""
        try:
            record = os.read(self.file, 8192).decode(errors="replace")
        except BrokenPipeError:  # records were overwritten; the next read has the oldest one left
            return True
        except OSError:
            return False
        match = XID.search(record.partition(";")[2])
        if match and len(self.found) < MOST_XIDS:
            self.found.append((time.monotonic(), match.group(1), int(match.group(2)), match.group(0)))
        return bool(record)

    def stop(self):
        """Reads what is left, and ends."""
        if self.file is None:
            return
        self.ended = True
        if self.ident is not None:
            self.join(2)
        if not self.is_alive():
            for _ in range(10000):
                if not self.read():
                    break
            os.close(self.file)
            self.file = None
