"""NVLinks, and what the driver's own threads do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from rigwright.facts import Fact
from rigwright.facts.gpu import answered
from rigwright.shell import Result, command, script


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
