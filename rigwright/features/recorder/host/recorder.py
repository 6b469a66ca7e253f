#!/usr/bin/env python3
"""Records the GPUs of this machine, its supplies and its kernel log into a journal that a reset does not lose.

    recorder.py --folder DIR --limit-s N [--hz 10]

It writes DIR/samples.jsonl, a JSON object in each line, and ends when DIR/stop exists or DIR is removed, after N
seconds, or on SIGTERM. It needs root for /dev/kmsg and ipmitool, and pynvml.py of nvidia-ml-py beside this
file. Exit status: 0 it ended for one of its reasons, which is the last line; 2 wrong usage, or the folder cannot be
written.

Every line has "t", the wall clock in seconds since 1970, and "m", the monotonic clock: a clock that is set does not
change "m".

    {"schema": 1, "boot_id": "...", "started": "2026-11-22T14:00:00Z", "utc_offset_s": 3600, "hz": 10, "limit_s": 600,
     "power": "instant", "nvml": null, "gpus": [{"index": 0, "bus_id": "0000:06:00.0", "uuid": "GPU-...",
     "name": "Tesla V100", "limit_w": 300.0, "power": "instant"}]}                        the first line
    {"t": 1.2, "m": 1.2, "g": [[290.1, 1530, 877, 61, null, 4], "hung", "lost", null]}    each tick
    {"t": 1.2, "m": 1.2, "limits": [300.0, 300.0, null, null]}                            when a power limit changed, W
    {"t": 1.2, "m": 1.2, "ipmi": {"12V": 11.9, "rails": {}, "fans": {}, "psu": {}, "temps": {}}, "from": "ipmi"}
    {"t": 1.2, "m": 1.2, "ipmi": "hung"}
    {"t": 1.2, "m": 1.2, "xid": ["0000:06:00.0", 79], "text": "..."}
    {"t": 1.2, "m": 1.2, "dropped": 12}           lines that were lost because the disk did not answer for a minute
    {"t": 1.2, "m": 1.2, "end": "stop"}           or limit, signal, idle, disk (too little room)

power: "instant", or "average over 1 s" (Ampere and newer without an instant reading); nvml: why there are no GPUs;
from: "ipmi" or "hwmon". A sample is [W, MHz of the cores, MHz of the memory, C, C of the memory, reasons], the one with
the highest power since the tick before. "hung": the GPU has not answered for 2 s; "lost": NVML says that it is lost;
null: it has not answered for this tick.

Samples are written and synced twice a second, an Xid at once. A journal of 32 MB becomes samples.1.jsonl, which
replaces the one before, and a new one begins with the same first line: so the newest 32 to 64 MB are kept. Below 200 MB
of free space it stops.
"""

import argparse
import collections
import contextlib
import errno
import glob
import json
import math
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
try:
    import pynvml
except ImportError:
    pynvml = None

ROOT = os.environ.get("RIGWRIGHT_ROOT", "")  # tests keep their /dev, /proc and /sys in a folder
SYNC_S = 0.4  # the journal is on the disk after so long, and the time that the disk needs
MOST_BYTES = 32 << 20  # of one of the two files of the journal
LEAST_FREE_MIB = 200
FREE_EVERY_S = 5
WAITING_LINES = 2000  # kept in memory while the disk does not answer: more than a minute with 20 samples a second
RESERVE_BYTES = 64 << 10  # given back when the disk is full, so that the last line has room
HUNG_S = 2.0
START_S = 30  # how long the driver may take to answer at the beginning
LIMITS_EVERY_S = 1.0
VOLTAGE_EVERY_S, SENSORS_EVERY_S = 1.0, 5.0
IPMI_S = 20  # a time limit of ipmitool; a slow BMC needs up to 10 s for all sensors
MOST_SENSORS, LONGEST_NAME, MOST_XIDS = 64, 32, 500
POWER_INSTANT, MEMORY_TEMPERATURE = 186, 82  # numbers of NVML's fields
GONE = {15, 16}  # NVML: the GPU is lost, or needs a reset
INSTANT, AVERAGE = "instant", "average over 1 s"
GROUPS = {"Volts": "rails", "RPM": "fans", "degrees C": "temps"}  # of sensors, by ipmitool's unit


# --- the GPUs


