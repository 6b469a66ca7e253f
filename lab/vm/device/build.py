"""Compiles the simulated GPU (gpu.c) against the header files of exactly the installed QEMU, and caches the library.

The structures in QEMU's header files differ between versions and are changed by Debian's patches, so apt downloads and
verifies the source of the installed version with a private configuration; the machine's own sources, lists and pins do
not change. A library in the cache has the version and a hash of the source in its name, and is never overwritten: a
running QEMU maps it.
"""

from __future__ import annotations

import hashlib
import platform
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lab.base import debian
from lab.base.lock import cache_lock
from lab.base.paths import VM_CACHE, folder
from lab.base.programs import run
from rigwright.core.errors import HostError, UsageError

HERE = Path(__file__).resolve().parent
QEMU = "qemu-system-x86_64"
RELEASES = ((7, 2), (10, 0))
"""The releases of QEMU that gpu.c was compiled for: those of Debian 12 and 13."""
GLIB = {7: ("libglib2.0-dev",), 10: ("libglib2.0-dev", "libgio-2.0-dev")}
"""The packages with GLib's header files, in the Debian release of each QEMU."""
PROGRAMS = {"gcc": "gcc libc6-dev", "dpkg-source": "dpkg-dev", "patch": "patch", "xz": "xz-utils"}
ROOM_MIB = 700
"""The room that the unpacked source needs for half a minute; the library has 40 KiB."""
FLAGS = (
    "-shared",
    "-fPIC",
    "-O2",
    "-g0",
    "-std=gnu11",
    "-Wall",
    "-Wl,-z,lazy",
    "-D_GNU_SOURCE",
    "-D_FILE_OFFSET_BITS=64",
)

Say = Callable[[str], None]


@dataclass(frozen=True)
class Version:
    """The installed QEMU: its release, and the version of its package as it prints it ("Debian
    1:7.2+dfsg-7+deb12u18+b3")."""

    major: int
    minor: int
    package: str

    @property
    def source(self) -> str:
        """The version of the source package: without the number of a rebuild."""
        return re.sub(r"\+b\d+$", "", self.package.rpartition(" ")[2])


def environment(say: Say) -> dict[str, str]:
    """Returns the environment variable with which QEMU knows the devices of gpu.c. Raises HostError and UsageError as
    library."""
    return {"LD_PRELOAD": str(library(say))}


def fingerprint() -> str:
    """Returns the name of the library for the installed QEMU: a recorded state of a machine fits no other."""
    return _name(version())


def library(say: Say, cache: Path = VM_CACHE) -> Path:
    """Returns the compiled library for the installed QEMU, and first compiles it if the cache has none.

    Raises UsageError for a QEMU that gpu.c does not know and for a missing program, HostError when a source package
    cannot be downloaded or does not compile.
    """
    found = version()
    path = folder(cache / "device") / _name(found)
    if set(str(path)) & set(": "):
        raise UsageError("lab", f"{path}: a colon or a space, which ends a name in LD_PRELOAD", "a path without")
    if not path.is_file():
        with cache_lock(cache / "device", "device", say):
            if not path.is_file():
                _build(found, path, say)
    return path


def version() -> Version:
    """Returns the version of the installed QEMU. Raises UsageError if there is none, or one that gpu.c does not
    know."""
    if shutil.which(QEMU) is None:
        raise UsageError("lab", f"this machine has no {QEMU}", "QEMU", "sudo apt-get install qemu-system-x86")
    printed = run([QEMU, "--version"]).stdout.splitlines()[:1]
    found = re.match(
        r"QEMU emulator version (\d{1,3})\.(\d{1,3})[.\d]* \(([^()]{1,100})\)", printed[0] if printed else ""
    )
    known = " or ".join(f"{major}.{minor}" for major, minor in RELEASES)
    if found is None:
        raise UsageError("QEMU", f"{' '.join(printed)!r}: not a package of Debian", f"QEMU {known} of Debian")
    if (int(found[1]), int(found[2])) not in RELEASES or platform.machine() != "x86_64":
        raise UsageError(
            "QEMU",
            f"version {found[1]}.{found[2]} on {platform.machine()}, for which the simulated GPU is not written",
            f"QEMU {known} of Debian 12 or 13 on x86_64",
            "sudo .venv/bin/invoke lab.up without --vm",
        )
    return Version(int(found[1]), int(found[2]), found[3])


def _name(found: Version) -> str:
    """Returns the library's file name."""
    digest = hashlib.sha256(repr((found, FLAGS)).encode())
    for path in (HERE / "gpu.c", HERE / "config-host.h"):
        digest.update(path.read_bytes())
    return f"gpu-{re.sub(r'[^0-9A-Za-z.+~-]', '_', found.source)}-{digest.hexdigest()[:16]}.so"


