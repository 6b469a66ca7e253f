"""The GPUs as nvidia-smi and NVML see them."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from rigwright.core import host_text
from rigwright.core.command import Result, script
from rigwright.core.host_folders import UNTIL_BOOT
from rigwright.core.schema import BusId
from rigwright.facts import Fact, Unavailable, whole
from rigwright.facts.gpu import nvidia_smi
from rigwright.facts.gpu.nvidia_smi import XML, Reading, power, query, readings, rows


class ClockPair(Struct, frozen=True):
    """Application clocks, MHz."""

    memory_mhz: int
    graphics_mhz: int

    def __str__(self) -> str:
        return f"{self.memory_mhz},{self.graphics_mhz} MHz"


class Gpu(Struct, frozen=True):
    """One GPU. None: the GPU does not have the property (a GeForce has no application clocks) or does not report it.

    `lost`: the driver's message for a GPU that it can no longer reach; then only the bus id is known.
    """

    index: int
    uuid: str
    bus_id: str
    name: str
    persistence: bool | None = None
    power_limit_w: float | None = None
    power_min_w: float | None = None
    power_max_w: float | None = None
    power_default_w: float | None = None
    application_clocks: ClockPair | None = None
    default_application_clocks: ClockPair | None = None
    lost: str = ""

    @property
    def without_application_clocks(self) -> bool:
        """Whether it answers and has no application clocks: a GeForce, or a GPU on a driver that dropped them."""
        return self.application_clocks is None and not self.lost


_MOST_WATTS = 10_000


def _gpus(result: Result) -> tuple[Gpu, ...]:
    gpus = [_gpu(index, reading) for index, reading in enumerate(readings(result))]
    return tuple(sorted(gpus, key=lambda gpu: gpu.bus_id))


def _gpu(index: int, reading: Reading) -> Gpu:
    if not reading.texts:
        return Gpu(-1, "", reading.bus_id, "", lost=reading.lost)
    uuid, name = reading.text("uuid") or "", reading.text("product_name") or ""
    persistence = reading.yes("persistence_mode")
    now = reading.number(*power("requested_power_limit", "power_limit"))
    least, most, default = (reading.number(*power(f"{kind}_power_limit")) for kind in ("min", "max", "default"))
    clocks = _pair(reading, "applications_clocks"), _pair(reading, "default_applications_clocks")
    if reading.unread:
        return Gpu(index, uuid, reading.bus_id, name, lost=reading.unread[0].partition(": ")[2])
    # From 535 on nvidia-smi does not notice a failed call and prints uninitialized memory.
    low, high = least or 0, most or _MOST_WATTS
    for limit in (now, default):
        if limit is not None and not (limit > 0 and low <= limit <= high <= _MOST_WATTS):
            raise ValueError(f"a power limit of {limit:g} W between {low:g} and {high:g} W")
    return Gpu(index, uuid, reading.bus_id, name, persistence, now, least, most, default, *clocks)


def _pair(reading: Reading, group: str) -> ClockPair | None:
    memory, graphics = reading.whole(f"{group}/mem_clock"), reading.whole(f"{group}/graphics_clock")
    return None if memory is None or graphics is None else ClockPair(memory, graphics)


gpus = Fact("gpu.gpus", XML, _gpus, kept=whole)
"""All GPUs of the driver, also lost ones."""


def _supported(result: Result) -> dict[str, tuple[ClockPair, ...]]:
    pairs_of: dict[str, list[ClockPair]] = {}
    for row in rows(result):
        uuid, memory, graphics = (nvidia_smi.value(cell)[0] for cell in row.split(", "))
        if uuid and memory and graphics:
            pairs_of.setdefault(uuid, []).append(
                ClockPair(int(nvidia_smi.number(memory)), int(nvidia_smi.number(graphics)))
            )
    return {uuid: tuple(pairs) for uuid, pairs in pairs_of.items()}


supported_clocks = Fact("gpu.supported_clocks", query("--query-supported-clocks=gpu_uuid,memory,graphics"), _supported)
"""The clock pairs that `-ac` accepts, by UUID; without lost GPUs."""


class GpuMode(Struct, frozen=True):
    """ECC or MIG of one GPU. `current`: in force; `pending`: in force after the next boot or reset. Both None: the GPU
    does not have it, or is lost. `lost`: the driver's message for a lost GPU."""

    uuid: str
    bus_id: BusId
    name: str
    current: bool | None
    pending: bool | None
    lost: str = ""


def modes_of(result: Result, current: str, pending: str) -> tuple[GpuMode, ...]:
    """The mode of all GPUs whose fields have these paths, in the order of the bus. Raises as nvidia_smi.readings."""
    modes = []
    for reading in sorted(readings(result), key=lambda reading: reading.bus_id):
        uuid, name = reading.text("uuid") or "", reading.text("product_name") or ""
        now, later = reading.yes(current), reading.yes(pending)
        problem = reading.unread[0].partition(": ")[2] if reading.unread else reading.lost
        values = (None, None) if problem else (now, later)
        modes.append(GpuMode(uuid, reading.bus_id, name, *values, problem))
    return tuple(modes)