def text(value):
    """A str; pynvml before 11.5 gives bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def ask(name, *arguments):
    """The answer of a function of NVML; None where it has none. Raises NVMLError for a lost GPU."""
    try:
        return getattr(pynvml, name)(*arguments)
    except AttributeError:  # an older pynvml
        return None
    except pynvml.NVMLError as error:
        if error.value in GONE:
            raise
        return None


def reading(name, handle, *arguments):
    """As `ask`; None also for a lost GPU, and without a handle."""
    try:
        return None if handle is None else ask(name, handle, *arguments)
    except pynvml.NVMLError:
        return None


def temperature_limits(handle):
    """The temperatures at which the GPU slows itself down, as it reports them; None: not reported."""
    name = "nvmlDeviceGetTemperatureThreshold"
    return {"slowdown_c": reading(name, handle, 1), "memory_most_c": reading(name, handle, 2)}


def watts(value):
    return None if value is None else round(value / 1000.0, 1)


def fields(handle, numbers):
    """The values of fields; None for a field that this GPU or driver does not have."""
    answers = ask("nvmlDeviceGetFieldValues", handle, list(numbers))
    if answers is None:
        return [None] * len(numbers)
    return [answer.value.uiVal if answer.nvmlReturn == 0 else None for answer in answers]


def sample(handle):
    """[W, MHz of the cores, MHz of the memory, C, C of the memory, reasons for a low clock]; "lost" for a lost GPU."""
    try:
        power_mw, memory_c = fields(handle, (POWER_INSTANT, MEMORY_TEMPERATURE))
        if power_mw is None:
            power_mw = ask("nvmlDeviceGetPowerUsage", handle)
        return [
            watts(power_mw),
            ask("nvmlDeviceGetClockInfo", handle, 1),
            ask("nvmlDeviceGetClockInfo", handle, 2),
            ask("nvmlDeviceGetTemperature", handle, 0),
            memory_c,
            ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle),
        ]
    except pynvml.NVMLError:
        return "lost"


def kind_of_power(handle):
    """What the power of `sample` is. nvml.h: from Ampere on, without the A100, the usual reading is an average."""
    if fields(handle, (POWER_INSTANT,))[0] is not None:
        return INSTANT
    capability = ask("nvmlDeviceGetCudaComputeCapability", handle)
    return AVERAGE if capability and tuple(capability) > (8, 0) else INSTANT


def description(index):
    """NVML's handle of a GPU, and the first line's entry for it."""
    gpu = {"index": index, "bus_id": None, "uuid": None, "name": None, "limit_w": None, "power": INSTANT}
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        gpu["bus_id"] = text(pynvml.nvmlDeviceGetPciInfo(handle).busId)[-12:].lower()
        gpu["uuid"], gpu["name"] = text(pynvml.nvmlDeviceGetUUID(handle)), text(pynvml.nvmlDeviceGetName(handle))
        gpu["limit_w"] = watts(ask("nvmlDeviceGetPowerManagementLimit", handle))
        gpu["power"] = kind_of_power(handle)
        return handle, gpu
    except pynvml.NVMLError:
        return None, gpu


def open_gpus(within_s=START_S):
    """The handles and descriptions of all GPUs, and why there are none. Does not wait for a driver that hangs."""
    result = [[], "the driver has not answered for %g s" % within_s]

    def read():
        try:
            pynvml.nvmlInit()
            result[:] = [description(index) for index in range(pynvml.nvmlDeviceGetCount())], None
        except pynvml.NVMLError as error:
            result[1] = str(text(str(error)))

    if pynvml is None:
        return [], "there is no pynvml.py beside the program"
    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(within_s)
    return tuple(result)


class Gpu(threading.Thread):
    """Samples one GPU in each period. A call that hangs stops only this thread."""

    def __init__(self, handle, limit_w, began, period_s):
        super().__init__(daemon=True)
        self.handle, self.began, self.period_s = handle, began, period_s
        self.limit_w, self.ended = limit_w, False
        self.lock, self.best, self.asking_since = threading.Lock(), None, None

    def run(self):
        limit_at = 0.0
        while not self.ended:
            self.asking_since = now = time.monotonic()
            new = "lost" if self.handle is None else self.read()
            if now >= limit_at and new != "lost":
                limit_at = now + LIMITS_EVERY_S
                try:
                    self.limit_w = watts(ask("nvmlDeviceGetPowerManagementLimit", self.handle))
                except pynvml.NVMLError:
                    new = "lost"
            with self.lock:
                self.asking_since = None
                if not isinstance(self.best, list) or (new != "lost" and (new[0] or 0) >= (self.best[0] or 0)):
                    self.best = new
            done = time.monotonic()
            time.sleep(self.began + math.ceil((done - self.began) / self.period_s) * self.period_s - done)

    def read(self):
        """A sample of the GPU now; "lost" for a lost GPU."""
        return sample(self.handle)

    def take(self):
        """The sample with the highest power since the last call; "hung", "lost", or None without a sample."""
        with self.lock:
            best, self.best = self.best, None
            if best is None and self.asking_since and time.monotonic() - self.asking_since > HUNG_S:
                return "hung"
            return best


# --- supplies, voltages and fans


class Program:
    """Runs a program with a time limit. While a process cannot be killed, no other is started."""

    def __init__(self):
        self.stuck = None

    def run(self, argv, limit_s):
        """Its output; "hung" if it did not end in time, None if it failed or is not there."""
        if self.stuck is not None:
            if self.stuck.poll() is None:
                return "hung"
            self.stuck = None
        try:
            with tempfile.TemporaryFile() as out:
                process = subprocess.Popen(
                    argv, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.DEVNULL, start_new_session=True
                )
                try:
                    process.wait(limit_s)
                except subprocess.TimeoutExpired:
                    process.kill()
                    try:
                        process.wait(1)
                    except subprocess.TimeoutExpired:
                        self.stuck = process
                    return "hung"
                out.seek(0)
                return out.read(1 << 18).decode(errors="replace") if process.returncode == 0 else None
        except OSError:
            return None


def number(word):
    try:
        value = float(word)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def of_ipmi(csv):
    """The readings in the output of `ipmitool -c sdr elist`.

    A line is NAME,VALUE,UNIT,STATE,ENTITY,... of a sensor with a number, otherwise NAME,ID,STATE,ENTITY,WORDS. The
    entities 10.N are the power supplies. Where several have sensors of one name (Dell: Status), the entity is part of
    the name.
    """
    read = {"rails": {}, "fans": {}, "psu": {}, "temps": {}}
    for line in csv.splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) < 3:
            continue
        name, value, unit = words[0][:LONGEST_NAME], number(words[1]), words[2]
        entity = "".join(words[3:4] if value is None else words[4:5])
        of_supply = name
        if re.match(r"10\.\d", entity) and not re.match(r"(?i)psu?[ _]?\d|power supply ?\d", name):
            of_supply = ("Supply %s %s" % (entity, name))[:LONGEST_NAME]
        if value is not None and unit in GROUPS:
            put(read[GROUPS[unit]], name, value)
        elif value is not None and unit in ("Watts", "Amps"):
            put(read["psu"], "%s %s" % (of_supply, unit[0]), value)
        elif re.match(r"(?i)ps|power suppl|supply 10\.", of_supply) and len(words) > 4:
            put(read["psu"], of_supply, ",".join(words[4:])[:80])
    return with_rail(read)


def put(group, name, value):
    if len(group) < MOST_SENSORS:
        group[name] = value


def with_rail(read):
    """The readings with "12V": the lowest of the 12 V rails, None without such a rail."""
    volts = [value for name, value in read["rails"].items() if is_12_v(name) and value > 0]
    read["12V"] = min(volts) if volts else None
    return read


def is_12_v(name):
    return re.search(r"(?<![\d.])12 ?v", name, re.IGNORECASE) is not None


def of_hwmon():
    """The readings of the kernel's own sensors; None where it has no voltage of 12 V and no fan."""
    read = {"rails": {}, "fans": {}, "psu": {}, "temps": {}}
    for folder in sorted(glob.glob(ROOT + "/sys/class/hwmon/hwmon*"))[:64]:
        chip = content(folder + "/name")[:LONGEST_NAME]
        for path in sorted(glob.glob(folder + "/in*_input") + glob.glob(folder + "/fan*_input")):
            kind = "fans" if os.path.basename(path).startswith("fan") else "rails"
            label = content(path[:-5] + "label")[:LONGEST_NAME] or os.path.basename(path)[:-6]
            value = number(content(path))
            if value is not None:
                put(read[kind], "%s %s" % (chip, label), value if kind == "fans" else value / 1000.0)
    with_rail(read)
    return read if read["12V"] is not None or read["fans"] else None


