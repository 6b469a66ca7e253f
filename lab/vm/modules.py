"""The cache of NVIDIA's real kernel modules, which dkms builds natively for the kernel of a virtual machine.

Compiling them takes hours in software emulation and minutes on this machine. So mmdebstrap makes a chroot with the
virtual machine's release, the headers of its exact kernel and the source of Debian's nvidia-kernel-dkms; dkms builds
and installs there. Only the modules are kept, in /var/cache/rigwright-lab/modules/DISTRO-KERNEL-VERSION.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from lab.base import debian
from lab.base.lock import cache_lock
from lab.base.paths import VM_CACHE, folder
from lab.base.programs import run
from lab.vm.distributions import COMPONENTS, DISTRIBUTIONS
from rigwright.core.errors import HostError

Say = Callable[[str], None]

NAMES = ("nvidia.ko", "nvidia-drm.ko", "nvidia-modeset.ko", "nvidia-peermem.ko", "nvidia-uvm.ko")
"""The modules that the compiler makes, with its own names: dkms renames them (nvidia-current.ko)."""
SCRIPT = Path(__file__).parent / "files" / "build-modules"
SIGNATURE = b"~Module signature appended~\n"
ROOM_MIB = 3000
"""A chroot with headers, source and objects is 1.6 GB; the modules are 70 MB."""


@dataclass(frozen=True)
class Modules:
    """Modules in the cache and what they were built from."""

    distro: str
    kernel: str
    """The kernel, as `uname -r` prints it."""
    version: str
    """The version of the package nvidia-kernel-dkms, such as 535.261.03-1."""
    headers: str
    """The version of the package linux-headers-KERNEL."""
    name: str
    """The name that dkms has for them, such as nvidia-current."""
    seconds: int
    """The time that dkms needed for them."""

    @property
    def release(self) -> str:
        """The driver's version without Debian's revision, such as 535.261.03."""
        return self.version.rpartition("-")[0]

    @property
    def path(self) -> Path:
        """The folder with the modules, unsigned and with the compiler's names, and make.log."""
        return VM_CACHE / "modules" / f"{self.distro}-{self.kernel}-{self.version}"


def modules(distro: str, kernel: str, version: str, say: Say) -> Modules:
    """Returns the modules for a kernel and a version of nvidia-kernel-dkms, and first builds them if the cache has
    none.

    Needs root to build. Raises HostError when the mirror lacks the packages or the build fails.
    """
    found = cached(distro, kernel, version)
    if found is None:
        folder(VM_CACHE, 0o700)
        with cache_lock(VM_CACHE, f"modules of {distro}", say):
            found = cached(distro, kernel, version) or _build(distro, kernel, version, say)
    return found


def cached(distro: str, kernel: str, version: str) -> Modules | None:
    """Returns the modules of the cache; None if it has none."""
    manifest = VM_CACHE / "modules" / f"{distro}-{kernel}-{version}" / "manifest.json"
    return Modules(**json.loads(manifest.read_text(encoding="utf-8"))) if manifest.is_file() else None


def candidate(distro: str) -> str:
    """Returns the version of nvidia-kernel-dkms that the machine's mirror has for a distribution.

    Downloads the list of one section (100 KB) to a temporary folder. Raises HostError when the mirror has no such
    package.
    """
    with tempfile.TemporaryDirectory(prefix="rigwright-modules-") as name:
        work = Path(name)
        (work / "lists/partial").mkdir(parents=True)
        (work / "status").touch()
        signed = f"[arch=amd64 signed-by={debian.KEYRING}]"
        (work / "sources.list").write_text(_sources(distro, signed, "non-free"), encoding="utf-8")
        options = {
            "Dir::Etc::SourceList": work / "sources.list",
            "Dir::Etc::SourceParts": "-",
            "Dir::Etc::Preferences": "-",
            "Dir::Etc::PreferencesParts": "-",
            "Dir::State::Lists": work / "lists",
            "Dir::State::Status": work / "status",
            "Dir::Cache": work,
            "Acquire::Languages": "none",
            "APT::Sandbox::User": "root",
            "APT::Architecture": "amd64",
        }
        given = [part for key, value in options.items() for part in ("-o", f"{key}={value}")]
        run(["apt-get", "-q", *given, "update", "--error-on=any"], deadline=300)
        shown = run(["apt-cache", *given, "show", "nvidia-kernel-dkms"], check=False).stdout
    found = re.search(r"^Version: (\S+)$", shown, re.M)
    if not found:
        raise HostError("modules", f"the mirror has no nvidia-kernel-dkms for {distro}", "the section non-free")
    return found[1]