ecc_modes = Fact("gpu.ecc_modes", XML, lambda result: modes_of(result, "ecc_mode/current_ecc", "ecc_mode/pending_ecc"))
"""ECC of all GPUs of the driver, also lost ones."""

OWN = ("nvidia-persiste", "nv-fabricmanage", "nv-hostengine", "gpu-guard")
"""Names of programs of the driver and of monitoring, shortened as in /proc/PID/comm."""


class Process(Struct, frozen=True):
    """A process that uses a GPU."""

    pid: int
    name: str

    @property
    def works(self) -> bool:
        """Whether it is a user's program. Programs of the driver and of monitoring can be stopped and started again."""
        return not self.name.rpartition("/")[2].startswith(OWN)


def _processes(result: Result) -> tuple[Process, ...]:
    no_driver = result.code in (9, 127)  # then no process uses a GPU
    return () if no_driver else _process_rows(rows(result))


def _process_rows(lines: list[str]) -> tuple[Process, ...]:
    """The processes of lines `PID, NAME`. A name may contain newlines, so other lines continue a name."""
    processes: list[Process] = []
    for line in filter(str.strip, lines):
        pid, _, name = line.partition(", ")
        if not processes or (name and pid.isdecimal()):
            processes.append(Process(host_text.integer(pid), name))
    return tuple(processes)


processes = Fact("gpu.processes", query("--query-compute-apps=pid,process_name"), _processes)
"""The compute processes on all GPUs that are not lost."""


def _users(result: Result) -> dict[str, tuple[Process, ...]]:
    some_lost = any(map(nvidia_smi.is_lost, result.lines))
    users: dict[str, tuple[Process, ...]] = {}
    for line in result.lines if some_lost else host_text.lines(nvidia_smi.successful_output(result)):
        if line.strip() and not nvidia_smi.is_lost(line):
            uuid, pid, name = line.split(", ", 2)
            users[uuid] = (*users.get(uuid, ()), Process(host_text.integer(pid), name))
    return users


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
"""A module is compiled only once. No fact needs the supported clocks, which are most of the document."""

LINKS_BEGIN = "--- links\n"
_NVML = """
document=$(python3 -IS -c "$1" "$2"); code=$?
if [ "$document" ]; then
  printf '%s\n' "$document"
  [ $code = 0 ] || exit $code
  case $document in *'"hangs": true'*) exit 0;; *'"nvlinks": null'*) ;; *'"nvlinks": ['*) exit 0;; esac
  echo '--- links'
fi
links=$(ask nvlink -s); code=$?
printf '%s\n' "$links"
case $links in *'Link '[0-9]*) ;; *) exit $code;; esac  # no link: no peers either
echo '--- peers'; ask nvlink -p | grep -e '^GPU' -e 'Link [0-9]*: [0-9A-Fa-f]*:'
echo '--- errors'; ask nvlink -e | grep -e '^GPU' -e 'Link [0-9]*: .*Errors*: [0-9]' -e 'Link [0-9]*: [0-9]* .* errors'
exit $code
"""
NVML = script(nvidia_smi.ASK + _NVML, _SHOW, LIMITS_PROGRAM, timeout_s=60)
"""Prints the document of the GPU limits program, which reads NVML. If that lacks NVLinks (branch 470, or no program
yet), it then prints the output of `nvidia-smi nvlink`: the state of all links, after `--- peers` the other end of each,
and after `--- errors` its counts. If the driver does not answer NVML, nvidia-smi is not run."""


def _nvml(result: Result) -> dict[str, Any]:
    text, links, _ = result.text.partition(LINKS_BEGIN)
    if (result.code and not links) or (result.error_text and not text.startswith("{")):
        raise Unavailable(f"NVML: {host_text.lines(result.error_text)[-1] if result.error_text else 'no answer'}")
    document = host_text.json_value(text)
    if not isinstance(document, dict) or not isinstance(document.get("gpus"), list):
        raise ValueError("no JSON object with GPUs")
    return document


nvml = Fact("gpu.nvml", NVML, _nvml)
"""The JSON document of the GPU limits program."""

Locks = dict[tuple[str, str], tuple[int, int]]
"""Locked clocks since this load of the driver: (min, max) MHz by UUID and kind (graphics, memory)."""

LOCKED_FILE = f"{UNTIL_BOOT}/locked-clocks"
"""rigwright's record of locked clocks, which the driver does not report. Lines: UUID graphics|memory MIN MAX BOOT_ID
LOAD CODE."""

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
