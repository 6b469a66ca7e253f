"""The GPUs as nvidia-smi and NVML see them."""

from __future__ import annotations

import csv
import re
from typing import Any

from rigwright.core import host_text, lazy_re
from rigwright.core.command import Command, Result, command, script
from rigwright.core.host_folders import UNTIL_BOOT
from rigwright.core.lazy_dataclasses import dataclass
from rigwright.core.schema import BusId, bus_id
from rigwright.facts import Fact, Unavailable, whole


class NoGpus(Unavailable):
    """nvidia-smi runs with a loaded driver, and lists no GPU."""


@dataclass(frozen=True)
class ClockPair:
    """Application clocks, MHz."""

    memory_mhz: int
    graphics_mhz: int

    def __str__(self) -> str:
        return f"{self.memory_mhz},{self.graphics_mhz} MHz"


@dataclass(frozen=True)
class Gpu:
    """One GPU. None: the GPU does not have the property (a GeForce has no application clocks) or does not report it.

    `lost`: the driver's message for a GPU that it can no longer reach; then only the bus id is known.
    """

    index: int
    uuid: str
    bus_id: str
    name: str
    persistence: bool | None
    power_limit_w: float | None
    power_min_w: float | None
    power_max_w: float | None
    power_default_w: float | None
    application_clocks: ClockPair | None
    default_application_clocks: ClockPair | None
    lost: str = ""

    @property
    def without_application_clocks(self) -> bool:
        """Whether it answers and has no application clocks: a GeForce, or any GPU on a driver that has them no longer."""
        return self.application_clocks is None and not self.lost


QUERY = (
    "index,uuid,pci.bus_id,name,persistence_mode,power.limit,power.min_limit,power.max_limit,power.default_limit,"
    "clocks.applications.memory,clocks.applications.graphics,clocks.default_applications.memory,clocks.default_applications.graphics"
)


def answered(result: Result) -> str:
    """nvidia-smi's stdout, also with status 14 (a corrupted infoROM). Raises Unavailable with its message if it failed, NoGpus if it
    lists none."""
    if result.code == 127 or "not found" in result.error_text or "No such file" in result.error_text:
        raise Unavailable("nvidia-smi is not installed")
    text = "\n".join(line for line in host_text.lines(result.text.strip()) if not line.startswith("WARNING:"))
    if result.code not in (0, 14) or text.startswith("No devices"):
        lines = host_text.lines(text or result.error_text)
        kind = NoGpus if text.startswith("No devices") else Unavailable
        raise kind(f"nvidia-smi says: {lines[0] if lines else f'nothing (exit {result.code})'}")
    return text


_NONE = (
    "[N/A]",
    "N/A",
    "[Not Supported]",
    "[Not Found]",
    "[Function Not Found]",
    "[Requested functionality has been deprecated]",
)
_BROKEN = ("ERR!", "[GPU is lost]", "[Unknown Error]", "[GPU requires reset]", "[Insufficient Permissions]")


def number(word: str) -> float:
    """A number of nvidia-smi's output without its unit. Raises ValueError for other text, also for nan and inf."""
    if not re.fullmatch(r"-?[0-9]{1,12}(\.[0-9]{1,12})?", word):
        raise ValueError(f"{word[:40]!r} is no number")
    return float(word)


def _number(word: str) -> float | None:
    return None if word in _NONE else number(word)


def _pair(memory: str, graphics: str) -> ClockPair | None:
    first, second = _number(memory), _number(graphics)
    return None if first is None or second is None else ClockPair(int(first), int(second))


LOST = "Unable to determine the device handle"
"""How nvidia-smi's output begins when a GPU is lost. It then reports no other GPU."""
_LOST = lazy_re.compile(rf"{LOST} for GPU ?\d{{0,4}}:? ?([0-9A-Fa-f:.]{{7,16}}): (.+)")


def lost(text: str) -> dict[BusId, str]:
    """The messages of nvidia-smi about GPUs that it cannot reach, by bus id."""
    return {bus_id(match[1]): match[2].split(".")[0].strip() or "lost" for match in _LOST.finditer(text)}


