#!/usr/bin/env python3
"""The process of the guard that reads the GPUs, so that a driver that hangs does not stop the guard.

guard.py starts it, but not while the driver's module is not loaded, which NVML would load. It writes a line of JSON
each second, and ends with the end of its stdin. The first line describes the GPUs:

    {"gpus": [{"index": 0, "bus_id": "0000:06:00.0", "uuid": "GPU-...", "name": "...", "limit_w": 300.0,
     "power": "instant", "slowdown_c": 87, "memory_most_c": 85}], "why": null}
    {"g": [[290.1, 1530, 877, 61, 55, 4, 30], "hung", "lost", null], "limits": [300.0, null, null, null]}
    {"lowered": {"index": 0, "from_w": 300.0, "to_w": 150.0}}      or {"index": 0, "error": "..."}

why: the reason for having no GPUs; then it ends. g: samples as in recorder.py, with the fan in percent.

A line "lower WATTS" on stdin lowers the power limit of every GPU to so many watts, "lower" to the lowest that it has. A
number below the GPU's range counts as its lowest. A limit that is as low already stays.
"""

import ctypes
import json
import os
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import recorder

PERIOD_S = 1.0
NAME = b"gpu-guard"  # in /proc/PID/comm, by which rigwright knows that it is no user's program


class Gpu(recorder.Gpu):
    """Samples one GPU each second, with its fan, and lowers its limit in a thread of its own."""

    def read(self):
        sample = recorder.sample(self.handle)
        if sample != "lost":
            try:
                sample.append(recorder.ask("nvmlDeviceGetFanSpeed", self.handle))
            except recorder.pynvml.NVMLError:
                return "lost"
        return sample

    def lower(self, index, watts):
        """Lowers the limit and writes a line about it."""
        nvml, result = recorder.pynvml, {"index": index}
        try:
            before = nvml.nvmlDeviceGetPowerManagementLimit(self.handle)
            lowest = nvml.nvmlDeviceGetPowerManagementLimitConstraints(self.handle)[0]
            wanted = lowest if watts is None else max(lowest, round(watts * 1000))
            if wanted < before:
                nvml.nvmlDeviceSetPowerManagementLimit(self.handle, wanted)
            after = nvml.nvmlDeviceGetPowerManagementLimit(self.handle)
            if wanted < before and after > max(wanted, 0):
                result["error"] = "set to %g W, reads %g W" % (wanted / 1000, after / 1000)
            else:
                result.update(from_w=before / 1000.0, to_w=after / 1000.0)
        except nvml.NVMLError as error:
            result["error"] = str(recorder.text(str(error)))[:120]
        write({"lowered": result})


writing = threading.Lock()


def write(line):
    """Writes a line; ends the process when nobody reads it any more."""
    data = (json.dumps(line, separators=(",", ":")) + "\n").encode()
    try:
        with writing:
            while data:
                data = data[os.write(1, data) :]
    except OSError:
        os._exit(0)


def obey(gpus):
    """Reads stdin until its end, and lowers limits."""
    for line in sys.stdin:
        word, _, watts = line.strip().partition(" ")
        if word == "lower":
            for index, gpu in enumerate(gpus):
                if gpu.handle is None:
                    write({"lowered": {"index": index, "error": "the GPU is lost"}})
                else:
                    number = float(watts) if watts else None
                    threading.Thread(target=gpu.lower, args=(index, number), daemon=True).start()
    os._exit(0)


def main():
    ctypes.CDLL(None).prctl(15, NAME, 0, 0, 0)  # PR_SET_NAME
    handles, why = recorder.open_gpus()
    write(
        {
            "gpus": [dict(gpu, **recorder.temperature_limits(handle)) for handle, gpu in handles],
            "why": why and why[:200],
        }
    )
    if not handles:
        return 0
    began = time.monotonic()
    gpus = [Gpu(handle, gpu["limit_w"], began, PERIOD_S) for handle, gpu in handles]
    for gpu in gpus:
        gpu.start()
    threading.Thread(target=obey, args=(gpus,), daemon=True).start()
    tick = 0
    while True:
        tick = max(tick + 1, int((time.monotonic() - began) / PERIOD_S))
        time.sleep(max(0.0, began + (tick + 0.5) * PERIOD_S - time.monotonic()))
        write({"g": [gpu.take() for gpu in gpus], "limits": [gpu.limit_w for gpu in gpus]})


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # threads that hang in the driver are not waited for
