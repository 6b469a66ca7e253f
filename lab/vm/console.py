"""Reads the serial console of a virtual machine while it boots."""

from __future__ import annotations

import re
from pathlib import Path

from rigwright.core.control_characters import one_line

PANIC = re.compile(rb"Kernel panic - not syncing: [^\r\n]{0,200}")
MOST_BYTES = 1 << 20
"""Of a console, only the last MiB is searched."""


class Console:
    """The part of a console that is written after this object is made."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.begin = path.stat().st_size if path.exists() else 0

    def text(self) -> bytes:
        """Returns what was written, at most its last MiB."""
        if not self.path.exists():
            return b""
        with self.path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(self.begin, size - MOST_BYTES))
            return file.read(MOST_BYTES)

    def panic(self) -> str:
        """Returns the kernel's line about a panic; "" without one."""
        found = PANIC.search(self.text())
        return one_line(found[0].decode(errors="replace")) if found else ""

    def last(self, lines: int = 3) -> str:
        """Returns the last lines that are not empty, on one line."""
        text = self.text().decode(errors="replace").replace("\r", "")
        said = [one_line(line).strip() for line in text.splitlines() if line.strip()]
        return " / ".join(said[-lines:]) or "nothing on the console"


def boots(path: Path) -> int:
    """Returns how often GRUB has loaded a kernel, by the console of all boots."""
    return path.read_bytes().count(b"Loading Linux") if path.exists() else 0
