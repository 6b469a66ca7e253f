#!/usr/bin/env python3
"""Writes kernel module files (.ko) that the real modinfo, depmod and modprobe --show-depends read.

No program executes these files. This script uses only the standard library: the lab runs it for the base kernel's
modules, and the simulated dkms runs the same file in the host. A source file describes a module: one `key=value` per
line as modinfo shows them, plus `depends=a,b`.

    ko_file.py nvidia.mod 6.8.0-31-generic nvidia.ko [KEY=VALUE...]
"""

from __future__ import annotations

import hashlib
import struct
import sys

Fields = list[tuple[str, str]]

ABS, UNDEF, GLOBAL_OBJECT, GLOBAL = 0xFFF1, 0, 0x11, 0x10
PROGBITS, SYMTAB, STRTAB = 1, 2, 3


def parse(text: str) -> Fields:
    """Returns the fields of a module source, in order. Keys such as `alias` and `parm` may repeat.

    Raises ValueError for an invalid line.
    """
    fields: Fields = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        key, equals, value = line.partition("=")
        if not equals:
            raise ValueError(f"line {number}: no '=' in {line!r}")
        fields.append((key, value))
    return fields


def module(fields: Fields, kernel: str) -> bytes:
    """Returns the .ko for that kernel: an ELF64 relocatable with the fields and the kernel's vermagic in .modinfo.

    depmod ignores `depends` and matches symbols, so each module exports sim_NAME and needs sim_DEPENDENCY.
    """
    values = dict(fields)
    name = values["name"].replace("-", "_")
    depends = [d.replace("-", "_") for d in values.get("depends", "").split(",") if d]
    shown = [(k, v) for k, v in fields if k not in ("name", "depends", "size")]
    digest = hashlib.md5(repr(fields).encode(), usedforsecurity=False).hexdigest()
    shown += [("srcversion", digest[:23].upper()), ("depends", ",".join(depends)), ("retpoline", "Y"), ("name", name)]
    shown += [("vermagic", f"{kernel} SMP preempt mod_unload modversions ")]
    modinfo = b"".join(f"{k}={v}".encode() + b"\0" for k, v in shown)
    crc = int(digest[:8], 16)
    symbols = [(f"__crc_sim_{name}", ABS, GLOBAL_OBJECT, crc), (f"sim_{name}", ABS, GLOBAL_OBJECT, 0)]
    symbols += [(f"sim_{d}", UNDEF, GLOBAL, 0) for d in depends]
    strings, table = b"\0", struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0)
    for symbol, section, info, value in symbols:
        table += struct.pack("<IBBHQQ", len(strings), info, 0, section, value, 0)
        strings += symbol.encode() + b"\0"
    size = (
        f"rigwright-size={values.get('size', '16384')}\n".encode()
    )  # the size that lsmod shows; it stands after the ELF, where no other program reads it
    this_module = b"\0" * 24 + name.encode().ljust(56, b"\0") + b"\0" * 304
    elf = _elf(
        [
            (b".modinfo", PROGBITS, modinfo, 0, 0, 0),
            (b".gnu.linkonce.this_module", PROGBITS, this_module, 0, 0, 0),
            (b".symtab", SYMTAB, table, 4, 1, 24),
            (b".strtab", STRTAB, strings, 0, 0, 0),
        ]
    )
    return elf + size


def _elf(sections: list[tuple[bytes, int, bytes, int, int, int]]) -> bytes:
    """Returns an ELF64 little endian x86-64 ET_REL file with sections (name, type, content, link, info, entry size)."""
    names = b"\0"
    rows = [struct.pack("<IIQQQQIIQQ", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)]
    body = b""
    for name, kind, content, link, info, size in [*sections, (b".shstrtab", STRTAB, b"", 0, 0, 0)]:
        body += b"\0" * (-len(body) % 8)
        at = len(names)
        names += name + b"\0"
        data = names if name == b".shstrtab" else content
        flags = 2 if kind == PROGBITS else 0
        rows.append(struct.pack("<IIQQQQIIQQ", at, kind, flags, 0, 64 + len(body), len(data), link, info, 8, size))
        body += data
    body += b"\0" * (-len(body) % 8)
    head = b"\x7fELF\x02\x01\x01" + b"\0" * 9
    head += struct.pack("<HHIQQQIHHHHHH", 1, 62, 1, 0, 0, 64 + len(body), 0, 64, 0, 0, 64, len(rows), len(rows) - 1)
    return head + body + b"".join(rows)


def main(argv: list[str]) -> int:
    """Writes one module file. KEY=VALUE arguments replace fields of the source."""
    source, kernel, out = argv[:3]
    with open(source, encoding="utf-8") as file:
        fields = parse(file.read())
    for word in argv[3:]:
        key, _, value = word.partition("=")
        fields = [(k, v) for k, v in fields if k != key] + [(key, value)]
    with open(out, "wb") as file_out:
        file_out.write(module(fields, kernel))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