def content(path):
    """The first line of a small file; empty when it cannot be read."""
    try:
        with open(path, errors="replace") as file:
            return file.readline(4096).strip()
    except OSError:
        return ""


class Sensors(threading.Thread):
    """Reads supplies and fans: the 12 V rail each second, all each five seconds, or as fast as they answer."""

    def __init__(self, journal, scratch, voltage_every_s=VOLTAGE_EVERY_S, all_every_s=SENSORS_EVERY_S):
        super().__init__(daemon=True)
        self.journal, self.scratch, self.ended, self.program = journal, scratch, threading.Event(), Program()
        self.voltage_every_s, self.all_every_s = voltage_every_s, all_every_s

    def run(self):
        cache = os.path.join(self.scratch, "sdr")
        dumped = self.program.run(["ipmitool", "sdr", "dump", cache], 3 * IPMI_S)
        if dumped == "hung":
            self.journal.add({"ipmi": "hung"})
        base = ["ipmitool", "-S", cache] if dumped not in (None, "hung") else ["ipmitool"]
        rails, failed, full_at = [], 0, 0.0
        while not self.ended.is_set():
            began = time.monotonic()
            full = began >= full_at or not rails
            words = [*base, "-c", "sdr", "elist"] if full else [*base, "-c", "sensor", "reading", *rails]
            answer = self.program.run(words, IPMI_S)
            if answer is None:
                failed += 1
                if failed >= 3 or not rails:
                    self.hwmon()
                    return
            elif answer == "hung":
                self.journal.add({"ipmi": "hung"})
            elif full:
                failed, full_at = 0, began + self.all_every_s
                read = of_ipmi(answer)
                rails = [name for name in read["rails"] if is_12_v(name)]
                self.journal.add({"ipmi": read, "from": "ipmi"})
            else:
                self.voltages(answer)
            pause = self.voltage_every_s if rails else self.all_every_s
            self.ended.wait(max(0.2, began + pause - time.monotonic()))

    def voltages(self, csv):
        read = {"rails": {}}
        for line in csv.splitlines():
            name, _, value = line.rpartition(",")
            if number(value) is not None:
                put(read["rails"], name.strip()[:LONGEST_NAME], number(value))
        if read["rails"]:
            self.journal.add({"ipmi": with_rail(read), "from": "ipmi"})

    def hwmon(self):
        while not self.ended.is_set():
            read = of_hwmon()
            if read is None:
                return
            self.journal.add({"ipmi": read, "from": "hwmon"})
            self.ended.wait(self.voltage_every_s)


