"""Memory modules, from a firmware table as the lab writes it and from others."""

from __future__ import annotations

import base64
import gzip
import struct
import uuid

import pytest

from lab.hardware import dmi
from rigwright.core.command import Result
from rigwright.facts import Unreadable, memory, parsed

NAMES = {"sys_vendor": "Vendor", "product_name": "Server", "board_name": "Board", "bios_version": "1"}


def answer(table: bytes) -> Result:
    return Result(0, base64.b64encode(gzip.compress(table)))


def device(size: int, rated: int, speed: int, slot: bytes = b"DIMM_A1", extended: int = 0, kind: int = 0x1A) -> bytes:
    """Returns the structure of a memory device (SMBIOS 3.2)."""
    body = struct.pack("<HHHHHBBBBBHH", 16, 0xFFFE, 72, 64, size, 9, 0, 1, 0, kind, 0x2080, rated)
    body += struct.pack("<BBBBBIH", 0, 0, 0, 0, 2, extended, speed)
    return struct.pack("<BBH", 17, 4 + len(body), 40) + body + slot + b"\0\0"


END = b"\x7f\x04\x00\x00\0\0"


def test_the_table_of_a_simulated_machine() -> None:
    table = dmi._tables(NAMES, {"gib": 128, "dimms": 8}, 0, "serial", uuid.UUID(int=1))
    found = parsed(memory.modules, answer(table))
    assert isinstance(found, tuple)
    assert [module.slot for module in found][:2] == ["DIMM_A0", "DIMM_A1"]
    assert {(module.size_mib, module.rated_mt_s, module.speed_mt_s) for module in found} == {(16384, 2666, 2666)}
    assert len(found) == 8


@pytest.mark.parametrize(
    ("table", "module"),
    [
        (device(16384, 3200, 2933), memory.Module("DIMM_A1", 16384, 3200, 2933)),
        (device(0x7FFF, 3200, 3200, extended=65536), memory.Module("DIMM_A1", 65536, 3200, 3200)),
        (device(0x8000 | 2048, 0, 0), memory.Module("DIMM_A1", 2, None, None)),
        (device(512, 0xFFFF, 2400), memory.Module("DIMM_A1", 512, None, 2400)),
        (device(512, 2400, 2400, b"\x1b[31m\x07"), memory.Module("?[31m?", 512, 2400, 2400)),
    ],
)
def test_a_module(table: bytes, module: memory.Module) -> None:
    found = parsed(memory.modules, answer(table + END))
    assert isinstance(found, tuple), found
    assert (found[0].size_mib, found[0].rated_mt_s, found[0].speed_mt_s) == (
        module.size_mib,
        module.rated_mt_s,
        module.speed_mt_s,
    )
    assert "\x1b" not in found[0].slot


@pytest.mark.parametrize(
    ("table", "number"),
    [
        (device(0, 0, 0) + device(0xFFFF, 0, 0) + END, 0),
        (device(16, 0, 0, kind=9) + device(512, 2400, 2400) + END, 1),
        (END, 0),
        (b"", 0),
        (b"\x11\x00\x00\x00" * 20, 0),
        (device(512, 2400, 2400)[:-2], 0),
        (struct.pack("<BBH", 17, 6, 1) + b"ab" + b"\0\0" + device(512, 1, 1), 1),
    ],
    ids=["empty slots", "the firmware's flash", "only the end", "nothing", "no length", "no end", "a short structure"],
)
def test_tables_that_end_early(table: bytes, number: int) -> None:
    found = parsed(memory.modules, answer(table))
    assert isinstance(found, tuple), found
    assert len(found) == number


def test_a_table_that_came_damaged() -> None:
    assert isinstance(parsed(memory.modules, Result(0, b"H4sIAAAAAAAA")), (Unreadable, tuple))
    assert isinstance(parsed(memory.modules, Result(0, b"no gzip at all!!")), Unreadable)
    assert parsed(memory.modules, Result(0, b"")) == ()


def test_a_table_that_unpacks_without_an_end_is_cut() -> None:
    assert parsed(memory.modules, answer(b"\x11\x04\x00\x00ab\0\0" * (64 << 20 >> 3))) == ()
