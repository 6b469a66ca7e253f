"""The GPUs as nvidia-smi and NVML see them."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from typing import Any

from rigwright.facts import Fact, Unavailable
from rigwright.shell import Result, command, script


@dataclass(frozen=True)
class ClockPair:
    """Application clocks, MHz."""

    memory_mhz: int
    graphics_mhz: int

    def __str__(self) -> str:
        return f"{self.memory_mhz},{self.graphics_mhz} MHz"


@dataclass(frozen=True)
class Gpu:
    """One GPU. None: the GPU has no such thing (a GeForce has no application clocks), or cannot tell."""

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


QUERY = (
    "index,uuid,pci.bus_id,name,persistence_mode,power.limit,power.min_limit,power.max_limit,power.default_limit,"
    "clocks.applications.memory,clocks.applications.graphics,clocks.default_applications.memory,clocks.default_applications.graphics"
)


def answered(result: Result) -> str:
    """nvidia-smi's stdout. Raises Unavailable with its own words when it has none to give.

    Status 14 is a warning (a corrupted infoROM) behind a whole answer.
    """
    if result.code == 127 or "not found" in result.error_text or "No such file" in result.error_text:
        raise Unavailable("nvidia-smi is not installed")
    text = "\n".join(line for line in result.text.strip().splitlines() if not line.startswith("WARNING:"))
    if result.code not in (0, 14) or text.startswith("No devices"):
        said = (text or result.error_text).splitlines()
        raise Unavailable(f"nvidia-smi says: {said[0] if said else f'nothing (exit {result.code})'}")
    return text


_NONE = ("[N/A]", "N/A", "[Not Supported]", "[Requested functionality has been deprecated]")
_BROKEN = ("ERR!", "[GPU is lost]", "[Unknown Error]", "[GPU requires reset]", "[Insufficient Permissions]")


def _number(word: str) -> float | None:
    return None if word in _NONE else float(word)


def _pair(memory: str, graphics: str) -> ClockPair | None:
    first, second = _number(memory), _number(graphics)
    return None if first is None or second is None else ClockPair(int(first), int(second))


def _gpus(result: Result) -> tuple[Gpu, ...]:
    found = []
    for row in csv.reader(answered(result).splitlines(), skipinitialspace=True):
        if len(row) != 13:
            raise ValueError(f"{len(row)} columns, not 13")
        broken = next((cell for cell in row if cell in _BROKEN), "")
        if broken:
            raise Unavailable(f"nvidia-smi says of GPU {row[0]} ({row[2]}): {broken.strip('[]')}")
        state = None if row[4] in _NONE else {"Enabled": True, "Disabled": False}[row[4]]
        bus_id = row[2].lower()[4:] if len(row[2]) > 12 else row[2].lower()
        now, least, most, default = (_number(word) for word in row[5:9])
        clocks = (_pair(row[9], row[10]), _pair(row[11], row[12]))
        found.append(Gpu(int(row[0]), row[1], bus_id, row[3], state, now, least, most, default, *clocks))
    return tuple(found)


gpus = Fact(
    "gpu.gpus", command("nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader,nounits", timeout_s=30), _gpus
)


def _supported(result: Result) -> dict[str, tuple[ClockPair, ...]]:
    found: dict[str, list[ClockPair]] = {}
    for row in csv.reader(answered(result).splitlines(), skipinitialspace=True):
        pair = _pair(row[1], row[2])
        if pair:
            found.setdefault(row[0], []).append(pair)
    return {uuid: tuple(pairs) for uuid, pairs in found.items()}


supported_clocks = Fact(
    "gpu.supported_clocks",
    command(
        "nvidia-smi", "--query-supported-clocks=gpu_uuid,memory,graphics", "--format=csv,noheader,nounits", timeout_s=30
    ),
    _supported,
)
"""Per UUID the pairs that `-ac` takes."""


@dataclass(frozen=True)
class Process:
    """A process that holds GPU memory."""

    pid: int
    name: str


def _processes(result: Result) -> tuple[Process, ...]:
    if result.code in (9, 127):
        return ()  # no driver is loaded, so nothing can hold a GPU through it
    rows = (line.partition(", ") for line in answered(result).splitlines() if line.strip())
    return tuple(Process(int(pid), name) for pid, _, name in rows)


processes = Fact(
    "gpu.processes",
    command("nvidia-smi", "--query-compute-apps=pid,process_name", "--format=csv,noheader", timeout_s=30),
    _processes,
)

_HOLDERS = """
find /proc/[0-9]*/fd -lname '/dev/nvidia[0-9]*' 2>/dev/null | cut -d/ -f3 | sort -un | while read pid; do
  name=$(cat "/proc/$pid/comm" 2>/dev/null) && [ "$name" != nvidia-smi ] && echo "$pid, $name"
done; :
"""


def _holders(result: Result) -> tuple[Process, ...]:
    rows = (line.partition(", ") for line in result.text.splitlines())
    return tuple(Process(int(pid), name) for pid, _, name in rows)


holders = Fact("gpu.holders", script(_HOLDERS, timeout_s=60), _holders)
"""The processes that have a GPU's device open; also told when the library moved and nvidia-smi cannot answer."""

PROGRAM = "/usr/local/lib/rigwright/gpu_limits.py"


def _nvml(result: Result) -> dict[str, Any]:
    if result.code != 0:
        raise Unavailable(f"NVML: {result.error_text.splitlines()[-1] if result.error_text else 'no answer'}")
    document = json.loads(result.text)
    if not isinstance(document, dict) or not isinstance(document.get("gpus"), list):
        raise ValueError("no JSON object with GPUs")
    return document


nvml = Fact("gpu.nvml", command("python3", PROGRAM, "show", timeout_s=30), _nvml)
"""What NVML itself says, through the program and the pynvml.py that provision put beside the boot unit."""
