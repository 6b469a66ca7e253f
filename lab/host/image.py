"""The base image of all hosts: a Debian 12 server tree that debootstrap builds once into the cache."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from lab.base.paths import CACHE, GUEST, folder
from lab.base.programs import PROGRAMS, run
from rigwright.core.errors import HostError

SYSTEM_PACKAGES = tuple(sorted({*PROGRAMS.values(), "libc6-dev"}))
"""The packages that the machine itself needs before it can run the lab."""

SUITE = "bookworm"
PACKAGES = (
    "systemd,systemd-sysv,dbus,udev,kmod,initramfs-tools,zstd,grub2-common,grub-common,grub-pc-bin,openssh-server,sudo,"
    "python3,procps,iproute2,ifupdown,ca-certificates,gpgv,curl,pciutils,lshw"
)
KEYRING = Path(__file__).parent / "keys" / "debian-archive-keyring.gpg"
DEADLINE_S = 1800

Say = Callable[[str], None]


def kernel() -> str:
    """Returns the hosts' kernel version, which is the machine's own: a namespace cannot change `uname -r`."""
    return platform.release()


def base(say: Say) -> Path:
    """Returns the folder of the base image, and first builds it when the cache has none from the current recipe."""
    recipe = [SUITE, PACKAGES, kernel(), (GUEST / "build").read_text(), (GUEST / "grub-probe").read_text()]
    image = CACHE / f"base-{hashlib.sha256(chr(0).join(recipe).encode()).hexdigest()[:12]}"
    if not image.is_dir():
        folder(CACHE)
        partial = image.with_suffix(".partial")
        run(["rm", "-rf", "--one-file-system", partial], deadline=300)
        say("Building the hosts' base image, once: 1 to 3 minutes, downloads 100 MB, takes 500 MB in .lab/cache.")
        started = time.monotonic()
        _debootstrap(partial, say)
        _configure(partial, say)
        partial.rename(image)
        say(f"Base image built in {time.monotonic() - started:.0f} s.")
    return image


def forget(used: set[Path]) -> None:
    """Removes the base images that are neither in `used` nor part of a mounted disk.

    A shared cache keeps all its images.
    """
    mounted = Path("/proc/self/mountinfo").read_text()
    for image in () if CACHE.is_symlink() else CACHE.glob("base-*"):
        if image not in used and image.name not in mounted:
            run(["rm", "-rf", "--one-file-system", image], deadline=300)


def _debootstrap(root: Path, say: Say) -> None:
    """Installs a configured minimal Debian with PACKAGES in `root`."""
    debs = folder(CACHE / "debs")
    argv = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", f"--cache-dir={debs}"]
    argv += [f"--keyring={KEYRING}", "--force-check-gpg", SUITE, str(root)]
    mirror = _mirror()
    if mirror:
        argv.append(mirror)
    _narrate(argv, say)


def _configure(root: Path, say: Say) -> None:
    """Makes `root` a server image: the user, sshd, sudo, a kernel by name, its initramfs and the GRUB configuration."""
    shutil.copy(GUEST / "build", root / "lab-build")
    shutil.copy(GUEST / "grub-probe", root / "lab-grub-probe")
    say("  making it a server: user, kernel by name, initramfs, GRUB")
    _narrate(["chroot", str(root), "/lab-build", kernel()], say, proc=root / "proc")


def _narrate(argv: list[str], say: Say, proc: Path | None = None) -> None:
    """Runs `argv` with its output in .lab/cache/build.log.

    `argv` runs in its own namespaces: an interrupted build leaves no mount.
    """
    namespaces = [
        "unshare",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
    ]
    if proc:  # util-linux before 2.39 cannot mount on a directory that is no mount point yet
        namespaces += ["sh", "-c", 'mount -t proc proc "$0" && exec "$@"', str(proc)]
    log = CACHE / "build.log"
    ends, spoken = time.monotonic() + DEADLINE_S, time.monotonic()
    with log.open("a") as out, log.open() as back:
        back.seek(0, os.SEEK_END)
        child = subprocess.Popen(
            [*namespaces, *argv],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=_environment(),
            start_new_session=True,
        )
        try:
            while child.poll() is None:
                time.sleep(0.2)
                lines = back.read().splitlines()
                if lines and time.monotonic() - spoken > 10:
                    spoken = time.monotonic()
                    say(f"  {lines[-1].removeprefix('I: ')[:100]}")
                if time.monotonic() > ends:
                    raise HostError("lab", f"{argv[0]}: no end after {DEADLINE_S} s", fix=f"read {log}")
        finally:
            if child.poll() is None:
                child.kill()
            child.wait()
    if child.returncode != 0:
        last = " / ".join(log.read_text(errors="replace").strip().splitlines()[-3:])
        raise HostError(
            "lab",
            f"{argv[0]}: exit {child.returncode}: {last}",
            fix=f"read {log}; is the Debian mirror reachable, and its release signed by a key of lab/host/keys?",
        )


def _environment() -> dict[str, str]:
    """Returns a minimal environment for the build, with the proxy that the machine's own apt uses."""
    keep = {k: v for k, v in os.environ.items() if k.lower().endswith("_proxy")}
    apt = run(["apt-config", "shell", "p", "Acquire::http::Proxy"], check=False).stdout
    found = re.fullmatch(r"p='(.+)'", apt.strip())
    if found and found[1] != "DIRECT":
        keep.setdefault("http_proxy", found[1])
    return {**keep, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "HOME": "/root"}


def _mirror(apt: Path = Path("/etc/apt")) -> str | None:
    """Returns the http(s) mirror of SUITE in the machine's apt sources.

    Returns None without one: debootstrap has a default.
    """
    for path in (apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))):
        text = path.read_text(errors="replace") if path.is_file() else ""
        if path.suffix == ".list":
            found = re.search(rf"^deb\s+(?:\[[^]]*\]\s+)?(https?://\S+)\s+{SUITE}\s", text, re.M)
            if found:
                return found[1]
        elif path.suffix == ".sources":
            for stanza in re.split(r"\n\s*\n", text):
                fields = dict(re.findall(r"^([A-Za-z-]+):[ \t]*(.*)$", stanza, re.M))
                uri = fields.get("URIs", "").split()
                if SUITE in fields.get("Suites", "").split() and uri and uri[0].startswith("http"):
                    return str(uri[0])
    return None
