"""Parts of a simulated GPU server that need no host: package tables, module files, PCI tree, initrd, kernel state."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from lab.archive import packages
from lab.archive.repositories import kernel_values
from lab.host import initrd
from rigwright.core.errors import HostError

REAL_IN_BASE = {"kmod", "python3", "adduser", "libc6", "libgcc-s1", "initramfs-tools"}


def names(relation: str) -> list[str]:
    """Returns the package names of a relation field."""
    return [re.split(r"[ :]", part.strip())[0] for part in re.split(r"[,|]", relation) if part.strip()]


@pytest.fixture(scope="module")
def table() -> list[packages.Package]:
    return packages.load(kernel_values())


def test_every_dependency_can_be_met(table: list[packages.Package]) -> None:
    offered = {p.name for p in table} | {n for p in table for n in names(p.control.get("Provides", ""))} | REAL_IN_BASE
    for package in table:
        for field in ("Depends", "Recommends"):
            assert set(names(package.control.get(field, ""))) <= offered, package.name


@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        ("{name: a, version: '1', depend: [b]}", "unknown key"),
        ("{name: a-@NOPE@, version: '1'}", "@NOPE@ has no value"),
        ("{name: a, version: '1', files: [{path: /x, text: y, link: z}]}", "one of text"),
        ("{name: a, version: '1'}, {name: a, version: '1'}", "made twice"),
    ],
)
def test_mistakes_in_a_table_are_named(tmp_path: Path, row: str, wrong: str) -> None:
    (tmp_path / "t.yml").write_text(f"repository: cuda\npackages: [{row}]\n")
    with pytest.raises(ValueError, match=re.escape(wrong)):
        packages.load({}, tmp_path)


def cpio(files: dict[str, bytes]) -> bytes:
    """Returns a newc archive; a content that begins with `->` is a link."""
    data = b""
    for name, content in [*files.items(), ("TRAILER!!!", b"")]:
        raw = name.encode() + b"\0"
        kind = 0o120777 if content.startswith(b"->") else 0o100644
        content = content.removeprefix(b"->")
        head = [0, kind if content else 0, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(raw), 0]
        data += b"070701" + b"".join(b"%08X" % n for n in head) + raw
        data += b"\0" * (-len(data) % 4) + content
        data += b"\0" * (-len(data) % 4)
    return data


def test_initrd_early_archive_and_precedence_of_modprobe_d(tmp_path: Path) -> None:
    main = {
        "etc/modprobe.d/linked.conf": b"->../nvidia/current/real.conf",
        "etc/modprobe.d/dangling.conf": b"->/nowhere",
        "etc/nvidia/current/real.conf": b"blacklist nouveau\n",
        "usr/lib/modprobe.d/nvidia.conf": b"blacklist nouveau\n",
        "etc/modprobe.d/nvidia.conf": b"# emptied by the admin\n",
        "lib/modules/6.8/kernel/nouveau.ko": b"ELF",
        "lib/modules/../../../evil": b"x",
        "etc/fstab": b"x",
    }
    path, early = tmp_path / "initrd", cpio({"kernel/x86/microcode/GenuineIntel.bin": b"ucode"})
    path.write_bytes(early + b"\0" * 512 + gzip.compress(cpio(main)))
    initrd.unpack(path, tmp_path / "out", tmp_path)
    found = {str(p.relative_to(tmp_path / "out")): p.read_bytes() for p in (tmp_path / "out").rglob("*") if p.is_file()}
    assert found == {
        "modprobe.d/linked.conf": b"blacklist nouveau\n",
        "modprobe.d/nvidia.conf": b"# emptied by the admin\n",
        "lib/modules/6.8/kernel/nouveau.ko": b"ELF",
    }


@pytest.mark.parametrize("content", [b"nonsense", b"\x1f\x8bbroken", b"070701short"])
def test_a_damaged_initrd_is_an_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "initrd"
    path.write_bytes(content)
    with pytest.raises(HostError):
        initrd.unpack(path, tmp_path / "out", tmp_path)
