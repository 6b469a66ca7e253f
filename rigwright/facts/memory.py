"""Memory modules as the firmware describes them, and huge pages of the kernel."""

from __future__ import annotations

import base64
import re
import struct
import zlib
from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from rigwright.core import host_text, lazy_re
from rigwright.core.command import Result, script
from rigwright.core.control_characters import one_line
from rigwright.facts import Fact, Unreadable
from rigwright.facts.installed import DEVICES

Transparent = Literal["always", "madvise", "never"]


class HugePages(Struct, frozen=True):
    """`total` reserved pages of `size_kib`; `memory_kib`: all memory. `transparent`: the mode of transparent huge
    pages, None if the kernel has none."""

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


class Module(Struct, frozen=True):
    """A slot for a memory module. `size_mib`: 0 for an empty slot. `rated_mt_s`: the highest speed of the module,
    `speed_mt_s` the configured one, megatransfers per second; None if unknown. `channel`: from the name of the slot
    (CPU0 A), because SMBIOS has no field for it; "" if unknown."""

    slot: str
    size_mib: int
    rated_mt_s: int | None
    speed_mt_s: int | None
    channel: str = ""


TABLE = "/sys/firmware/dmi/tables/DMI"
TABLE_BYTES = 256 << 10
"""The most bytes of the table that are read; tables of servers have 10 to 30 KiB."""
_READ = f"""
if [ ! -e {TABLE} ]; then echo absent
elif [ ! -r {TABLE} ]; then echo denied
else head -c {TABLE_BYTES + 1} {TABLE} | gzip -c1 | base64 -w0; fi
"""
_DEVICE, _END = 17, 127
"""The types of a memory device and of the end of the table (SMBIOS 3.7, 7.18 and 7.45)."""
_READ_ONLY = (0x08, 0x09, 0x0A, 0x0B, 0x0C)
"""ROM, flash, EEPROM, FEPROM, EPROM: the firmware's own (7.18.2)."""


def _modules(result: Result) -> tuple[Module, ...] | None:
    text = result.text.strip()
    if text == "absent":
        return None
    if text == "denied":
        raise _unreadable("not even root may read it")
    try:
        packed = zlib.decompressobj(31)
        table = packed.decompress(base64.b64decode(text, validate=True), TABLE_BYTES + 1)
    except (zlib.error, ValueError) as error:
        raise _unreadable(f"its copy came damaged ({error})") from None
    if len(table) > TABLE_BYTES:
        raise _unreadable(f"it has more than {TABLE_BYTES >> 10} KiB")
    if not packed.eof:
        raise _unreadable(f"its copy breaks off after {len(table)} bytes")
    if not table:
        raise _unreadable("it is empty, or reading it failed")
    modules = (_module(body, texts) for kind, body, texts in _structures(table) if kind == _DEVICE)
    return tuple(module for module in modules if module is not None)


def _unreadable(why: str) -> Unreadable:
    reason = f"memory.modules: {TABLE}: {why}; expected a whole table of the firmware"
    return Unreadable(reason, "sudo dmidecode -t memory, which shows what can be read")


def _structures(table: bytes) -> Iterator[tuple[int, bytes, list[str]]]:
    """The type, the formatted part and the texts of each structure. Raises Unreadable for a damaged one."""
    at = 0
    while at + 4 <= len(table) and table[at:].strip(b"\0"):
        kind, length = table[at], table[at + 1]
        end = table.find(b"\0\0", at + length)
        if kind == _END:
            return
        if length < 4 or end < 0:
            raise _unreadable(f"it breaks off at byte {at} of {len(table)}, or is damaged there")
        texts = [one_line(text.decode("ascii", "replace")) for text in table[at + length : end].split(b"\0")]
        yield kind, table[at : at + length], texts
        at = end + 2


def _module(body: bytes, texts: list[str]) -> Module | None:
    """A module or an empty slot; None for a device that is not main memory."""
    size = _field(body, 0x0C, "<H")
    if size in (None, 0xFFFF) or _field(body, 0x12, "<B") in _READ_ONLY:
        return None
    mib = _field(body, 0x1C, "<I") if size == 0x7FFF else (size & 0x7FFF) >> 10 if size & 0x8000 else size
    numbers = [_field(body, at, "<B") or 0 for at in (0x10, 0x11)]
    slot, bank = (texts[number - 1][:40].strip() if 0 < number <= len(texts) else "" for number in numbers)
    return Module(slot or "?", mib or 0, _speed(body, 0x15, 0x54), _speed(body, 0x20, 0x58), _channel(slot, bank))


_CHANNEL = lazy_re.compile(
    r"channel[ _-]?([a-p]|[0-9]{1,2})(?![a-z0-9])|dimm[ _-]?(?:p[0-9][ _-])?([a-p])[ _-]?[0-9]$", re.I
)
"""ChannelA-DIMM0, P0 CHANNEL A, DIMM_A1, P1-DIMMA1, DIMM_P0_A0. A letter and a number alone are no channel: Dell's A1
is processor A."""
_PROCESSOR = lazy_re.compile(r"(?:cpu|proc|processor|socket|node|p)[ _-]?([0-9])(?![0-9])", re.I)
_CONTROLLER = lazy_re.compile(r"controller[ _-]?([0-9])", re.I)


def _channel(slot: str, bank: str) -> str:
    """The processor, controller and channel in the names of a slot and its bank; "" without a channel."""
    channel, controller, processor = (
        pattern.search(slot) or pattern.search(bank) for pattern in (_CHANNEL, _CONTROLLER, _PROCESSOR)
    )
    if not channel:
        return ""
    words = [f"CPU{processor[1]}"] if processor else []
    words += [f"controller {controller[1]}"] if controller else []
    return " ".join([*words, (channel[1] or channel[2]).upper()])


def _speed(body: bytes, at: int, extended: int) -> int | None:
    speed = _field(body, at, "<H")
    speed = _field(body, extended, "<I") if speed == 0xFFFF else speed
    return speed if speed and speed < 100_000 else None


def _field(body: bytes, at: int, form: str) -> int | None:
    """The number at an offset; None if the structure is of an older version and ends before it."""
    return int(struct.unpack_from(form, body, at)[0]) if at + struct.calcsize(form) <= len(body) else None


modules = Fact("memory.modules", script(_READ, reads=True, cache_key=DEVICES), _modules)
"""The slots for memory modules, also empty ones; () if the firmware describes none; None if the kernel shows no table
of the firmware, as in containers. Unreadable if the table is damaged or cannot be read."""
