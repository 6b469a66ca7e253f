"""What the guard keeps on the disk: a ring of the last hour, the energy of each month, a summary of each hour, events.

One thread writes all files, so that a disk that does not answer stops nothing else. A disk that is full stops the ring;
it goes on when there is room again.

    ring.jsonl, ring.1.jsonl ... ring.6.jsonl    a line each second, in parts of ten minutes, the newest first
    energy.json    {"schema": 1, "months": {"2026-11": {"gpus_j": 1.0, "machine_j": 1.0, "s": 1.0, "machine_s": 1.0}}}
    hours.jsonl    {"t": 0, "gpus": {"GPU-...": [hottest C, mean W]}}, two weeks
    events.jsonl   {"t": 0, "boot_id": "...", "event": "lower-limit", "text": "..."}, the newest 500
"""

import collections
import contextlib
import errno
import json
import os
import threading
import time

PART_S, PARTS = 600, 6  # older parts beside the present one: an hour to an hour and ten minutes
MOST_PART_BYTES = 8 << 20
SYNC_S = 5.0
LEAST_FREE_MIB = 200
SAVE_S = 60.0
TEXTFILE = "/var/lib/prometheus/node-exporter/rigwright-guard.prom"  # where Debian's node_exporter reads
TEXTFILE_S = 15.0
MOST_WAITING = 600  # lines that are kept while the disk does not answer
MOST_EVENTS, MOST_FILE_BYTES = 500, 4 << 20
MOST_HOURS = 14 * 24
MOST_MONTHS = 36
FIRST_YEAR = 2020  # a clock before it was never set
NEVER = float("-inf")
LONGEST_GAP_S = 10.0  # the power of a reading counts until the next one, but no longer


def json_line(line):
    return (json.dumps(line, separators=(",", ":")) + "\n").encode()


def replace(path, data, mode):
    """Replaces a file as a whole, synced. The folder of the metrics may be another user's, so it follows no link."""
    new = path + ".new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new)
    file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(file, rest) :]
        os.fchmod(file, mode)
        os.fsync(file)
    except OSError:
        os.close(file)
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise
    os.close(file)
    os.rename(new, path)