def _gpus(result: Result) -> tuple[Gpu, ...]:
    rows = _table(result)
    gpus = [_lost(at, problem) for at, problem in lost(result.text).items()]
    for row in rows:
        if len(row) != 13:
            raise ValueError(f"{len(row)} columns, not 13")
        broken = next((cell for cell in row if cell in _BROKEN), "")
        if broken:
            names = ("" if cell in _BROKEN else cell for cell in (row[1], row[3]))
            gpus.append(_lost(bus_id(row[2]), broken.strip("[]"), host_text.integer(row[0]), *names))
        else:
            gpus.append(_gpu(row))
    return tuple(sorted(gpus, key=lambda gpu: gpu.bus_id))


def _table(result: Result) -> list[list[str]]:
    """The cells of all GPUs that are not lost."""
    try:
        return list(csv.reader(of_those_left(result), skipinitialspace=True))
    except csv.Error as error:
        raise ValueError(str(error)) from None


def _lost(at: str, problem: str, index: int = -1, uuid: str = "", name: str = "") -> Gpu:
    return Gpu(index, uuid, at, name, None, None, None, None, None, None, None, problem)


def _gpu(row: list[str]) -> Gpu:
    state = None if row[4] in _NONE else {"Enabled": True, "Disabled": False}[row[4]]
    now, least, most, default = (_number(word) for word in row[5:9])
    clocks = (_pair(row[9], row[10]), _pair(row[11], row[12]))
    return Gpu(host_text.integer(row[0]), row[1], bus_id(row[2]), row[3], state, now, least, most, default, *clocks)


ASK = f"""
ask() {{
  out=$(nvidia-smi "$@" 2>&1); code=$?
  case $out in *"{LOST}"*) ;; *) printf '%s\\n' "$out"; return $code;; esac
  for device in /sys/bus/pci/drivers/nvidia/????:*; do
    one=$(nvidia-smi "$@" -i "${{device##*/}}" 2>&1)
    case $? in 0|14) ;; *) one="{LOST} for GPU ${{device##*/}}: ${{one##*: }}";; esac
    [ -z "$one" ] || printf '%s\\n' "$one"
  done
  return $code
}}
"""
"""A shell function that runs nvidia-smi. If a GPU is lost, nvidia-smi reports no GPU at all; then it queries each alone."""


def query(words: str) -> Command:
    """A fact from a query of nvidia-smi that works also if a GPU is lost; `of_those_left` returns its rows."""
    return script(ASK + 'ask "$1" --format=csv,noheader,nounits', words, timeout_s=60, reads=True)


def of_those_left(result: Result) -> list[str]:
    """The rows of all GPUs that are not lost. Raises Unavailable if there are none."""
    rows = [line for line in result.lines if line.strip()]
    left = [line for line in rows if not _LOST.match(line.strip())]
    return left if 0 < len(left) < len(rows) else host_text.lines(answered(result))


_XML = """
cards() { { nvidia-smi -q -x "$@" 2>&1; echo "code $?"; } | grep -v -e '<supported_graphics_clock>' -e '^[[:space:]]*$'; }
out=$(cards); code=${out##*code }
case $out in *"@LOST@"*) ;; *) printf '%s\\n' "${out%code *}"; exit $code;; esac
for device in /sys/bus/pci/drivers/nvidia/????:*; do
  one=$(cards -i "${device##*/}"); status=${one##*code }; one=${one%code *}
  case $status in 0|14) ;; *) one="@LOST@ for GPU ${device##*/}: ${one##*: }";; esac
  [ -z "$one" ] || printf '%s\\n' "$one"
done
exit $code
""".replace("@LOST@", LOST)
XML = script(_XML, timeout_s=60, reads=True)
"""Prints `nvidia-smi -q -x`, for each GPU alone if one is lost, without the lists of supported clocks, which are 90 % of it. In a
batch with queries of fields it answers in their place (ssh/merged_queries.py)."""