# --- the kernel log


XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.([0-7]))?\): (\d{1,6})")


def xid_of(record):
    """The bus id and number of an Xid in a record of /dev/kmsg, and its text; None for another record."""
    message = record.partition(";")[2].split("\n", 1)[0]
    match = XID.search(message)
    if not match:
        return None
    bus_id = "%04x:%s.%s" % (int(match.group(1), 16), match.group(2).lower(), match.group(3) or "0")
    return bus_id, int(match.group(4)), message[match.start() : match.start() + 200]


class KernelLog(threading.Thread):
    """Follows /dev/kmsg from its end, and records Xids at once."""

    def __init__(self, journal):
        super().__init__(daemon=True)
        self.journal, self.ended, self.found = journal, False, 0
        self.log = os.open(ROOT + "/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.lseek(self.log, 0, os.SEEK_END)
        except OSError:
            while self.record() is not None:
                pass

    def record(self):
        """The next record; "" for a record that was overwritten before it was read, None at the end."""
        try:
            return os.read(self.log, 8192).decode(errors="replace") or None
        except BlockingIOError:
            return None
        except BrokenPipeError:
            return ""

    def run(self):
        while not self.ended and self.found < MOST_XIDS:
            try:
                if select.select([self.log], [], [], 1)[0]:
                    self.read_all()
                    time.sleep(0.02)  # a log that is always ready does not take a whole processor
            except OSError:
                return

    def read_all(self):
        """Adds the Xids of all records that are there to the journal. Raises OSError."""
        record = self.record()
        while record is not None and self.found < MOST_XIDS:
            xid = xid_of(record)
            if xid:
                self.found += 1
                self.journal.add({"xid": [xid[0], xid[1]], "text": xid[2]}, urgent=True)
            record = self.record()


# --- the journal


class Journal(threading.Thread):
    """Writes lines and syncs them. `failed` is set when it cannot go on; the journal stays readable."""

    def __init__(self, folder, header, least_free_mib=LEAST_FREE_MIB):
        super().__init__(daemon=True)
        self.folder, self.header, self.least_free = folder, header, least_free_mib << 20
        self.path = os.path.join(folder, "samples.jsonl")
        self.reserve = os.path.join(folder, "reserve")
        self.lock, self.lines, self.dropped = threading.Lock(), collections.deque(), 0
        self.wake, self.closing, self.failed = threading.Event(), False, threading.Event()
        self.free_at = 0.0
        with open(self.reserve, "wb") as file:
            file.write(b"\0" * RESERVE_BYTES)
        self.file, self.size = None, 0
        self.open()

    def open(self):
        """Begins a file with the first line, and syncs it and its name."""
        self.file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.size = 0
        self.write(json_line(self.header))
        folder = os.open(self.folder, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)

    def add(self, line, urgent=False, now=None):
        """Adds a line with the time `now` (wall, monotonic), or the present time."""
        wall, monotonic = now or (time.time(), time.monotonic())
        whole = {"t": round(wall, 3), "m": round(monotonic, 3)}
        whole.update(line)
        data = json_line(whole)
        with self.lock:
            if len(self.lines) >= WAITING_LINES:
                self.dropped += 1
                return
            if self.dropped:
                self.lines.append(json_line({"t": whole["t"], "m": whole["m"], "dropped": self.dropped}))
                self.dropped = 0
            self.lines.append(data)
        if urgent:
            self.wake.set()

    def run(self):
        try:
            while not self.closing:
                self.wake.wait(SYNC_S)
                self.wake.clear()
                self.flush()
                self.check_room()
            self.flush()
        except OSError as error:
            self.fail(error)

    def flush(self):
        with self.lock:
            data = b"".join(self.lines)
            self.lines.clear()
        if not data:
            return
        if self.size + len(data) > MOST_BYTES:
            os.close(self.file)
            os.rename(self.path, os.path.join(self.folder, "samples.1.jsonl"))
            self.open()
        self.write(data)

    def write(self, data):
        """Writes all of it, or raises OSError with nothing of it in the file."""
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self.file, rest) :]
            os.fsync(self.file)
        except OSError:
            os.ftruncate(self.file, self.size)
            raise
        self.size += len(data)

    def check_room(self):
        now = time.monotonic()
        if now < self.free_at:
            return
        self.free_at = now + FREE_EVERY_S
        disk = os.statvfs(self.folder)
        if disk.f_bavail * disk.f_frsize < self.least_free:
            raise OSError(errno.ENOSPC, "less than %d MiB free" % (self.least_free >> 20))

    def fail(self, error):
        """Marks the end of a journal that cannot go on, in the room of the reserve."""
        reason = "disk" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "error"
        with contextlib.suppress(OSError):
            os.unlink(self.reserve)
            now = {"t": round(time.time(), 3), "m": round(time.monotonic(), 3)}
            self.write(json_line(dict(now, end=reason, why=str(error.strerror)[:80])))
        self.failed.set()

    def close(self, reason):
        """Writes the last line. A disk that does not answer is not waited for."""
        if not self.failed.is_set():
            self.add({"end": reason}, urgent=True)
        self.closing = True
        self.wake.set()
        self.join(5)
        if not self.is_alive():
            os.close(self.file)
        with contextlib.suppress(OSError):
            os.unlink(self.reserve)