def read(path, most=4 << 20):
    """The text of a file; empty when it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(most).decode(errors="replace")
    except OSError:
        return ""


class Energy:
    """Joules by month. Energy that is used while the clock was never set counts for the month in which it is set."""

    KEYS = ("gpus_j", "machine_j", "s", "machine_s")

    def __init__(self, text):
        self.months, self.unbooked, self.at, self.damaged = {}, dict.fromkeys(self.KEYS, 0.0), None, False
        if not text:
            return
        try:
            for month, given in json.loads(text)["months"].items():
                self.months[str(month)[:7]] = {key: max(0.0, float(given[key])) for key in self.KEYS}
        except (ValueError, KeyError, TypeError, AttributeError):
            self.months, self.damaged = {}, True

    def add(self, now, gpus_w, machine_w):
        """Adds the energy since the last call. `now`: monotonic seconds. A power of None adds nothing."""
        seconds = 0.0 if self.at is None else min(LONGEST_GAP_S, max(0.0, now - self.at))
        self.at = now
        if gpus_w is not None:
            self.unbooked["gpus_j"] += gpus_w * seconds
            self.unbooked["s"] += seconds
        if machine_w is not None:
            self.unbooked["machine_j"] += machine_w * seconds
            self.unbooked["machine_s"] += seconds

    def book(self, t):
        """Books what was added for the month of the wall clock `t`."""
        when = time.localtime(t)
        if when.tm_year < FIRST_YEAR:
            return
        of_month = self.months.setdefault(time.strftime("%Y-%m", when), dict.fromkeys(self.KEYS, 0.0))
        for key in self.KEYS:
            of_month[key] += self.unbooked[key]
            self.unbooked[key] = 0.0
        for month in sorted(self.months)[:-MOST_MONTHS]:
            del self.months[month]

    def text(self):
        months = {month: {key: round(value, 1) for key, value in of.items()} for month, of in self.months.items()}
        return json.dumps({"schema": 1, "months": months}) + "\n"


class Hours:
    """The hottest reading and the mean power of each GPU, by hour of the wall clock."""

    def __init__(self):
        self.hour, self.gpus = None, {}

    def add(self, t, uuid, core_c, power_w):
        """Adds a reading; None: not reported."""
        one = self.gpus.setdefault(uuid, [None, 0.0, 0])
        if core_c is not None and (one[0] is None or core_c > one[0]):
            one[0] = core_c
        if power_w is not None:
            one[1], one[2] = one[1] + power_w, one[2] + 1
        if self.hour is None:
            self.hour = int(t // 3600)

    def ended(self, t, closing=False):
        """The line of an hour that is over at `t`, or with `closing` of its part until now; otherwise None."""
        if self.hour is None or (int(t // 3600) == self.hour and not closing):
            return None
        gpus = {uuid: [c, round(w / n, 1) if n else None] for uuid, (c, w, n) in self.gpus.items()}
        line = {"t": self.hour * 3600, "gpus": gpus}
        self.hour, self.gpus = None, {}
        return line if line["t"] > 0 and time.localtime(t).tm_year >= FIRST_YEAR else None


class Ring:
    """The parts of the ring in a folder. Every method may raise OSError."""

    def __init__(self, folder, least_free_mib=LEAST_FREE_MIB):
        self.folder, self.path, self.least_free = folder, os.path.join(folder, "ring.jsonl"), least_free_mib << 20
        self.file, self.begun, self.size = None, 0.0, 0

    def write(self, lines, header, now):
        """Appends lines, and begins a new part each ten minutes with the header."""
        disk = os.statvfs(self.folder)
        if disk.f_bavail * disk.f_frsize < self.least_free:
            raise OSError(errno.ENOSPC, "less than %d MiB are free" % (self.least_free >> 20))
        if self.file is not None and (now - self.begun >= PART_S or self.size > MOST_PART_BYTES):
            self.close()
        if self.file is None:
            self._begin(header, now)
        data = b"".join(map(json_line, lines))
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self.file, rest) :]
            os.fdatasync(self.file)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self.file, self.size)
            raise
        self.size += len(data)

    def close(self):
        if self.file is not None:
            os.close(self.file)
            self.file = None

    def _begin(self, header, now):
        """Begins a part, or continues a short one of an earlier start, so that restarts do not push out the hour."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self.begun = now
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            first = json.loads(read(self.path, 1 << 16).partition("\n")[0])
            age_s = header["t"] - float(first["t"])
            if not 0 <= age_s < PART_S:
                self._shift()
            else:
                self.begun = now - age_s
        self.file = os.open(self.path, flags, 0o600)
        self.size = os.fstat(self.file).st_size
        if self.size > MOST_PART_BYTES or (self.size and self.begun == now):
            os.close(self.file)
            self._shift()
            self.file, self.size, self.begun = os.open(self.path, flags, 0o600), 0, now
        data = json_line(header)
        os.write(self.file, data)
        self.size += len(data)

    def _shift(self):
        names = [self.path] + [os.path.join(self.folder, "ring.%d.jsonl" % part) for part in range(1, PARTS + 1)]
        for part in range(PARTS, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                os.rename(names[part - 1], names[part])


class Store(threading.Thread):
    """Writes everything, in its own thread. `ring_error`: why the ring is not written now; None while it is."""

    def __init__(self, folder, header, textfile=None, least_free_mib=LEAST_FREE_MIB):
        super().__init__(daemon=True)
        self.folder, self.header, self.textfile, self.wanted = folder, header, textfile or TEXTFILE, bool(textfile)
        self.ring, self.lock = Ring(folder, least_free_mib), threading.Lock()
        self.lines, self.dropped, self.events, self.hours = collections.deque(), 0, [], []
        self.energy, self.metrics, self.ring_error, self.textfile_error = None, None, None, None
        self.wake, self.closing = threading.Event(), False
        self.saved_at = self.metrics_at = NEVER

    def path(self, name):
        return os.path.join(self.folder, name)

    def add(self, line):
        """Adds a line to the ring. When the disk does not answer, the oldest lines are lost."""
        with self.lock:
            self.lines.append(line)
            if len(self.lines) > MOST_WAITING:
                self.lines.popleft()
                self.dropped += 1

    def add_event(self, event):
        """Adds what the guard did, and writes it at once."""
        with self.lock:
            self.events = [*self.events, event][-MOST_EVENTS:]
        self.wake.set()

    def offer(self, energy, metrics, hour=None):
        """Takes the texts of energy.json and of the textfile, which have their own pace, and the line of an hour."""
        with self.lock:
            self.energy, self.metrics = energy, metrics
            if hour:
                self.hours = [*self.hours, hour][-MOST_HOURS:]

    def run(self):
        while not self.closing:
            self.wake.wait(SYNC_S)
            self.wake.clear()
            self.flush()
        self.saved_at = self.metrics_at = NEVER
        self.flush()

    def close(self, within_s=5.0):
        """Writes what is left. A disk that does not answer is not waited for."""
        self.closing = True
        self.wake.set()
        self.join(within_s)

    def flush(self):
        """Writes what is due."""
        now = time.monotonic()
        with self.lock:
            lines, dropped = list(self.lines), self.dropped
            self.lines.clear()
            self.dropped = 0
            events, self.events = self.events, []
            hours, self.hours = self.hours, []
            energy, metrics = self.energy, self.metrics
        if dropped:
            lines.append({"dropped": dropped})
        try:
            if lines:
                self.ring.write(lines, dict(self.header, t=round(time.time(), 3)), now)
            self.ring_error = None
        except OSError as error:
            self.ring.close()
            self.ring_error = str(error.strerror or error)[:120]
        if events:
            self._append("events.jsonl", events, MOST_EVENTS)
        if hours:
            self._append("hours.jsonl", hours, MOST_HOURS)
        if energy is not None and now - self.saved_at >= SAVE_S:
            self.saved_at = now
            with contextlib.suppress(OSError):
                replace(self.path("energy.json"), energy.encode(), 0o600)
        if metrics is not None and now - self.metrics_at >= TEXTFILE_S:
            self.metrics_at = now
            self._write_metrics(metrics)

    def _append(self, name, lines, most):
        old = read(self.path(name), MOST_FILE_BYTES).splitlines()
        text = b"".join(line.encode() + b"\n" for line in old if line) + b"".join(map(json_line, lines))
        with contextlib.suppress(OSError):
            replace(self.path(name), b"".join(text.splitlines(True)[-most:]), 0o600)

    def _write_metrics(self, metrics):
        if not os.path.isdir(os.path.dirname(self.textfile)):
            if self.wanted:
                self.textfile_error = "no folder %s" % os.path.dirname(self.textfile)
            return
        try:
            replace(self.textfile, metrics.encode(), 0o644)
            self.textfile_error = None
        except OSError as error:
            self.textfile_error = str(error.strerror)[:120]
