"""Memory modules as the firmware describes them, and huge pages of the kernel."""

from __future__ import annotations

import base64
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from rigwright.core import host_text
from rigwright.core.command import Result, script
from rigwright.core.control_characters import one_line
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


@dataclass(frozen=True)
class Module:
    """A memory module: `rated_mt_s` is the highest speed that it can have, `speed_mt_s` the one that the firmware set, both in megatransfers a
    second; None where the firmware does not say."""

    slot: str
    size_mib: int
    rated_mt_s: int | None
    speed_mt_s: int | None


TABLE_BYTES = 256 << 10
"""The most of the firmware's table that is read; tables of servers have 10 to 30 KiB."""
_TABLE = f"[ ! -r /sys/firmware/dmi/tables/DMI ] || head -c {TABLE_BYTES} /sys/firmware/dmi/tables/DMI | gzip -c1 | base64 -w0"
_DEVICE = 17
"""The type of a memory device (SMBIOS 3.7, 7.18)."""
_READ_ONLY = (0x08, 0x09, 0x0A, 0x0B, 0x0C)
"""ROM, flash, EEPROM, FEPROM, EPROM: the firmware's own (7.18.2)."""


def _modules(result: Result) -> tuple[Module, ...]:
    if not result.text.strip():
        return ()
    try:
        table = zlib.decompressobj(31).decompress(base64.b64decode(result.text), TABLE_BYTES)
    except (zlib.error, ValueError) as error:
        raise ValueError(f"a firmware table that came damaged: {error}") from None
    found = (_module(body, texts) for kind, body, texts in _structures(table) if kind == _DEVICE)
    return tuple(module for module in found if module is not None)


def _structures(table: bytes) -> Iterator[tuple[int, bytes, list[str]]]:
    """The type, the formatted part and the texts of each structure. Ends at what is no structure."""
    at = 0
    while at + 4 <= len(table):
        kind, length = table[at], table[at + 1]
        end = table.find(b"\0\0", at + length)
        if length < 4 or end < 0:
            return
        texts = [one_line(text.decode("ascii", "replace")) for text in table[at + length : end].split(b"\0")]
        yield kind, table[at : at + length], texts
        at = end + 2


def _module(body: bytes, texts: list[str]) -> Module | None:
    """A module; None for an empty slot and for one that is no memory of the system."""
    (size,) = _field(body, 0x0C, "<H")
    if size in (None, 0, 0xFFFF) or (len(body) > 0x12 and body[0x12] in _READ_ONLY):
        return None
    mib = _field(body, 0x1C, "<I")[0] or 0 if size == 0x7FFF else (size & 0x7FFF) >> 10 if size & 0x8000 else size
    number = body[0x10] if len(body) > 0x10 else 0
    slot = texts[number - 1] if 0 < number <= len(texts) else "?"
    return Module(slot[:40].strip() or "?", mib, _speed(body, 0x15, 0x54), _speed(body, 0x20, 0x58))


def _speed(body: bytes, at: int, extended: int) -> int | None:
    (speed,) = _field(body, at, "<H")
    if speed == 0xFFFF:
        (speed,) = _field(body, extended, "<I")
    return speed if speed and speed < 100_000 else None


def _field(body: bytes, at: int, form: str) -> tuple[int | None]:
    """The number at that offset; None where the structure is of an older version and ends before it."""
    return struct.unpack_from(form, body, at) if at + struct.calcsize(form) <= len(body) else (None,)


modules = Fact("memory.modules", script(_TABLE, reads=True), _modules)
"""The installed memory modules; () where the firmware describes none, as in most virtual machines."""