def json_line(line):
    return (json.dumps(line, separators=(",", ":")) + "\n").encode()


# --- the recording


class Recorder:
    """One recording: starts the threads, writes a line for each tick, and ends in time."""

    def __init__(self, options):
        self.options, self.signalled, self.touched, self.touched_at = options, False, None, time.monotonic()
        self.period_s = 1.0 / options.hz
        gpus, why = open_gpus()
        self.began = time.monotonic()
        self.gpus = [Gpu(handle, gpu["limit_w"], self.began, self.period_s) for handle, gpu in gpus]
        header = {
            "schema": 1,
            "boot_id": content(ROOT + "/proc/sys/kernel/random/boot_id"),
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "utc_offset_s": time.localtime().tm_gmtoff,
            "hz": options.hz,
            "limit_s": options.limit_s,
            "power": AVERAGE if AVERAGE in [gpu["power"] for _, gpu in gpus] else INSTANT,
            "nvml": why and why[:200],
            "gpus": [gpu for _, gpu in gpus],
        }
        self.journal = Journal(options.folder, header, options.least_free_mib)

    def run(self):
        def note(_signal, _frame):
            self.signalled = True

        for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(each, note)
        threads = [*self.gpus, Sensors(self.journal, os.path.dirname(os.path.abspath(__file__)))]
        with contextlib.suppress(OSError):  # without /dev/kmsg there are no Xids; the samples go on
            threads.append(KernelLog(self.journal))
        for thread in [self.journal, *threads]:
            thread.start()
        self.journal.close(self.ticks())

    def ticks(self):
        """Writes the ticks; returns the reason of the end."""
        limits, tick = [gpu.limit_w for gpu in self.gpus], 0
        while True:
            tick = max(tick + 1, int((time.monotonic() - self.began) / self.period_s))
            at = self.began + tick * self.period_s
            time.sleep(max(0.0, at + self.period_s / 2 - time.monotonic()))
            now = (time.time() - (time.monotonic() - at), at)
            reason = self.reason_to_end()
            if reason:
                return reason
            if self.gpus:
                self.journal.add({"g": [gpu.take() for gpu in self.gpus]}, now=now)
            if limits != [gpu.limit_w for gpu in self.gpus]:
                limits = [gpu.limit_w for gpu in self.gpus]
                self.journal.add({"limits": limits}, now=now)

    def reason_to_end(self):
        if self.journal.failed.is_set():
            return "disk"
        if self.signalled:
            return "signal"
        if time.monotonic() - self.began >= self.options.limit_s:
            return "limit"
        if os.path.exists(os.path.join(self.options.folder, "stop")) or not os.path.isdir(self.options.folder):
            return "stop"  # also when the folder was removed
        return "idle" if self.options.idle_s and self.idle_for_s() > self.options.idle_s else None

    def idle_for_s(self):
        """How long the file `alive` was not touched, by the time that the kernel has run: the wall clock may jump."""
        try:
            touched = os.stat(os.path.join(self.options.folder, "alive")).st_mtime_ns
        except OSError:
            touched = None
        if self.touched != touched:
            self.touched, self.touched_at = touched, time.monotonic()
        return time.monotonic() - self.touched_at


