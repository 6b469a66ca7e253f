"""The base image of all hosts: a Debian 12 server tree that mmdebstrap builds once into the cache."""

from __future__ import annotations

import hashlib
import platform
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from lab.base import debian
from lab.base.lock import cache_lock
from lab.base.paths import CACHE, GUEST, folder
from lab.base.programs import PROGRAMS, run

SYSTEM_PACKAGES = tuple(sorted({*PROGRAMS.values(), "libc6-dev"}))
"""The packages that the machine itself needs before it can run the lab."""

SUITE = "bookworm"
PACKAGES = (
    "systemd,systemd-sysv,dbus,udev,kmod,initramfs-tools,zstd,grub2-common,grub-common,grub-pc-bin,openssh-server,sudo,"
    "python3,procps,iproute2,ifupdown,ca-certificates,gpgv,curl,pciutils,lshw"
)

STAND_INS = ("grub-probe", "apt-key")
"""The files of guest/ that take the place of a program of Debian."""

Say = Callable[[str], None]


def kernel() -> str:
    """Returns the hosts' kernel version, which is the machine's own: a namespace cannot change `uname -r`."""
    return platform.release()


def base(say: Say) -> Path:
    """Returns the folder of the base image, and first builds it when the cache has none from the current recipe."""
    recipe = [SUITE, PACKAGES, kernel(), *((GUEST / name).read_text() for name in ("build", *STAND_INS))]
    image = CACHE / f"base-{hashlib.sha256(chr(0).join(recipe).encode()).hexdigest()[:12]}"
    if image.is_dir():
        return image
    with cache_lock(folder(CACHE), "base", say):
        if not image.is_dir():
            _build(image, say)
    return image


def _build(image: Path, say: Say) -> None:
    """Builds the image. What an interrupted build left goes first."""
    for partial in CACHE.glob("base-*.partial"):
        run(["rm", "-rf", "--one-file-system", partial], deadline=300)
    partial = image.with_suffix(".partial")
    say("Building the hosts' base image, once: 1 to 3 minutes, downloads 100 MB, takes 500 MB in .lab/cache.")
    started = time.monotonic()
    debian.bootstrap(partial, SUITE, PACKAGES, say)
    _configure(partial, say)
    partial.rename(image)
    say(f"Base image built in {time.monotonic() - started:.0f} s.")


def forget(used: set[Path]) -> None:
    """Removes the base images that are neither in `used`, nor part of a mounted disk, nor being built.

    A shared cache keeps all its images.
    """
    mounted = Path("/proc/self/mountinfo").read_text()
    for image in () if CACHE.is_symlink() else CACHE.glob("base-*"):
        if image not in used and image.name not in mounted and image.suffix != ".partial":
            run(["rm", "-rf", "--one-file-system", image], deadline=300)


def _configure(root: Path, say: Say) -> None:
    """Makes `root` a server image: the user, sshd, sudo, a kernel by name, its initramfs and the GRUB configuration."""
    shutil.copy(GUEST / "build", root / "lab-build")
    for name in STAND_INS:
        shutil.copy(GUEST / name, root / f"lab-{name}")
    say("  making it a server: user, kernel by name, initramfs, GRUB")
    debian.in_chroot(root, ["/lab-build", kernel()], say)
