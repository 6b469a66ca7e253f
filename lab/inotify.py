"""Owns fs.inotify.max_user_instances: raised while a lab is up (each systemd takes several), as it was afterwards."""

from __future__ import annotations

from pathlib import Path

from lab.cgroups import sibling_labs

WANTED = 8192
LIMIT = Path("/proc/sys/fs/inotify/max_user_instances")
BEFORE = Path("/run/rigwright-lab-inotify")
"""One for all labs of the machine: `VALUE BOOT_ID`; a value of an earlier boot means nothing."""


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def raised() -> None:
    """The limit is at least WANTED; what it was is remembered once."""
    now = int(LIMIT.read_text())
    if now < WANTED:
        if not BEFORE.exists() or BEFORE.read_text().split()[1:] != [_boot_id()]:
            BEFORE.write_text(f"{now} {_boot_id()}\n")
        LIMIT.write_text(str(WANTED))


def restored() -> None:
    """The limit is what it was before the first lab, unless another checkout's lab is still up."""
    if BEFORE.exists() and not sibling_labs():
        value, boot = BEFORE.read_text().split()
        if boot == _boot_id():
            LIMIT.write_text(value)
        BEFORE.unlink()
