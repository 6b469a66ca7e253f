"""Copies of a host: hosts that start with everything that one has installed, each with names, keys and identifiers of
its own.

What the host has changed on its disk is copied once and frozen: it is a read-only image below the disks of all copies,
as the images of the distribution are. So a copy is made in a moment, takes room only for what it changes, and shares
the memory of the files that it reads.

A host that is provisioned has files that name its GPUs, such as the record of the passed peer-to-peer test; those of a
copy name the GPUs of the copy. So `provision` changes nothing on it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from lab.base.paths import FROZEN, folder
from lab.base.programs import run
from lab.hardware import hw_state
from lab.host import disk
from lab.host.disk import Host
from rigwright.core.errors import HostError

_IDENTIFIER = re.compile(r"gpu\d+\.(uuid|serial)")
"""The keys of board.conf whose values no other machine has."""


@dataclass(frozen=True)
class Original:
    """A frozen host: the image of what it had changed, and the files there that name its GPUs, relative to the
    image."""

    host: Host
    image: Path
    naming: tuple[Path, ...]

    @property
    def layers(self) -> tuple[Path, ...]:
        """The images of a copy's disk, topmost first."""
        return (self.image, *self.host.layers)


def freeze(host: Host) -> Original:
    """Copies what a host that is off has changed on its disk to an image, without its system log."""
    folder(FROZEN, 0o700)
    image = FROZEN / f"{host.name}-{time.time_ns():x}"
    disk.snapshot(host, image)
    for journal in (image / "var/log/journal").glob("*"):
        shutil.rmtree(journal)
    return Original(host, image, tuple(_naming(image, set(_identifiers(host).values()))))


def make_own(copy: Host, original: Original) -> None:
    """Gives the copy's hardware what the original's stores permanently, such as its ECC mode, and lets the files of its
    mounted disk name its own GPUs. Owners, modes and times of these files do not change."""
    if copy.rig is None:
        return
    shutil.copyfile(original.host.hw / hw_state.NVRAM, copy.hw / hw_state.NVRAM)
    own = _identifiers(copy)
    names = {old: own[key] for key, old in _identifiers(original.host).items()}
    for file in original.naming:
        path = copy.root / file
        before, text = path.stat(), path.read_text()
        path.write_text(re.sub("|".join(map(re.escape, names)), lambda found: names[found[0]], text))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def forget(used: Collection[Path]) -> None:
    """Removes the frozen images that no host uses, also those that were not finished."""
    for image in FROZEN.glob("*"):
        if image not in used:
            run(["rm", "-rf", "--one-file-system", image], deadline=300)
    if FROZEN.is_dir() and not any(FROZEN.iterdir()):
        FROZEN.rmdir()


def _identifiers(host: Host) -> dict[str, str]:
    """By its key the UUID and the serial number of each GPU."""
    return {key: value for key, value in hw_state.read(host.hw, hw_state.BOARD).items() if _IDENTIFIER.fullmatch(key)}


def _naming(image: Path, words: Collection[str]) -> Iterator[Path]:
    """The text files of an image that contain one of the words, relative to it."""
    if not words:
        return
    argv = ["grep", "--recursive", "--binary-files=without-match", "--files-with-matches", "--null", "--fixed-strings"]
    done = subprocess.run(
        [*argv, "--file=-", "."], input="\n".join(words), cwd=image, capture_output=True, text=True, check=False
    )
    if done.returncode > 1:
        raise HostError("lab", f"the files of {image} cannot be read: {done.stderr.strip()[-300:]}")
    yield from (Path(name) for name in done.stdout.split("\0") if name)
