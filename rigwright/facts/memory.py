"""Huge pages of the kernel."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from rigwright.core import host_text
from rigwright.core.command import Result, script
from rigwright.facts import Fact

Transparent = Literal["always", "madvise", "never"]


@dataclass(frozen=True)
class HugePages:
    """`total` reserved pages of `size_kib`; `memory_kib`: all memory. `transparent`: when the kernel makes huge pages by itself, None if it
    cannot."""

    memory_kib: int
    size_kib: int
    total: int
    transparent: Transparent | None


_SCRIPT = """
sed -n -e 's/^MemTotal: *\\([0-9]*\\) kB/memory \\1/p' -e 's/^Hugepagesize: *\\([0-9]*\\) kB/size \\1/p' \\
  -e 's/^HugePages_Total: *\\([0-9]*\\)/total \\1/p' /proc/meminfo
sed -n 's/.*\\[\\([a-z]*\\)\\].*/transparent \\1/p' /sys/kernel/mm/transparent_hugepage/enabled 2>/dev/null; :
"""


def _pages(result: Result) -> HugePages:
    words = dict(line.split(" ", 1) for line in result.lines)
    mode = words.get("transparent")
    if mode is not None and not re.fullmatch("always|madvise|never", mode):
        raise ValueError(f"transparent huge pages '{mode[:20]}'")
    size, total = words.get("size", "0"), words.get("total", "0")
    return HugePages(host_text.integer(words["memory"]), host_text.integer(size), host_text.integer(total), mode)  # type: ignore[arg-type]


huge_pages = Fact("memory.huge_pages", script(_SCRIPT, reads=True), _pages)
"""The huge pages that are reserved, and the mode of transparent ones."""
