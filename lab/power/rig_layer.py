"""Builds the image over the Debian base.

The image contains the distribution's name and keys, a kernel package with nouveau in its initrd, and the kmod stand-in.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from lab.archive.repositories import kernel_values
from lab.base.distros import Distro
from lab.base.paths import CHECKOUT
from lab.base.programs import run
from rigwright.core.errors import HostError

GUEST = CHECKOUT / "lab" / "simulators" / "guest_gpu"
PARTS = (
    "kmod",
    *(path.name for path in sorted(GUEST.glob("*.py"))),
    "build-layer",
    "framebuffer-hook",
    "50unattended-upgrades",
    "ipmitool",
)
REAL = ("gnupg", "adduser", "unattended-upgrades", "ipmitool")
"""Debian's own packages that no stand-in can replace; they come from the mirror that the base was made from."""

Say = Callable[[str], None]


def layer(cache: Path, base: Path, archive: Path, say: Say, distro: Distro) -> Path:
    """Returns the layer over `base`, a directory for overlayfs. Builds it when its recipe has changed."""
    names = [name.replace("@KVER@", kernel_values()["KVER"]) for name in distro.preinstalled]
    debs = [_deb(archive, distro, name) for name in names]
    keyring = archive / f"{distro.repository}-archive-keyring.gpg"
    digest = hashlib.sha256(f"{base}\n{distro.shell()}".encode())
    for path in [Path(__file__), *(GUEST / part for part in PARTS), *debs, keyring]:
        digest.update(path.read_bytes())
    target = cache / f"{distro.name}-{digest.hexdigest()[:12]}"
    with (cache / f"layer-{distro.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            started = time.monotonic()
            _build(target, base, [*debs, *(GUEST / part for part in PARTS)], keyring, distro)
            say(f"Layer {distro.name} built in {time.monotonic() - started:.0f} s.")
    return target


def _deb(archive: Path, distro: Distro, name: str) -> Path:
    """Returns the .deb of that package in the distribution's part of the lab's archive."""
    root = archive / distro.repository
    for suite in reversed(distro.suites):
        for index in sorted((root / "dists" / suite).glob("*/binary-amd64/Packages")):
            found = re.search(rf"^Package: {re.escape(name)}\n(?:.+\n)*?Filename: (.+)$", index.read_text(), re.M)
            if found:
                return root / found[1]
    raise HostError("archive", f"{distro.name} has no package {name}", "one")


def _build(target: Path, base: Path, parts: list[Path], keyring: Path, distro: Distro) -> None:
    """Runs guest_gpu/build-layer in a chroot over the base, and keeps its changes in the directory `target`."""
    work = target.with_suffix(".partial")
    run(["rm", "-rf", "--one-file-system", work], deadline=300)
    for name in ("upper", "work", "root", "parts"):
        (work / name).mkdir(parents=True)
    for path in parts:
        shutil.copy(path, work / "parts")
    shutil.copy(keyring, work / "parts/archive-keyring.gpg")
    (work / "parts/distro").write_text(distro.shell())
    options = f"lowerdir={base},upperdir={work / 'upper'},workdir={work / 'work'}"
    script = (
        'set -eu; w=$1; mount -t overlay layer -o "$2" "$w/root"; mount --bind "$w/parts" "$w/root/mnt"; '
        'mount -t proc proc "$w/root/proc"; mount -t tmpfs tmpfs "$w/root/run"; '
        'if [ -e /etc/resolv.conf ]; then cp -L /etc/resolv.conf "$w/root/run/resolv.conf"; fi; '
        'shift 2; exec chroot "$w/root" /bin/sh /mnt/build-layer "$@"'
    )
    inside: list[str | Path] = [
        "unshare",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "sh",
        "-c",
        script,
        "sh",
        work,
        options,
    ]
    proxies = [f"{k}={v}" for k, v in os.environ.items() if k.lower().endswith("_proxy")]
    apt = run(["apt-config", "shell", "p", "Acquire::http::Proxy"], check=False).stdout.strip()
    if apt.startswith("p='http") and not proxies:
        proxies = [f"http_proxy={apt[3:-1]}"]
    clean = ["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8", "HOME=/root", *proxies]
    run([*clean, *inside, kernel_values()["KVER"], *REAL], deadline=600)
    (work / "upper").rename(target)
    run(["rm", "-rf", "--one-file-system", work], deadline=300)
