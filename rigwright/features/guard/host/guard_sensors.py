"""What the guard reads: GPUs (through guard_gpus.py), fans, supplies, memory errors, machine checks, OOM kills, Xids.

Nothing here waits: a driver, a management controller or a log that does not answer is a reading too.
"""

import contextlib
import glob
import json
import os
import re
import subprocess
import sys
import threading
import time

import recorder

ROOT = recorder.ROOT
HUNG_S = 5.0  # without a line for so long the driver hangs
START_S = recorder.START_S + 5.0
KILL_S = 30.0  # a process that hangs for so long is killed, and another one started once it is gone
AGAIN_S = 60.0  # a process that ended is started again after so long
BMC_EVERY_S = 10.0
SENSORS_AGAIN_S = 300.0
MOST_BYTES = 1 << 20  # of lines that nobody has read yet


class GpuReader:
    """The process that asks the driver. `take` gives what it said since the last call."""

    def __init__(self, argv=None):
        folder = os.path.dirname(os.path.abspath(__file__))
        self.argv = argv or [sys.executable, "-I", "-B", os.path.join(folder, "guard_gpus.py")]
        self.process, self.rest, self.gpus, self.why = None, b"", [], "the driver has not answered yet"
        self.heard_at = self.started_at = self.ended_at = None
        self.lowered, self.killed = [], False

    def take(self, now):
        """Returns a new sample of each GPU, None if no GPU sent one, or "hung" while the driver does not answer."""
        if self.process is None:
            if not os.path.isdir(ROOT + "/sys/module/nvidia"):  # no process is started for a driver that is not there
                self.gpus, self.why, self.ended_at = [], "the driver is not loaded", None
            elif self.ended_at is None or now - self.ended_at >= AGAIN_S:
                self._start(now)
            return None
        samples, ended = self._read(now)
        if ended:
            self._end(now)
            return samples
        silent = now - (self.heard_at or self.started_at)
        if silent <= (HUNG_S if self.heard_at else START_S):
            return samples
        self.why = "the driver does not answer"
        if silent > KILL_S + (0 if self.heard_at else START_S) and not self.killed:
            self.killed = True
            self.process.kill()
        return "hung"

    def lower(self, watts):
        """Asks the process to lower the power limits; False when there is no process that could."""
        if self.process is None or not self.gpus:
            return False
        try:
            os.write(self.process.stdin.fileno(), b"lower\n" if watts is None else b"lower %g\n" % watts)
        except OSError:
            return False
        return True

    def take_lowered(self):
        """What was said of limits that were lowered since the last call."""
        said, self.lowered = self.lowered, []
        return said

    def _start(self, now):
        self.rest, self.heard_at, self.started_at, self.killed = b"", None, now, False
        try:
            self.process = subprocess.Popen(
                self.argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
            )
        except OSError as error:
            self.why, self.ended_at = "the process that asks the driver cannot be started: %s" % error.strerror, now
            return
        os.set_blocking(self.process.stdout.fileno(), False)
        os.set_blocking(self.process.stdin.fileno(), False)

    def _read(self, now):
        samples, part = None, b"-"
        with contextlib.suppress(BlockingIOError):
            while part and len(self.rest) < MOST_BYTES:
                part = os.read(self.process.stdout.fileno(), 65536)
                self.rest += part
        *lines, self.rest = self.rest[:MOST_BYTES].split(b"\n")
        for line in lines:
            try:
                new = json.loads(line.decode())
            except ValueError:
                continue
            self.heard_at = now
            if "lowered" in new:
                self.lowered.append(new["lowered"])
            elif "gpus" in new:
                self.gpus, self.why = new["gpus"], new["why"]
            elif "g" in new:
                samples, self.why = new["g"], None
                for number, gpu in enumerate(self.gpus):
                    gpu["limit_w"] = new["limits"][number]
        return samples, not part

    def _end(self, now):
        for pipe in (self.process.stdin, self.process.stdout):
            pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(1)
        if self.why is None:
            self.why = "the process that asks the driver ended"
        self.process, self.ended_at = None, now


