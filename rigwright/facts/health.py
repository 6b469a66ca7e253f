"""How the GPUs fare: heat, brakes, memory errors, NVLinks, and what the driver's own threads do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree

from rigwright.facts import Fact, Unavailable, Unreadable
from rigwright.facts.gpu import answered
from rigwright.shell import Result, command, script


@dataclass(frozen=True)
class Health:
    """One GPU. None: it has no such thing, or does not tell. `brakes`: what slows its clocks now, besides being idle or a limit.

    `errors`: uncorrectable and corrected errors of its memory, since the driver was loaded and ever. `pending`: a page, or
    from Ampere on a row, waits to be taken out of use. `broken`: what the driver could not read, as NAME: WORDS.
    """

    bus_id: str
    uuid: str
    utilization_percent: int | None
    temperature_c: int | None
    memory_c: int | None
    slowdown_c: int | None
    memory_most_c: int | None
    brakes: tuple[str, ...]
    uncorrected: int | None
    uncorrected_ever: int | None
    corrected: int | None
    retired_pages: int | None
    pending: Literal["", "page", "row"]
    remap_failed: bool | None
    reset_required: bool | None
    mig: bool
    broken: tuple[str, ...] = ()


_NONE = re.compile(
    r"\[?(N/A|Not Supported|(?:Function )?Not Found|Requested functionality has been deprecated|None)\]?"
)
_BROKEN = re.compile(
    r"ERR!|\[?(Unknown Error|GPU is lost\.?|GPU requires reset\.?|Insufficient Permissions|GPU access blocked|Uninitialized)\]?"
)
_BRAKES = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")


class _Words:
    """One GPU's values by their path in the XML; remembers those that the driver could not read."""

    def __init__(self, gpu: ElementTree.Element) -> None:
        self.gpu = gpu
        self.broken: list[str] = []

    def text(self, *paths: str) -> str | None:
        """The first value that is there; None for one that the GPU does not have."""
        for path in paths:
            word = (self.gpu.findtext(path) or "").strip()
            if _BROKEN.fullmatch(word):
                self.broken.append(f"{path.rpartition('/')[2]}: {word.strip('[]')}")
            elif word and not _NONE.fullmatch(word):
                return word
        return None

    def number(self, *paths: str) -> int | None:
        """A whole number, its unit taken off. Raises ValueError for anything else."""
        word = self.text(*paths)
        if word is None:
            return None
        found = re.fullmatch(r"(-?\d+)(?:\.\d+)?(?: ?[A-Za-z%/]+)?", word)
        if not found:
            raise ValueError(f"{paths[0]} is {word[:40]!r}")
        return int(found[1])

    def state(self, *paths: str) -> bool | None:
        """Yes, Active and Enabled, or their opposite. Raises ValueError for anything else."""
        word = self.text(*paths)
        known = {"Yes": True, "Active": True, "Enabled": True, "No": False, "Not Active": False, "Disabled": False}
        if word is not None and word not in known:
            raise ValueError(f"{paths[0]} is {word[:40]!r}")
        return None if word is None else known[word]

    def sum(self, path: str, words: str) -> int | None:
        """The sum of the counters below a path whose names have one of the words; None when it has none that tells."""
        found = self.gpu.find(path)
        names = [one.tag for one in found if re.search(words, one.tag)] if found is not None else []
        wide = [name for name in names if name != "total"]
        told = [value for name in wide if (value := self._counter(f"{path}/{name}")) is not None]
        return sum(told) if told else None

    def _counter(self, path: str) -> int | None:
        inner = self.gpu.find(path)
        return self.number(f"{path}/total") if inner is not None and len(inner) else self.number(path)


def _health(gpu: ElementTree.Element) -> Health:
    words = _Words(gpu)
    reasons = next(
        (name for name in ("clocks_event_reason", "clocks_throttle_reason") if gpu.find(f"{name}s") is not None), ""
    )
    bad, good = "uncorrect|double_bit", "(?<!un)correct|single_bit"
    retired = [words.number(f"retired_pages/{kind}/retired_count") for kind in _RETIRED]
    return Health(
        str(gpu.get("id", "")).lower()[-12:],
        words.text("uuid") or "",
        words.number("utilization/gpu_util"),
        words.number("temperature/gpu_temp"),
        words.number("temperature/memory_temp"),
        words.number("temperature/gpu_temp_slow_threshold"),
        words.number("temperature/gpu_temp_max_mem_threshold"),
        tuple(name for name in _BRAKES if reasons and words.state(f"{reasons}s/{reasons}_{name}")),
        words.sum("ecc_errors/volatile", bad),
        words.sum("ecc_errors/aggregate", bad),
        words.sum("ecc_errors/volatile", good),
        sum(one for one in retired if one is not None) if any(one is not None for one in retired) else None,
        _pending(words),
        words.state("remapped_rows/remapped_row_failure"),
        words.state("gpu_reset_status/reset_required"),
        words.state("mig_mode/current_mig") is True,
        tuple(words.broken),
    )  # fmt: skip


