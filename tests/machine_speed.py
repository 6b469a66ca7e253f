"""How much slower this machine is at this moment than the one that the limits of processor time in the tests are meant
for."""

from __future__ import annotations

import re
import time

_REFERENCE_S = 0.030
"""What `_search` takes on the machine that the limits are meant for: a virtual machine with two cores of 2022, nothing
beside."""
_NUMBER = re.compile(r"(?:0x)?[0-9a-fA-F]{4,}")
_LINE = (
    "[   12.345678] NVRM: Xid (PCI:0000:3b:00): 31, pid=77, name=python3, Ch 00000012, intr 00000000. MMU Fault: "
    "ENGINE\n"
)


def within(taken_s: float, limit_s: float) -> bool:
    """Whether processor time is below a limit, which is longer on a slower machine.

    Processor time of equal work differs by a factor of three on shared machines: another virtual machine on the same
    core, less cache, a lower clock. Work that grows with the square of its input, which the limits are there to find,
    takes a hundred times as long.
    """
    return taken_s < limit_s or taken_s < limit_s * slowness()


def slowness() -> float:
    """1.0, or more on a slower machine."""
    return max(1.0, sum(_search() for _ in range(10)) / 10 / _REFERENCE_S)


def _search() -> float:
    begin = time.thread_time()
    for _ in range(5000):
        _NUMBER.sub("#", _LINE)
    return time.thread_time() - begin
