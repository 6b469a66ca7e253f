"""What the processes on the GPUs do: a reading of a few seconds of the processes, and of the GPUs beside them."""

from __future__ import annotations

from msgspec import Struct

from rigwright.core.command import Result, script
from rigwright.facts import Fact, Unavailable
from rigwright.facts.gpu.gpus import Process
from rigwright.facts.gpu.nvidia_smi import MOST_GPUS
from rigwright.facts.nccl.document import read_document, require_readings

MOST = 64
"""The most processes that are observed."""


class ObservedProcess(Process, frozen=True, kw_only=True):
    """A process that has a GPU. `user`: its owner's name, or the number of one without a name. `command`: its words,
    cut. `state` and `wait_channel`: of its main thread, as in /proc/PID/stat and /proc/PID/wchan.

    `processor_percent`: of one processor, all threads together. `output_age_s`: since the newest write to the file or
    terminal that is its output; None: its output is a pipe, or unknown. `gpus`: UUIDs.
    """

    user: str
    command: str
    state: str
    wait_channel: str
    age_s: float
    processor_percent: float
    output_age_s: float | None
    gpus: tuple[str, ...]


class ObservedGpu(Struct, frozen=True):
    """A GPU in both readings. Percent of the time before the reading in which a program ran, and in which its memory
    was read or written; None: not reported."""

    uuid: str
    busy_percent: tuple[float | None, float | None]
    memory_percent: tuple[float | None, float | None]


class Observation(Struct, frozen=True):
    """`seconds` between two readings. Without `gpus` nvidia-smi did not answer."""

    schema: int
    seconds: float
    gpus: tuple[ObservedGpu, ...]
    processes: tuple[ObservedProcess, ...]


_PROGRAM = r"""
import json, os, pwd, re, stat, subprocess, sys, time

def read(path):
    try:
        with open(path, "rb") as file:
            return file.read(4096)
    except OSError:
        return b""

def text(data, most):
    return re.sub(r"\s+", " ", data.decode("utf-8", "replace")).strip()[:most]

def smi(query):
    words = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=15)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.split(", ") for line in text(done.stdout.replace(b"\n", b";"), 65536).split(";")]

def gpus():
    rows = smi("--query-gpu=uuid,utilization.gpu,utilization.memory")
    return {row[0]: [float(cell) if cell.isdigit() else None for cell in row[1:]] for row in rows if len(row) == 3}

def fields(pid):  # from the state on; the name before it may contain anything
    return read("/proc/%d/stat" % pid).rpartition(b")")[2].decode("ascii", "replace").split()

def devices(pid):
    try:
        files = os.listdir("/proc/%d/fd" % pid)[:4096]
    except OSError:
        return set()
    found = set()
    for file in files:
        try:
            device = re.match("/dev/nvidia([0-9]{1,4})$", os.readlink("/proc/%d/fd/%s" % (pid, file)))
        except OSError:
            continue
        found |= {int(device.group(1))} if device else set()
    return found

def output_age(pid):
    ages = []
    for number in 1, 2:
        try:
            file = os.stat("/proc/%d/fd/%d" % (pid, number))
        except OSError:
            continue
        terminal = stat.S_ISCHR(file.st_mode) and os.major(file.st_rdev) in (4, *range(136, 144))
        if terminal or stat.S_ISREG(file.st_mode):
            ages.append(max(0, time.time() - file.st_mtime))
    return min(ages) if ages else None

def user(pid):
    try:
        number = os.stat("/proc/%d" % pid).st_uid
        return text(pwd.getpwuid(number).pw_name.encode(), 32)
    except KeyError:
        return str(number)

seconds, most, hertz = float(sys.argv[1]), int(sys.argv[2]), os.sysconf("SC_CLK_TCK")
contexts = {}
for row in smi("--query-compute-apps=pid,gpu_uuid"):
    if len(row) == 2 and row[0].isdigit():
        contexts.setdefault(int(row[0]), set()).add(row[1])
opened = {pid: devices(pid) for pid in map(int, filter(str.isdigit, os.listdir("/proc")))}
pids = sorted({pid for pid in opened if opened[pid] or pid in contexts})[:most]
before, began, first = gpus(), time.monotonic(), {pid: fields(pid) for pid in pids}
time.sleep(seconds)
taken = time.monotonic() - began
second, after = {pid: fields(pid) for pid in pids}, gpus()
uuids, up, processes = list(before), float(read("/proc/uptime").split()[0]), []
for pid in pids:
    then, now = first[pid], second[pid]
    if len(then) < 20 or len(now) < 20 or then[19] != now[19]:
        continue  # it ended
    ticks = sum(int(now[at]) - int(then[at]) for at in (11, 12))
    try:
        processes.append({
            "pid": pid, "name": text(read("/proc/%d/comm" % pid), 64), "user": user(pid),
            "command": text(read("/proc/%d/cmdline" % pid).replace(b"\0", b" "), 200),
            "state": now[0], "wait_channel": text(read("/proc/%d/wchan" % pid), 64).lstrip("0"),
            "age_s": max(0, up - int(now[19]) / hertz), "processor_percent": 100 * ticks / hertz / taken,
            "output_age_s": output_age(pid),
            "gpus": sorted(contexts.get(pid) or {uuids[at] for at in opened[pid] if at < len(uuids)}),
        })
    except OSError:
        continue
print(json.dumps({"schema": 1, "seconds": taken, "processes": processes, "gpus": [
    {"uuid": uuid, "busy_percent": [before[uuid][0], after[uuid][0]],
     "memory_percent": [before[uuid][1], after[uuid][1]]} for uuid in before if uuid in after]}))
"""
SECONDS = 3
"""The time between the readings: long beside nvidia-smi's sampling period of up to a second."""


def _observation(result: Result) -> Observation:
    if result.code == 127:
        raise Unavailable("python3 is not installed")
    seen = read_document(result.text, Observation, "observation's")
    if len(seen.processes) > MOST or len(seen.gpus) > MOST_GPUS:
        raise ValueError(f"more than {MOST} processes or {MOST_GPUS} GPUs")
    require_readings(percent for gpu in seen.gpus for percent in (*gpu.busy_percent, *gpu.memory_percent))
    for process in seen.processes:
        require_readings((process.age_s, process.processor_percent, process.output_age_s))
        if max(map(len, (process.name, process.user, process.command, process.state, process.wait_channel))) > 200:
            raise ValueError("a text of more than 200 characters")
    require_readings((seen.seconds,))
    return seen


observation = Fact(
    "processes.observation",
    script('exec python3 -IS -c "$@"', _PROGRAM, str(SECONDS), str(MOST), timeout_s=60, reads=True),
    _observation,
)
"""What the processes on the GPUs do, read for SECONDS. The driver's own processes are among them."""