def _sources(distro: str, options: str = "", components: str = COMPONENTS) -> str:
    """Returns the text of sources.list for a distribution, with the mirror of this machine."""
    suite = DISTRIBUTIONS[distro].suite
    mirror = debian.mirror(suite)
    if mirror is None:
        raise HostError("modules", "no Debian archive in this machine's apt sources", "a machine with a Debian mirror")
    return "".join(f"deb {options} {mirror} {one} {components}\n" for one in (suite, f"{suite}-updates"))


def _build(distro: str, kernel: str, version: str, say: Say) -> Modules:
    """Makes the chroot, builds in it, and moves the modules to the cache in one step."""
    chroot = folder(VM_CACHE / "modules", 0o700) / f"{distro}.chroot"
    _remove(chroot)
    free_mib = shutil.disk_usage(chroot.parent).free >> 20
    if free_mib < ROOM_MIB:
        raise HostError("modules", f"{free_mib} MiB are free for {chroot}", f"{ROOM_MIB} MiB", "free some room")
    say(f"Building NVIDIA's modules {version} for {kernel}, once: 3 to 10 minutes, downloads 200 MB.")
    began = time.monotonic()
    try:
        debian.bootstrap(chroot, DISTRIBUTIONS[distro].suite, "ca-certificates", say)
        (chroot / "build-modules").write_bytes(SCRIPT.read_bytes())
        words = ["nice", "-n", "10", "sh", "/build-modules", _sources(distro), kernel, version, debian.proxy()]
        debian.in_chroot(chroot, words, say, lambda: _progress(chroot / "var/lib/dkms"))
        return _keep(distro, kernel, version, chroot / "modules", say, time.monotonic() - began)
    finally:
        _remove(chroot)


def _keep(distro: str, kernel: str, version: str, made: Path, say: Say, took_s: float) -> Modules:
    """Moves the modules from the chroot to the cache. Raises HostError when one is missing or still signed."""
    for name in NAMES:
        path = made / name
        if not path.is_file() or path.read_bytes().endswith(SIGNATURE):
            raise HostError("modules", f"{name} is missing or signed after the build", "five unsigned modules")
    read = {key: (made / key).read_text(encoding="utf-8").strip() for key in ("headers", "name", "seconds")}
    kept = Modules(distro, kernel, version, read["headers"], read["name"], int(read["seconds"]))
    for key in read:
        (made / key).unlink()
    (made / "manifest.json").write_text(json.dumps(asdict(kept), indent=1) + "\n", encoding="utf-8")
    _remove(kept.path)
    made.rename(kept.path)
    say(f"Modules built in {took_s:.0f} s, {kept.seconds} s of it by dkms: {kept.path}")
    return kept


def _progress(dkms: Path) -> str:
    """Returns how far the build in a dkms tree is; "" while it has not begun."""
    logs = sorted(dkms.glob("*/*/build/make.log")) if dkms.is_dir() else []
    if not logs:
        return ""
    lines = logs[0].read_text(encoding="utf-8", errors="replace").splitlines()
    tested, compiled = (sum(mark in line for line in lines) for mark in ("CONFTEST:", " -c -o "))
    return f"compiling: {tested} interfaces of the kernel tested, {compiled} C files compiled"


def _remove(path: Path) -> None:
    run(["rm", "-rf", "--one-file-system", path], deadline=300)