def _build(found: Version, path: Path, say: Say) -> None:
    """Downloads, unpacks, compiles and tries the library, and puts it in place in one step."""
    missing = [package for name, package in PROGRAMS.items() if shutil.which(name) is None]
    if missing:
        raise UsageError(
            "lab",
            "the simulated GPU cannot be compiled",
            "a compiler and dpkg-dev",
            f"sudo apt-get install {' '.join(missing)}",
        )
    free_mib = shutil.disk_usage(path.parent).free >> 20
    if free_mib < ROOM_MIB:
        raise HostError("lab", f"{free_mib} MiB are free in {path.parent}", f"{ROOM_MIB} MiB", "free some room")
    say(f"Compiling the simulated GPU for QEMU {found.source}, once: half a minute, downloads 50 MB.")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="build-", dir=path.parent) as name:
        work = Path(name)
        _download(found, work)
        made = _compile(found, *_headers(work), work)
        run(["env", f"LD_PRELOAD={made}", QEMU, "-device", "rigwright-gpu,help"])
        made.chmod(0o644)
        made.rename(path)
    say(f"Compiled in {time.monotonic() - began:.0f} s.")


def _sources() -> str:
    """Returns sources.list with the Debian archives of this machine's own release. Raises HostError without one."""
    codename = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    suites = {codename, f"{codename}-updates", f"{codename}-security", f"{codename}-backports"}
    targets = run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages"]
    ).stdout
    archives = [line.split() for line in targets.splitlines()]
    lines = [
        f"{kind} [signed-by={debian.KEYRING}] {words[0]} {words[1]} main\n"
        for words in archives
        if len(words) == 3 and words[1] in suites and words[2] == "main" and words[0].startswith("http")
        for kind in ("deb", "deb-src")
    ]
    if not lines:
        raise HostError(
            "apt sources", f"no archive of Debian {codename or '(unknown release)'}", "a Debian machine with its mirror"
        )
    return "".join(dict.fromkeys(lines))


def _download(found: Version, work: Path) -> None:
    """Downloads the source of QEMU and the header files of GLib to `work`. Raises HostError."""
    (work / "apt/lists/partial").mkdir(parents=True)
    (work / "sources.list").write_text(_sources(), encoding="utf-8")
    options = {
        "Dir::Etc::SourceList": work / "sources.list",
        "Dir::Etc::SourceParts": "-",
        "Dir::Etc::Preferences": "-",
        "Dir::Etc::PreferencesParts": "-",
        "Dir::State::Lists": work / "apt/lists",
        "Dir::Cache": work / "apt",
        "Acquire::Languages": "none",
        "APT::Sandbox::User": "root",
    }
    given = [part for key, value in options.items() for part in ("-o", f"{key}={value}")]
    apt = ["env", f"--chdir={work}", "LC_ALL=C", "apt-get", "-q", *given]
    updated = run([*apt, "update"], deadline=300, check=False)
    fetched = run([*apt, "source", "--download-only", f"qemu={found.source}"], deadline=600, check=False)
    if fetched.returncode != 0:
        words = " / ".join((updated.stderr + fetched.stderr).strip().splitlines()[-3:])
        raise HostError(
            "lab",
            f"no source of QEMU {found.source}: {words}",
            "the Debian mirror of this machine's apt sources with the source of the installed version",
            "sudo apt-get update && sudo apt-get install --only-upgrade qemu-system-x86",
        )
    run([*apt, "download", *GLIB[found.major]], deadline=300)


def _headers(work: Path) -> tuple[Path, Path, Path]:
    """Unpacks what was downloaded. Returns the folders of QEMU's source with Debian's patches, of the headers that
    QEMU's build generates, and of GLib."""
    (description,) = work.glob("qemu_*.dsc")
    source, generated = work / "qemu", work / "generated"
    run(["dpkg-source", "--no-check", "-x", description, source], deadline=300)  # apt verified the files
    schema = source / "qapi/qapi-schema.json"
    run([sys.executable, "-B", source / "scripts/qapi-gen.py", "-o", generated / "qapi", "-b", schema], deadline=120)
    shutil.copy(HERE / "config-host.h", generated)
    (generated / "config-poison.h").touch()
    for package in sorted(work.glob("*.deb")):
        run(["dpkg-deb", "-x", package, work / "glib"])
    return source, generated, work / "glib/usr"


def _compile(found: Version, source: Path, generated: Path, glib: Path, work: Path) -> Path:
    """Returns the compiled library in `work`. Raises HostError with the compiler's words."""
    made = work / "gpu.so"
    folders = [
        generated, generated / "qapi", source / "include", source, source / "tcg/i386",
        source / "host/include/x86_64", source / "host/include/generic",
        glib / "include/glib-2.0", *sorted(glib.glob("lib/*/glib-2.0/include")),
    ]  # fmt: skip
    at_least = f"-DQEMU_AT_LEAST(major,minor)=({found.major * 100 + found.minor}>=(major)*100+(minor))"
    included = [part for one in folders for part in ("-isystem", str(one))]
    run(
        ["gcc", *FLAGS, at_least, f'-DBUILT_FOR="{found.package}"', *included, "-o", made, HERE / "gpu.c"], deadline=120
    )
    return made