class Machine:
    """Fans, supplies and rails, read by the recorder's thread every ten seconds."""

    def __init__(self, scratch):
        self.scratch, self.lock, self.new, self.thread, self.ended_at = scratch, threading.Lock(), None, None, None

    def add(self, line):
        """Takes a reading from the thread, as a line of the recorder's journal."""
        with self.lock:
            self.new = line

    def take(self, now):
        """The reading since the last call: {"ipmi": ..., "from": ...} or {"ipmi": "hung"}; None without one."""
        if self.thread is None or not self.thread.is_alive():
            if self.thread is not None and self.ended_at is None:
                self.ended_at = now
            if self.ended_at is None or now - self.ended_at >= SENSORS_AGAIN_S:
                self.ended_at = None
                self.thread = recorder.Sensors(self, self.scratch, BMC_EVERY_S, BMC_EVERY_S)
                self.thread.start()
        with self.lock:
            found, self.new = self.new, None
        return found


def machine_watts(psu):
    """The power of the machine, W, from the readings of supplies as recorder.py writes them; None without such sensors.

    The sum of the sensors named PS... or Power Supply..., without those that say Out; without such sensors the one that
    says total, system or consumption.
    """
    watts = {name[:-2]: value for name, value in psu.items() if name.endswith(" W") and not isinstance(value, str)}
    inputs = [
        name for name in watts if re.match(r"(?i)ps|power supply|supply 10\.", name) and "out" not in name.lower()
    ]
    totals = [value for name, value in watts.items() if re.search(r"(?i)total|system|consumption", name)]
    power_w = sum(watts[name] for name in inputs) or max(totals, default=0)
    return round(power_w, 1) if 0 < power_w < 50000 else None


OOM = re.compile(
    r"(?:Out of memory|[Mm]emory cgroup out of memory)[^\n]{0,40}: Killed process (\d{1,10}) \(([^)\n]{1,32})\)"
)
MACHINE_CHECK = re.compile(r"\[Hardware Error\]: [^\n]{0,20}Machine Check")


class Kernel:
    """Counters and log of the kernel. `take` gives what is new in the log, and counts."""

    def __init__(self):
        self.counters = {"edac_corrected": 0, "edac_uncorrected": 0, "machine_checks": 0, "oom_kills": 0, "xids": 0}
        self.paths, self.paths_at, self.log = [], None, None
        with contextlib.suppress(OSError):
            self.log = recorder.KernelLog(None)
        self._count_memory_errors(0.0)  # those before the start are no news

    def _count_memory_errors(self, now):
        if self.paths_at is None or now - self.paths_at > 300:
            self.paths_at = now
            self.paths = glob.glob(ROOT + "/sys/devices/system/edac/mc/mc*/[cu]e_count")[:128]
        for kind, part in (("corrected", "ce_count"), ("uncorrected", "ue_count")):
            words = [recorder.content(path) for path in self.paths if path.endswith(part)]
            self.counters["edac_" + kind] = sum(int(word) for word in words if re.match(r"[0-9]{1,18}$", word))

    def take(self, now):
        """New events of the log, 100 at most: pairs of kind (oom-kill, machine-check, xid) and text."""
        self._count_memory_errors(now)
        events, record = [], ""
        try:
            while self.log is not None and record is not None and len(events) < 100:
                record = self.log.record()
                events += self._events_of(record or "")
        except OSError:
            self.log = None
        return events

    def _events_of(self, record):
        message = record.partition(";")[2].split("\n", 1)[0]
        oom, xid = OOM.search(message), recorder.xid_of(record)
        if oom:
            self.counters["oom_kills"] += 1
            return [("oom-kill", "out of memory: process %s (%s) was killed" % (oom.group(1), oom.group(2)))]
        if xid:
            self.counters["xids"] += 1
            return [("xid", "Xid %d on GPU %s" % (xid[1], xid[0]))]
        if MACHINE_CHECK.search(message):
            self.counters["machine_checks"] += 1
            return [("machine-check", message[:160])]
        return []


class Clock:
    """Whether the wall clock was set: `jump` gives by how many seconds since the last call, 0.0 when it was not."""

    LEAST_S = 2.0

    def __init__(self):
        self.offset = time.time() - time.monotonic()

    def jump(self):
        offset = time.time() - time.monotonic()
        by, self.offset = offset - self.offset, offset
        return by if abs(by) >= self.LEAST_S else 0.0