_LINKS = """
status=$(ask nvlink -s); code=$?
printf '%s\\n' "$status"
case $status in *'Link '[0-9]*) ;; *) exit $code;; esac  # no link: no peers either
echo '--- peers'; ask nvlink -p | grep -e '^GPU' -e 'Link [0-9]*: [0-9A-Fa-f]*:'
echo '--- errors'; ask nvlink -e | grep -e '^GPU' -e 'Link [0-9]*: .*Errors*: [0-9]' -e 'Link [0-9]*: [0-9]* .* errors'
exit $code
"""
LINKS = script(ASK + _LINKS, timeout_s=60, reads=True)
"""Prints the state of all NVLinks, and after `--- peers` and `--- errors` where each ends and what it counted. In a batch with gpu.nvml that document
answers in its place (ssh/merged_queries.py)."""


gpus = Fact("gpu.gpus", query(f"--query-gpu={QUERY}"), _gpus, kept=whole)
"""All GPUs of the driver, also lost ones."""


def _supported(result: Result) -> dict[str, tuple[ClockPair, ...]]:
    pairs_of: dict[str, list[ClockPair]] = {}
    for row in _table(result):
        pair = None if any(cell in _BROKEN for cell in row) else _pair(row[1], row[2])
        if pair:
            pairs_of.setdefault(row[0], []).append(pair)
    return {uuid: tuple(pairs) for uuid, pairs in pairs_of.items()}


_SUPPORTED = "--query-supported-clocks=gpu_uuid,memory,graphics"
supported_clocks = Fact("gpu.supported_clocks", query(_SUPPORTED), _supported)
"""The clock pairs that `-ac` accepts, by UUID; without lost GPUs."""


@dataclass(frozen=True)
class EccMode:
    """ECC of one GPU. `current`: in force; `pending`: from the next boot or reset on. Both None: it has no ECC that can be switched, or
    is lost."""

    uuid: str
    bus_id: str
    name: str
    current: bool | None
    pending: bool | None
    lost: str = ""


def two_modes(result: Result) -> list[tuple[str, BusId, str, bool | None, bool | None, str]]:
    """The rows of a query for uuid, bus id, name, and a mode now and after the next boot or reset; the last is the driver's word for a
    GPU that is lost. The modes are None where a GPU does not have them."""
    rows: list[tuple[str, BusId, str, bool | None, bool | None, str]] = [
        ("", BusId(at), "", None, None, problem) for at, problem in lost(result.text).items()
    ]
    for uuid, at, name, *states in _table(result):
        if len(states) != 2:
            raise ValueError(f"{3 + len(states)} columns, not 5")
        broken = next((cell for cell in (uuid, name, *states) if cell in _BROKEN), "")
        now, then = (None if broken or cell in _NONE else {"Enabled": True, "Disabled": False}[cell] for cell in states)
        rows.append((uuid, bus_id(at), name, now, then, broken.strip("[]")))
    return sorted(rows, key=lambda row: row[1])


def _ecc_modes(result: Result) -> tuple[EccMode, ...]:
    return tuple(EccMode(*row) for row in two_modes(result))


ecc_modes = Fact(
    "gpu.ecc_modes", query("--query-gpu=uuid,pci.bus_id,name,ecc.mode.current,ecc.mode.pending"), _ecc_modes
)
"""ECC of all GPUs of the driver, also lost ones."""


def _users(result: Result) -> dict[str, tuple[Process, ...]]:
    some_lost = any(_LOST.match(line.strip()) for line in result.lines)
    lines = result.lines if some_lost else host_text.lines(answered(result))
    users: dict[str, tuple[Process, ...]] = {}
    for line in lines:
        if line.strip() and not _LOST.match(line.strip()):
            uuid, pid, name = line.split(", ", 2)
            users[uuid] = (*users.get(uuid, ()), Process(host_text.integer(pid), name))
    return users


OWN = ("nvidia-persiste", "nv-fabricmanage", "nv-hostengine", "gpu-guard")
"""Names of programs of the driver and of monitoring, shortened as in /proc/PID/comm."""


@dataclass(frozen=True)
class Process:
    """A process that uses a GPU."""

    pid: int
    name: str

    @property
    def works(self) -> bool:
        """Whether it is a user's program. Programs of the driver and of monitoring can be stopped and started again."""
        return not self.name.rpartition("/")[2].startswith(OWN)


def _processes(result: Result) -> tuple[Process, ...]:
    if result.code in (9, 127):
        return ()  # no driver is loaded, so nothing can hold a GPU through it
    return _process_rows(of_those_left(result))


