"""Reads and writes the state of a host's simulated hardware: lines of key=value in the host's hw folder.

    volatile/state      lost at power off; values of the driver library and of faults that last until then
    nvram/nvram         survives power off: ECC counters, retired pages, a bad riser
    board.conf          the installed hardware; this module only reads it

A key in nvram with the prefix `next.` takes effect at the next boot and stays; `once.` applies to the next boot only.
Writers hold the same lock as the driver library (lab/simulators/nvml/conf.c) and replace files in one step.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path

VOLATILE, NVRAM, BOARD = "volatile/state", "nvram/nvram", "board.conf"
NEXT, ONCE = "next.", "once."


def parse(text: str) -> dict[str, str]:
    """Parses key=value lines. The last value of a repeated key counts."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))


def read(hw: Path, store: str) -> dict[str, str]:
    """Returns the values in one of the three files; empty if the file does not exist."""
    path = hw / store
    return parse(path.read_text()) if path.is_file() else {}


def values(hw: Path) -> dict[str, str]:
    """Returns the current values: board.conf, overridden by nvram, overridden by volatile."""
    return {**read(hw, BOARD), **read(hw, NVRAM), **read(hw, VOLATILE)}


def edit(hw: Path, *, volatile: Mapping[str, object] | None = None, nvram: Mapping[str, object] | None = None) -> None:
    """Sets keys in volatile and nvram; an empty value removes the key."""
    for store in (VOLATILE, NVRAM):
        (hw / store).parent.mkdir(parents=True, exist_ok=True)
    with (hw / "volatile/state.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for store, changes in ((VOLATILE, volatile), (NVRAM, nvram)):
            if changes:
                _put(hw / store, {**read(hw, store), **{key: str(value) for key, value in changes.items()}})


def switch_on(hw: Path) -> None:
    """Switches the power on: `next.` keys take effect in nvram; volatile keeps only the `once.` values of this boot."""
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
