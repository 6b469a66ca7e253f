"""Unpacks the initrd that the host's mkinitramfs wrote. Its modules and modprobe.d decide which driver binds first."""

from __future__ import annotations

import bz2
import gzip
import lzma
import posixpath
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from rigwright.core.errors import HostError

WANTED = re.compile(r"(?:usr/)?(?P<place>etc/modprobe\.d|run/modprobe\.d|lib/modprobe\.d|lib/modules)/(?P<rest>.+)")
HEADER = re.compile(rb"07070[12][0-9A-Fa-f]{104}")
PRECEDENCE = ("lib/modprobe.d", "run/modprobe.d", "etc/modprobe.d")


def unpack(path: Path, out: Path, chroot: Path) -> None:
    """Writes the initrd's modules and configuration to out/lib/modules and out/modprobe.d.

    Of two configuration files with the same name the one in etc is used, as modprobe does. `chroot` is the host's disk:
    its zstd decompresses the initrd when the machine has none.
    """
    (out / "modprobe.d").mkdir(parents=True)
    found: dict[str, bytes] = {}
    links: dict[str, str] = {}
    for name, content, is_link in members(path.read_bytes(), chroot):
        if is_link:
            links[name] = posixpath.normpath(posixpath.join("/", posixpath.dirname(name), content.decode()))[1:]
        elif name.endswith(".conf") or WANTED.fullmatch(name):
            found[name] = content
    found |= {name: found[target] for name, target in links.items() if target in found}
    configs: dict[str, tuple[int, bytes]] = {}
    for name, content in found.items():
        match = WANTED.fullmatch(name)
        if not match or ".." in name.split("/"):
            continue
        if match["place"] == "lib/modules":
            target = out / "lib/modules" / match["rest"]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        else:
            rank = PRECEDENCE.index(match["place"])
            if rank >= configs.get(match["rest"], (-1, b""))[0]:
                configs[match["rest"]] = (rank, content)
    for name, (_, content) in configs.items():
        if "/" not in name:
            (out / "modprobe.d" / name).write_bytes(content)


def members(data: bytes, chroot: Path) -> Iterator[tuple[str, bytes, bool]]:
    """Yields (path without leading ./, content, whether it is a link) for every file and link.

    The uncompressed early archives come first, then the compressed archive.
    """
    while data:
        data = data.lstrip(b"\0")
        if data.startswith(b"070701") or data.startswith(b"070702"):
            at = 0
            while True:
                if not HEADER.match(data, at):
                    raise HostError("initrd", f"damaged: no cpio header at byte {at}")
                head = [int(data[at + 6 + 8 * i : at + 14 + 8 * i], 16) for i in range(13)]
                mode, size, name_size = head[1], head[6], head[11]
                name = data[at + 110 : at + 109 + name_size].decode(errors="surrogateescape")
                start = at + (110 + name_size + 3) // 4 * 4
                at = start + (size + 3) // 4 * 4
                if name == "TRAILER!!!":
                    break
                if mode & 0o170000 in (0o100000, 0o120000):
                    is_link = mode & 0o170000 == 0o120000
                    yield name.removeprefix("./").lstrip("/"), data[start : start + size], is_link
            data = data[at:]
        elif data:
            data = _decompress(data, chroot)


def _decompress(data: bytes, chroot: Path) -> bytes:
    """Returns the decompressed archive.

    Raises HostError for damaged data or a compression that the kernel does not support.
    """
    try:
        if data.startswith(b"\x1f\x8b"):
            return gzip.decompress(data)
        if data.startswith(b"BZh"):
            return bz2.decompress(data)
        if data.startswith(b"\xfd7zXZ\0") or data.startswith(b"\x5d\0\0"):
            return lzma.decompress(data)
    except (OSError, EOFError, ValueError, lzma.LZMAError) as error:
        raise HostError("initrd", f"damaged: {error}") from error
    program = {b"\x28\xb5\x2f\xfd": "zstd", b"\x02\x21\x4c\x18": "lz4"}.get(data[:4])
    if program is None:
        raise HostError("initrd", f"unknown compression, begins {data[:6].hex()}")
    argv = [program, "-dc"] if shutil.which(program) else ["chroot", str(chroot), f"/usr/bin/{program}", "-dc"]
    done = subprocess.run(argv, input=data, capture_output=True, check=False, timeout=60)
    if done.returncode != 0:
        raise HostError("initrd", f"damaged: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout
