"""Reads GRUB's files on a host's disk between power on and kernel start, and writes grubenv."""

from __future__ import annotations

import os
from pathlib import Path

from lab.host.boot import BootEntry, choose, write_grubenv
from lab.host.grub import PREFIX
from lab.host.grub_parser import GrubError

MAX_LINKS = 40
BLOCK_BYTES = 1024
"""The size of an environment block; GRUB writes to no other file."""
_MAX_CONFIG = 4 << 20


def firmware(root: Path, writable: bool = True) -> BootEntry:
    """Returns the entry that the host's own GRUB configuration boots now, and changes grubenv as GRUB does, where it is
    `writable`.

    Raises GrubError when GRUB would not boot.
    """
    environment = inside(root, f"{PREFIX}/grubenv")
    writable = writable and environment.is_file() and environment.stat().st_size == BLOCK_BYTES
    entry, saved = choose(lambda path: _read(root, path), writable)
    block = write_grubenv(saved)
    if writable and block != environment.read_text(errors="replace"):
        environment.write_text(block)
    return entry


def inside(root: Path, path: str) -> Path:
    """Returns a path of the host as a path of the machine.

    Links are resolved as in the host and cannot leave its disk.
    """
    left, done, links = path.split("/")[::-1], list[str](), 0
    while left:
        part = left.pop()
        here = root.joinpath(*done, part)
        if part == "..":
            done = done[:-1]
        elif part not in ("", ".") and here.is_symlink():
            links += 1
            if links > MAX_LINKS:
                raise GrubError("error: too deep nesting of symlinks.")
            target = os.readlink(here)
            done = [] if target.startswith("/") else done
            left += target.split("/")[::-1]
        elif part not in ("", "."):
            done.append(part)
    return root.joinpath(*done)


def _read(root: Path, path: str) -> str | None:
    """Returns the text of a GRUB file, "..." for any other file, and None for a missing file."""
    found = inside(root, path)
    if not found.is_file():
        return None
    return (
        found.read_text(errors="replace") if path.startswith(PREFIX) and found.stat().st_size < _MAX_CONFIG else "..."
    )
