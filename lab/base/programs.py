"""Runs programs of this machine, always with a deadline. The error names a missing or failed program."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from rigwright.core.errors import HostError, UsageError

PROGRAMS = {
    "systemd-nspawn": "systemd-container",
    "mmdebstrap": "mmdebstrap",
    "apt-ftparchive": "apt-utils",
    "dpkg-deb": "dpkg",
    "ip": "iproute2",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "gcc": "gcc",
    "gpg": "gnupg",
    "zstd": "zstd",
    "unshare": "util-linux",
    "setpriv": "util-linux",
    "mount": "mount",
    "chroot": "coreutils",
}
"""Maps each program that the lab calls on the machine to the Debian or Ubuntu package that contains it."""

VM_PROGRAMS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-img": "qemu-utils",
    "sfdisk": "fdisk",
    "mkfs.vfat": "dosfstools",
    "mke2fs": "e2fsprogs",
}
"""The same for the programs that only virtual machines need."""

_PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"))


def need(programs: Iterable[str] = tuple(PROGRAMS)) -> None:
    """Raises UsageError, with the packages to install, when a program is missing."""
    missing = [name for name in programs if shutil.which(name, path=_PATH) is None]
    if missing:
        known = PROGRAMS | VM_PROGRAMS
        packages = sorted({known[name] for name in missing})
        raise UsageError(
            "lab",
            f"this machine has no {', '.join(missing)}",
            "the programs that simulated hosts are made with",
            f"sudo apt-get install {' '.join(packages)}",
        )


def run(
    argv: Sequence[str | Path], *, deadline: float = 60, check: bool = True, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a program and returns the result. Kills it after `deadline` seconds.

    Raises HostError when it is killed, and when it fails and `check` is set, with the last lines of its output.
    """
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(
            words,
            text=True,
            capture_output=True,
            timeout=deadline,
            check=False,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            env={**os.environ, "PATH": _PATH, "LC_ALL": "C.UTF-8"},
        )
    except subprocess.TimeoutExpired as late:
        raise HostError("lab", f"{' '.join(words)}: no end after {deadline:.0f} s") from late
    if check and done.returncode != 0:
        last = (done.stderr or done.stdout).strip().splitlines()[-3:]
        raise HostError("lab", f"{' '.join(words)}: exit {done.returncode}: {' / '.join(last)}")
    return done
