"""Raises fs.inotify.max_user_instances while a lab is up (each systemd needs several), and restores it afterwards."""

from __future__ import annotations

from pathlib import Path

from lab.host.cgroups import sibling_labs

WANTED = 8192
LIMIT = Path("/proc/sys/fs/inotify/max_user_instances")
BEFORE = Path("/run/rigwright-lab-inotify")
"""The file with the original limit, for all labs of the machine: `VALUE BOOT_ID`.

A value from an earlier boot is ignored.
"""


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def raised() -> None:
    """Raises the limit to at least WANTED, and records the original limit once."""
    now = int(LIMIT.read_text())
    if now < WANTED:
        if not BEFORE.exists() or BEFORE.read_text().split()[1:] != [_boot_id()]:
            BEFORE.write_text(f"{now} {_boot_id()}\n")
        LIMIT.write_text(str(WANTED))


def restored() -> None:
    """Restores the limit from before the first lab, unless another checkout's lab is still up."""
    if BEFORE.exists() and not sibling_labs():
        value, boot = BEFORE.read_text().split()
        if boot == _boot_id():
            LIMIT.write_text(value)
        BEFORE.unlink()
