"""The driver's kernel threads."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from rigwright.core import host_text
from rigwright.core.command import Result, script
from rigwright.facts import Fact


class Busy(Struct, frozen=True):
    """A kernel thread of the driver, and its share of a CPU during half a second."""

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
    return tuple(Busy(pid, name, round(200 * ticks / host_text.integer(head))) for pid, name, ticks in spent)


def _threads(text: str) -> Iterator[tuple[int, int, str]]:
    for line in host_text.lines(text):
        pid, ticks, name = line.split(" ", 2)
        yield host_text.integer(pid), host_text.integer(ticks), name


busy = Fact("threads.busy", script(_BUSY, reads=True), _busy)
"""The driver's kernel threads (nv_queue, irq/N-nvidia) and their CPU use; () without any."""