def _process_rows(lines: list[str]) -> tuple[Process, ...]:
    """A line `PID, NAME` for each process. A name may contain newlines: other lines than the first are then the rest of it."""
    rows: list[Process] = []
    for line in filter(str.strip, lines):
        pid, _, name = line.partition(", ")
        if not rows or (name and pid.isdecimal()):
            rows.append(Process(host_text.integer(pid), name))
    return tuple(rows)


processes = Fact("gpu.processes", query("--query-compute-apps=pid,process_name"), _processes)
"""The compute processes on all GPUs that are not lost."""

users = Fact("gpu.users", query("--query-compute-apps=gpu_uuid,pid,process_name"), _users)
"""The compute processes by the UUID of their GPU."""

_OPENED = """
set -- $(find /proc/[0-9]*/fd -lname '/dev/nvidia[0-9]*' 2>/dev/null | cut -d/ -f3 | sort -un)
[ $# = 0 ] && exit
groups=; for pid; do groups="$groups /proc/$pid/cgroup"; done
grep -ohE -m 1 '(docker|libpod|containerd|crio)[-/:][0-9a-f]{12}' $groups 2>/dev/null | sort -u
echo --
for pid; do { read -r name <"/proc/$pid/comm"; } 2>/dev/null && [ "$name" != nvidia-smi ] && echo "$pid, $name"; done; :
"""
_ASK_OPENED = script(_OPENED, timeout_s=60, reads=True)
"""Prints the containers, `--`, and the processes, whose names may contain newlines."""

holders = Fact(
    "gpu.holders", _ASK_OPENED, lambda result: _process_rows(host_text.lines(result.text.partition("--\n")[2]))
)
"""The processes that have a GPU's device file open; also available if nvidia-smi fails."""

containers = Fact("gpu.containers", _ASK_OPENED, lambda result: tuple(result.text.partition("--\n")[0].split()))
"""The containers in which a process has a GPU open: docker-0123456789ab; () when there is none."""

LIMITS_PROGRAM = "/usr/local/lib/rigwright/gpu_limits.py"


def _nvml(result: Result) -> dict[str, Any]:
    if result.code != 0:
        raise Unavailable(f"NVML: {host_text.lines(result.error_text)[-1] if result.error_text else 'no answer'}")
    document = host_text.json_value(result.text)
    if not isinstance(document, dict) or not isinstance(document.get("gpus"), list):
        raise ValueError("no JSON object with GPUs")
    return document


_SHOW = """
import os, sys
sys.path.insert(0, os.path.dirname(sys.argv[1]))
try:
    import gpu_limits
except ImportError:
    sys.exit("there is no " + sys.argv[1])
gpu_limits.STATE.pop("supported_application_clocks", None)
sys.exit(gpu_limits.show(None, gpu_limits.SHOW_S))
"""
"""As a module the program is compiled once, not in each run. No fact needs the supported clocks, most of its document."""

nvml = Fact("gpu.nvml", command("python3", "-IS", "-c", _SHOW, LIMITS_PROGRAM, timeout_s=60), _nvml)
"""The JSON document of the GPU limits program, which reads NVML."""


Locks = dict[tuple[str, str], tuple[int, int]]
"""Locked clocks recorded since this boot and this load of the driver: [min, max] MHz by UUID and kind (graphics, memory)."""

LOCKED_FILE = f"{UNTIL_BOOT}/locked-clocks"
"""The file with the locked clocks, because the driver does not report them. Lines: UUID graphics|memory MIN MAX BOOT_ID LOAD CODE."""

_LOCKED = """
echo "$(cat /proc/sys/kernel/random/boot_id) $(stat -c %i /sys/module/nvidia 2>/dev/null || echo -)"
cat "$1" 2>/dev/null; :
"""


def _locked(result: Result) -> Locks:
    now, *lines = result.lines
    locks: Locks = {}
    for line in lines:
        uuid, kind, low, high, boot, load, code = line.split()
        if f"{boot} {load}" == now and code == "0":
            locks[uuid, kind] = (host_text.integer(low), host_text.integer(high))
    return locks


locked = Fact("gpu.locked", script(_LOCKED, LOCKED_FILE, reads=True), _locked)