def options_of(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", required=True, metavar="DIR", help="an empty folder that only root can enter")
    parser.add_argument("--limit-s", type=int, required=True, help="it ends after so many seconds")
    parser.add_argument("--hz", type=float, default=10, help="samples a second, 1 to 50 (10)")
    parser.add_argument("--idle-s", type=float, default=0, help="it ends after so long without a touch of DIR/alive")
    parser.add_argument("--least-free-mib", type=int, default=LEAST_FREE_MIB, help="it stops below this space (200)")
    options = parser.parse_args(words)
    if not 0 < options.limit_s <= 7 * 86400:
        parser.error("--limit-s is 1 to 604800")
    if not 1 <= options.hz <= 50:
        parser.error("--hz is 1 to 50")
    if options.idle_s < 0 or options.least_free_mib < 0:
        parser.error("--idle-s and --least-free-mib are 0 or more")
    if not os.path.isdir(options.folder):
        parser.error("--folder %s: no such folder" % options.folder)
    return options


def main():
    options = options_of(sys.argv[1:])
    signal.alarm(options.limit_s + START_S + 30)  # whatever hangs, the process ends
    os.umask(0o077)
    with contextlib.suppress(OSError):  # it leads a session already
        os.setpgid(0, 0)
    try:
        recorder = Recorder(options)
    except OSError as error:
        sys.stderr.write("recorder.py: %s: %s\n" % (options.folder, error.strerror))
        return 2
    recorder.run()
    sys.stderr.flush()
    os._exit(0)  # threads that hang in the driver are not waited for


if __name__ == "__main__":
    sys.exit(main())
