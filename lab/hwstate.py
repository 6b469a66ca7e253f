"""Owns the state of a host's simulated hardware as the machine reads and changes it: lines of key=value in the host's hw.

    volatile/state      gone with the power; what the driver library and the faults of the moment keep
    nvram/nvram         what the hardware itself remembers: ECC counters, retired pages, a bad riser
    board.conf          what is plugged in; never written here

A key of nvram that begins with `next.` counts from the next boot on, one with `once.` in the next boot alone. Writers take
the lock that the driver library takes (lab/nvml/conf.c); readers see whole files.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path

VOLATILE, NVRAM, BOARD = "volatile/state", "nvram/nvram", "board.conf"
NEXT, ONCE = "next.", "once."


def parse(text: str) -> dict[str, str]:
    """The values of key=value lines; of equal keys the last."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))


def read(hw: Path, store: str) -> dict[str, str]:
    """One of the three files; nothing when it is not there."""
    path = hw / store
    return parse(path.read_text()) if path.is_file() else {}


def values(hw: Path) -> dict[str, str]:
    """All that holds now: the board, over it what the hardware remembers, over it what it has since power on."""
    return {**read(hw, BOARD), **read(hw, NVRAM), **read(hw, VOLATILE)}


def edit(hw: Path, *, volatile: Mapping[str, object] | None = None, nvram: Mapping[str, object] | None = None) -> None:
    """These keys have these values; an empty value removes the key."""
    for store in (VOLATILE, NVRAM):
        (hw / store).parent.mkdir(parents=True, exist_ok=True)
    with (hw / "volatile/state.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for store, changes in ((VOLATILE, volatile), (NVRAM, nvram)):
            if changes:
                _put(hw / store, {**read(hw, store), **{key: str(value) for key, value in changes.items()}})


def switch_on(hw: Path) -> None:
    """The power comes: nvram has what waited for it, volatile nothing but what is for this boot alone."""
    kept = read(hw, NVRAM)
    now = {key: value for key, value in kept.items() if not key.startswith((NEXT, ONCE))}
    now |= {key.removeprefix(NEXT): value for key, value in kept.items() if key.startswith(NEXT)}
    once = {key.removeprefix(ONCE): value for key, value in kept.items() if key.startswith(ONCE)}
    for store, held in ((NVRAM, now), (VOLATILE, once)):
        (hw / store).parent.mkdir(parents=True, exist_ok=True)
        _put(hw / store, held)


def _put(path: Path, held: Mapping[str, str]) -> None:
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.write_text("".join(f"{key}={value}\n" for key, value in held.items() if value))
    fresh.chmod(0o644)
    fresh.replace(path)
