"""Writes the firmware tables: the SMBIOS tables that dmidecode and lshw read, and /sys/class/dmi/id.

`write` fills a folder with `tables/` (for a bind mount over /sys/firmware/dmi/tables) and `id/` (over
/sys/class/dmi/id).
"""

from __future__ import annotations

import hashlib
import struct
import uuid
from pathlib import Path

END, LAST = 127, 0xFEFF
DATE = "12/12/2023"
"""The firmware date of every machine."""
PER_CHANNEL = 2
"""The slots of a memory channel (assumed; so have most boards)."""
DDR4, DDR5, DDR5_MT_S = 0x1A, 0x22, 4000
"""The types of modules (SMBIOS 3.7, 7.18.2), and the speed from which on a module is DDR5 (assumed)."""


def line(names: dict[str, str]) -> str:
    """Returns the kernel's one-line description of a machine: vendor, product, board and firmware."""
    return f"{names['sys_vendor']} {names['product_name']}/{names['board_name']}, BIOS {names['bios_version']} {DATE}"


def identity_of(host: str, rig: str) -> tuple[str, uuid.UUID]:
    """Returns the serial number and the UUID of a host's board: another rig under the same name is another board."""
    serial = hashlib.sha1(f"{host} {rig}".encode(), usedforsecurity=False).hexdigest()[:10].upper()
    return serial, uuid.uuid5(uuid.NAMESPACE_DNS, f"{host}.{rig}.rigwright.invalid")


def write(
    folder: Path, names: dict[str, str], memory: dict[str, int], board: tuple[str, uuid.UUID], gone_gib: int = 0
) -> None:
    """Writes the tables and files of a machine into `folder`.

    `names`: sys_vendor, product_name, board_name, bios_version. `memory`: as lab.hardware.rigfile.memory returns it.
    `board`: its serial number and UUID. `gone_gib` GiB of the memory are missing; the last modules are shown as empty
    slots.
    """
    serial, identity = board
    for name in ("tables", "id"):
        (folder / name).mkdir(parents=True)
    table = _tables(names, memory, gone_gib, serial, identity)
    (folder / "tables/DMI").write_bytes(table)
    (folder / "tables/smbios_entry_point").write_bytes(_entry_point(len(table)))
    for path in (folder / "tables").iterdir():
        path.chmod(0o400)
    public = {
        "sys_vendor": names["sys_vendor"],
        "product_name": names["product_name"],
        "product_version": "0100",
        "product_family": "Server",
        "board_vendor": names["sys_vendor"],
        "board_name": names["board_name"],
        "board_version": "01234567",
        "bios_vendor": "American Megatrends Inc.",
        "bios_version": names["bios_version"],
        "bios_date": DATE,
        "chassis_vendor": names["sys_vendor"],
        "chassis_type": "23",
    }
    alias = ":".join(f"{key}{public[name].replace(' ', '')}" for key, name in _ALIAS)
    for name, text in (public | {"modalias": f"dmi:{alias}:", "uevent": f"MODALIAS=dmi:{alias}:"}).items():
        (folder / "id" / name).write_text(text + "\n")
    for name, text in {"product_serial": serial, "board_serial": serial, "product_uuid": str(identity)}.items():
        (folder / "id" / name).write_text(text + "\n")
        (folder / "id" / name).chmod(0o400)


_ALIAS = (
    ("bvn", "bios_vendor"), ("bvr", "bios_version"), ("bd", "bios_date"), ("svn", "sys_vendor"), ("pn", "product_name"),
    ("rvn", "board_vendor"), ("rn", "board_name"), ("ct", "chassis_type"),
)  # fmt: skip


def _tables(names: dict[str, str], memory: dict[str, int], gone_gib: int, serial: str, identity: uuid.UUID) -> bytes:
    """Returns all structures: firmware, system, board, chassis, the memory array and its modules."""
    vendor = names["sys_vendor"]
    module_mib = memory["gib"] * 1024 // memory["dimms"]
    gone = -(-gone_gib * 1024 // module_mib)
    first = sorted(range(memory["slots"]), key=lambda number: (number % PER_CHANNEL, number))[: memory["dimms"]]
    filled = sorted(first)[: memory["dimms"] - gone]
    made = [
        _structure(0, 0, struct.pack("<BBHBBQ", 1, 2, 0xE000, 3, 0xFF, 0x08)
                   + bytes((0x03, 0x0D, 5, 14, 0xFF, 0xFF)) + struct.pack("<H", 16),
                   "American Megatrends Inc.", names["bios_version"], DATE),
        _structure(1, 1, struct.pack("<BBBB16sBBB", 1, 2, 3, 4, identity.bytes_le, 6, 5, 6),
                   vendor, names["product_name"], "0100", serial, "01234567890123456789AB", "Server"),
        _structure(2, 2, struct.pack("<BBBBBBBHBB", 1, 2, 3, 4, 5, 0x09, 5, 3, 0x0A, 0),
                   vendor, names["board_name"], "01234567", serial, "Default string"),
        _structure(3, 3, struct.pack("<BBBBBBBBBIBBBB", 1, 23, 2, 3, 4, 3, 3, 3, 3, 0, 1, 1, 0, 0),
                   vendor, "01234567", serial, "Default string"),
        _structure(16, 16, struct.pack("<BBBIHHQ", 3, 3, 5, 0x80000000, 0xFFFE, memory["slots"], memory["gib"] << 30)),
        *(_module(32 + n, n, module_mib if n in filled else 0, memory) for n in range(memory["slots"])),
        _structure(END, LAST, b""),
    ]  # fmt: skip
    return b"".join(made)


def _module(handle: int, number: int, mib: int, memory: dict[str, int]) -> bytes:
    """Returns the structure of a memory module (0 MiB: empty slot, which has no speed).

    Sizes from 32 GiB - 1 MiB use the extended field.
    """
    rated, speed = (memory["rated_mt_s"], memory["speed_mt_s"]) if mib else (0, 0)
    kind = DDR5 if memory["rated_mt_s"] >= DDR5_MT_S else DDR4
    size, extended = (mib, 0) if mib < 0x7FFF else (0x7FFF, mib)
    body = struct.pack("<HHHHHBBBBBHH", 16, 0xFFFE, 72, 64, size, 9, 0, 1, 2, kind, 0x2080, rated)
    body += struct.pack("<BBBBBIHHHH", 3, 4, 5, 6, 2, extended, speed, 1200, 1200, 1200)
    return _structure(
        17, handle, body, f"DIMM_{chr(65 + number // PER_CHANNEL)}{number % PER_CHANNEL}", f"NODE {number // 8}",
        "Samsung",
        f"{0x10000000 + number:08X}", "Default string", "M393A4K40CB2-CTD",
    )  # fmt: skip


def _structure(kind: int, handle: int, body: bytes, *texts: str) -> bytes:
    """Returns one structure with its strings. The body refers to strings by number, from 1."""
    strings = b"".join(text.encode() + b"\0" for text in texts) or b"\0"
    return struct.pack("<BBH", kind, 4 + len(body), handle) + body + strings + b"\0"


def _entry_point(size: int) -> bytes:
    """Returns the 64-bit entry point. Its table address is not used: readers take the kernel's copy of the table."""
    head = bytearray(struct.pack("<5sBBBBBBBIQ", b"_SM3_", 0, 24, 3, 2, 0, 1, 0, size, 0xE0000))
    head[5] = -sum(head) & 0xFF
    return bytes(head)