def _pending(words: _Words) -> Literal["", "page", "row"]:
    if words.state("retired_pages/pending_retirement", "retired_pages/pending_blacklist"):
        return "page"
    return "row" if words.state("remapped_rows/remapped_row_pending") else ""


_RETIRED = ("multiple_single_bit_retirement", "double_bit_retirement")


def _gpus(result: Result) -> tuple[Health, ...]:
    text = answered(result)
    if "<" not in text:
        raise Unavailable(f"nvidia-smi says: {(text.splitlines() or ['nothing'])[0]}")
    if "<!ENTITY" in text:
        raise Unreadable("nvidia-smi -q -x: XML that defines entities, which NVIDIA's does not")
    try:
        root = ElementTree.fromstring(text[max(text.find("<?xml"), 0) :])
    except ElementTree.ParseError as error:
        raise Unreadable(f"nvidia-smi -q -x: XML that is cut short or damaged ({error})") from None
    found = tuple(_health(gpu) for gpu in root.findall("gpu"))
    if not found:
        raise ValueError("no GPU in the XML")
    return found


gpus = Fact("health.gpus", command("nvidia-smi", "-q", "-x", timeout_s=60, reads=True), _gpus)
"""Every GPU that the driver has; Unavailable while one is lost, for nvidia-smi then tells nothing of the others."""


@dataclass(frozen=True)
class NvLinks:
    """The NVLinks of one GPU, by its index: up or not, each; () where it has none, None where it does not tell (MIG)."""

    index: int
    up: tuple[bool, ...] | None


def _nvlinks(result: Result) -> tuple[NvLinks, ...]:
    found: list[tuple[int, list[bool] | None]] = []
    for line in answered(result).splitlines():
        head, link = re.match(r"GPU (\d+): ", line), re.match(r"\s+Link \d+: (<inactive>|[\d.]+ GB/s)", line)
        if head:
            found.append((int(head[1]), []))
        elif link and found and found[-1][1] is not None:
            found[-1][1].append(link[1] != "<inactive>")
        elif "not supported for Devices in MIG mode" in line and found:
            found[-1] = (found[-1][0], None)
        elif line.strip() and not _NO_LINKS.search(line):
            raise ValueError(f"nvidia-smi nvlink -s: {line.strip()[:80]!r}")
    return tuple(NvLinks(index, None if up is None else tuple(up)) for index, up in found)


_NO_LINKS = re.compile(
    r"does not have or support Nvlink|all links are in ?active|No NVLink|not supported", re.IGNORECASE
)

nvlinks = Fact("health.nvlinks", command("nvidia-smi", "nvlink", "-s", timeout_s=60, reads=True), _nvlinks)


@dataclass(frozen=True)
class Busy:
    """A kernel thread of the driver, and how much of a CPU it used for half a second."""

    pid: int
    name: str
    percent: int


_BUSY = """
threads() {
  for file in /proc/[0-9]*/stat; do
    read -r line 2>/dev/null <"$file" || continue
    case $line in *"(nv_queue"*|*"(irq/"*-nvidia*|*"(irq/"*-s-nvidia*) ;; *) continue;; esac
    name=${line#*\\(}; name=${name%\\)*}; set -- ${line##*\\) }
    echo "${line%% *} $((${12} + ${13})) $name"
  done
}
first=$(threads); [ -n "$first" ] || exit 0
sleep 0.5; echo "$(getconf CLK_TCK)"; echo "$first"; echo --; threads
"""


def _busy(result: Result) -> tuple[Busy, ...]:
    if not result.stdout.strip():
        return ()
    head, _, rest = result.text.partition("\n")
    first, _, second = rest.partition("--\n")
    before = {pid: ticks for pid, ticks, _ in _threads(first)}
    spent = ((pid, name, ticks - before[pid]) for pid, ticks, name in _threads(second) if pid in before)
    return tuple(Busy(pid, name, round(200 * ticks / int(head))) for pid, name, ticks in spent)


def _threads(text: str) -> Iterator[tuple[int, int, str]]:
    for line in text.splitlines():
        pid, ticks, name = line.split(" ", 2)
        yield int(pid), int(ticks), name


busy = Fact("health.busy", script(_BUSY), _busy)
"""The driver's kernel threads (nv_queue, irq/N-nvidia) and what they use; () where there are none."""
