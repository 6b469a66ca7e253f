"""Chooses the boot entry as firmware and GRUB do: reads grub.cfg and grubenv, returns kernel, initrd and command line.

It runs no program.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from lab.host.grub import PREFIX, Grub, Item, Read
from lab.host.grub_parser import GrubError, parse


@dataclass(frozen=True)
class BootEntry:
    """The entry that GRUB boots: its title, kernel and initrd as paths in the host (None: no initrd), and
    /proc/cmdline."""

    title: str
    kernel: str
    initrd: str | None
    command_line: str


def read_grubenv(text: str) -> dict[str, str]:
    """Returns the variables of an environment block."""
    lines = (line.partition("=") for line in text.splitlines() if line and not line.startswith("#"))
    return {name: re.sub(r"\\(.)", r"\1", value) for name, _, value in lines}


def write_grubenv(variables: Mapping[str, str]) -> str:
    """Returns an environment block as GRUB writes it: 1024 bytes, padded with `#`."""
    escaped = (f"{name}={value}".replace("\\", "\\\\") + "\n" for name, value in variables.items())
    return ("# GRUB Environment Block\n" + "".join(escaped)).ljust(1024, "#")


def choose(read: Read, writable: bool = True) -> tuple[BootEntry, dict[str, str]]:
    """Returns the entry that GRUB boots from these files, and grubenv's variables after it: a boot removes next_entry.

    GRUB cannot write grubenv unless it is `writable`. An entry that cannot be started is followed by the one that the
    variable `fallback` names. Raises GrubError with GRUB's own message: no grub.cfg, a syntax error, an entry without
    kernel, a missing file.
    """
    config = read(f"{PREFIX}/grub.cfg")
    if config is None:
        raise GrubError(f"error: file `{PREFIX}/grub.cfg' not found.")
    grub = Grub(read, read_grubenv(read(f"{PREFIX}/grubenv") or ""), writable)
    grub.execute(parse(config))
    menu, fallback = grub.menu, grub.variables.get("fallback", "")
    try:
        return _start(grub, grub.variables.get("default", "")), grub.saved
    except GrubError:
        if not fallback or not menu:
            raise
        grub.menu, grub.kernel, grub.initrds = menu, None, ()
        return _start(grub, fallback), grub.saved


def _start(grub: Grub, wanted: str) -> BootEntry:
    """Returns the entry with this position, title or id (LEVEL>LEVEL in a submenu). Raises GrubError when it cannot be
    started."""
    chosen = list[str]()
    while True:
        if not grub.menu:
            raise GrubError("error: the menu has no entry to boot.")
        first, _, wanted = wanted.partition(">")
        item = _find(grub.menu, first)
        title = item.names[0]
        chosen.append(item.names[-1])
        grub.variables["chosen"] = ">".join(chosen)
        grub.menu = []
        grub.execute(item.body)
        if not item.submenu:
            break
    if grub.kernel is None:
        raise GrubError(f"error: entry `{title}': you need to load the kernel first.")
    for path in (grub.kernel, *grub.initrds):
        if grub.read(path) is None:
            raise GrubError(f"error: file `{path}' not found.")
    return BootEntry(title, grub.kernel, grub.initrds[-1] if grub.initrds else None, grub.command_line)


def _find(menu: list[Item], wanted: str) -> Item:
    """Returns the entry with this position, title or id, or the first entry when none matches, as GRUB does."""
    if wanted.isdigit():
        return menu[int(wanted)] if int(wanted) < len(menu) else menu[0]
    return next((item for item in menu if wanted and wanted in item.names), menu[0])
