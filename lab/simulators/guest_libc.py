"""The C library of hosts, which load libraries that this machine's compiler made for a newer one."""

from __future__ import annotations

import re
from pathlib import Path

from rigwright.core.errors import HostError

HEADER = Path(__file__).with_suffix(".h")
INCLUDED = ("-include", str(HEADER))
"""The compiler's options for a library that hosts load."""

NEWEST = (2, 36)
"""Debian 12's glibc, which every light host has."""


def needs(library: Path) -> tuple[int, int]:
    """Returns the newest version of glibc whose functions the library needs."""
    return max((int(major), int(minor)) for major, minor in re.findall(rb"GLIBC_(\d+)\.(\d+)", library.read_bytes()))


def check(library: Path, name: str) -> None:
    """Raises HostError for a library that hosts cannot load: with it nvidia-smi would only say that it is not there."""
    found = needs(library)
    if found > NEWEST:
        raise HostError(
            name,
            f"compiled here, it needs glibc {found[0]}.{found[1]}",
            f"at most {NEWEST[0]}.{NEWEST[1]}, which simulated hosts have",
            f"see which functions: objdump -T {library} | grep GLIBC_{found[0]}.{found[1]}",
        )
