"""Memory modules, from a firmware table as the lab writes it and from others."""

from __future__ import annotations

import base64
import gzip
import struct
import uuid

import pytest

from lab.hardware import dmi, rigfile
from rigwright.core.command import Result
from rigwright.core.errors import InputError
from rigwright.facts import Unreadable, memory, parsed

NAMES = {"sys_vendor": "Vendor", "product_name": "Server", "board_name": "Board", "bios_version": "1"}
END = b"\x7f\x04\x00\x00\0\0"


def answer(table: bytes) -> Result:
    return Result(0, base64.b64encode(gzip.compress(table)))


def modules(table: bytes) -> tuple[memory.Module, ...]:
    value = parsed(memory.modules, answer(table))
    assert isinstance(value, tuple), value
    return value


def device(
    size: int, rated: int, speed: int, slot: bytes = b"DIMM_A1", bank: bytes = b"", extended: int = 0, kind: int = 0x1A
) -> bytes:
    """The structure of a memory device (SMBIOS 3.2)."""
    body = struct.pack("<HHHHHBBBBBHH", 16, 0xFFFE, 72, 64, size, 9, 0, 1, 2 if bank else 0, kind, 0x2080, rated)
    body += struct.pack("<BBBBBIH", 0, 0, 0, 0, 2, extended, speed)
    texts = slot + b"\0" + (bank + b"\0" if bank else b"") + b"\0"
    return struct.pack("<BBH", 17, 4 + len(body), 40) + body + texts


def of_a_rig(**given: int) -> tuple[memory.Module, ...]:
    """The slots of a simulated machine with this memory in its rig file."""
    return modules(dmi._tables(NAMES, rigfile.memory(given, "rig"), 0, "serial", uuid.UUID(int=1)))


def test_simulated_machines() -> None:
    full = of_a_rig(gib=128, dimms=8)
    assert [module.slot for module in full][:2] == ["DIMM_A0", "DIMM_A1"]
    assert {(module.size_mib, module.rated_mt_s, module.speed_mt_s) for module in full} == {(16384, 2666, 2666)}
    assert [module.channel for module in full] == [f"CPU0 {name}" for name in "AABBCCDD"]
    part = of_a_rig(gib=96, dimms=6, slots=8, rated_mt_s=4800, speed_mt_s=4400)
    assert [module.size_mib for module in part] == [16384, 16384, 16384, 16384, 16384, 0, 16384, 0]
    speeds = {(module.size_mib > 0, module.rated_mt_s, module.speed_mt_s) for module in part}
    assert speeds == {(True, 4800, 4400), (False, None, None)}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"gib": 96, "dimms": 6, "slots": 4}, "6 modules in 4 slots"),
        ({"gib": 96, "dimms": 6, "rated_mt_s": 3200, "speed_mt_s": 3600}, "speed_mt_s 3600"),
        ({"gib": 96, "dimms": 6, "speed": 3600}, "unknown key 'speed'"),
    ],
)
def test_a_rig_file_that_no_machine_can_be(given: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        rigfile.memory(given, "rig")


@pytest.mark.parametrize(
    ("slot", "bank", "channel"),
    [
        ("DIMM_A1", "", "A"),
        ("P1-DIMMB2", "P1_Node0_Channel1_Dimm1", "CPU1 B"),
        ("DIMM_P0_G0", "BANK 12", "CPU0 G"),
        ("DIMM 0", "P0 CHANNEL C", "CPU0 C"),
        ("Controller1-ChannelA-DIMM0", "BANK 2", "controller 1 A"),
        ("CPU2_DIMM_H1", "", "CPU2 H"),
        ("A1", "", ""),
        ("PROC 1 DIMM 8", "", ""),
        ("DIMM 0", "Bank 0", ""),
    ],
)
def test_the_channel_that_a_slot_is_named_for(slot: str, bank: str, channel: str) -> None:
    (module,) = modules(device(512, 2400, 2400, slot.encode(), bank.encode()) + END)
    assert module.channel == channel


@pytest.mark.parametrize(
    ("table", "values"),
    [
        (device(16384, 3200, 2933), ("DIMM_A1", 16384, 3200, 2933)),
        (device(0x7FFF, 3200, 3200, extended=65536), ("DIMM_A1", 65536, 3200, 3200)),
        (device(0x8000 | 2048, 0, 0), ("DIMM_A1", 2, None, None)),
        (device(512, 0xFFFF, 2400), ("DIMM_A1", 512, None, 2400)),
        (device(512, 2400, 2400, b"\x1b[31m\x07"), ("\ufffd[31m\ufffd", 512, 2400, 2400)),
        (device(0, 0, 0), ("DIMM_A1", 0, None, None)),
    ],
)
def test_a_module(table: bytes, values: tuple[object, ...]) -> None:
    (module,) = modules(table + END)
    assert (module.slot, module.size_mib, module.rated_mt_s, module.speed_mt_s) == values


CUT = device(512, 2400, 2400)


@pytest.mark.parametrize(
    ("table", "sizes"),
    [
        (device(0, 0, 0) + device(0xFFFF, 0, 0) + END, [0]),
        (device(16, 0, 0, kind=9) + CUT + END, [512]),
        (END, []),
        (CUT, [512]),
        (CUT + b"\0" * 40, [512]),
        (CUT + END + b"what is behind the end", [512]),
        (struct.pack("<BBH", 17, 6, 1) + b"ab" + b"\0\0" + device(512, 1, 1), [512]),
    ],
    ids=[
        "empty and unknown", "the firmware's flash", "only the end", "no end", "zeros", "more", "a short structure"
    ],
)  # fmt: skip
def test_tables_that_are_whole(table: bytes, sizes: list[int]) -> None:
    assert [module.size_mib for module in modules(table)] == sizes


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (Result(0, b"denied\n"), "not even root may read it"),
        (Result(0, b""), "its copy breaks off after 0 bytes"),
        (Result(1, b"", b"gzip: not found"), "its copy breaks off after 0 bytes"),
        (Result(0, b"no gzip at all!!"), "its copy came damaged"),
        (Result(0, b"\xff\xfe\x00"), "its copy came damaged"),
        (Result(0, answer(CUT + END).stdout[:48]), "its copy breaks off after"),
        (answer(b""), "it is empty, or reading it failed"),
        (answer(b"\x11\x00\x00\x00" * 20), "it breaks off at byte 0 of 80, or is damaged there"),
        (answer(CUT + CUT[:-2]), f"it breaks off at byte {len(CUT)} of {2 * len(CUT) - 2}"),
        (answer(CUT + CUT[:10]), f"it breaks off at byte {len(CUT)} of {len(CUT) + 10}"),
        (answer(bytes(range(1, 256)) * 9), "it breaks off at byte 0"),
        (answer(b"\x11\x04\x00\x00ab\0\0" * (64 << 20 >> 3)), "it has more than 256 KiB"),
    ],
    ids=[
        "not readable", "nothing", "no gzip", "no gzip data", "no base64", "a copy cut off", "an empty table",
        "no length", "no end of texts", "cut in a structure", "noise", "without an end",
    ],
)  # fmt: skip
def test_a_table_that_cannot_be_read_does_not_read_as_none(said: Result, message: str) -> None:
    value = parsed(memory.modules, said)
    assert isinstance(value, Unreadable), value
    assert str(value).startswith("memory.modules: /sys/firmware/dmi/tables/DMI: ")
    assert message in str(value)
    assert value.fix


def test_a_kernel_without_a_table() -> None:
    assert parsed(memory.modules, Result(0, b"absent\n")) is None
