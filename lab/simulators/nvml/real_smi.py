"""Downloads the real, unmodified nvidia-smi and libnvidia-ml from Debian's non-free packages.

apt downloads and verifies it with a private configuration, so the machine's own sources, lists and pins do not change.
The mirror is the one that the machine already uses. Only the files are kept; they are never part of the project.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rigwright.core.errors import HostError

CACHE = Path(__file__).resolve().parents[3] / ".lab" / "cache"
KEYRING = Path(__file__).resolve().parents[2] / "host" / "keys" / "debian-archive-keyring.gpg"
SUITES = {
    "470.256.02": ("bookworm",),
    "535.261.03": ("bookworm",),
    "550.163.01": ("trixie", "bookworm-backports"),
}
SHA256 = {
    "470.256.02": "066b6d921f24d24bdb1b572bbf2306bb4c3ffefe2f0e78f74297849dee0d28b5",
    "535.261.03": "d2ce2e23e90b1044e8cbf9e60c93baefc7abbc2faa43275528916d652e983db3",
    "550.163.01": "1593fa710f4be2074974f64fb33683701727f18bea11ca2be2fc71c7c711aec1",
}
"""SHA-256 of the programs, as in docs/develop/lab.md."""
TESLA = {"470.256.02": "nvidia-tesla-470-smi"}
"""Package names of versions that are not in the package nvidia-smi."""
COMPONENTS = "non-free"


def nvidia_smi(version: str, cache: Path = CACHE) -> Path:
    """Returns the nvidia-smi binary of a driver version; downloads it to `cache` if that has none with the right
    SHA-256.

    Raises HostError when no suite is known for the version, no mirror is found, or apt fails.
    """
    if version not in SUITES:
        raise HostError("nvidia-smi", f"no Debian suite is known for {version}", " or ".join(SUITES))
    binary = cache / "nvidia-smi" / version / "nvidia-smi"
    with _locked(cache / "nvidia-smi.lock"):
        if not binary.is_file() or hashlib.sha256(binary.read_bytes()).hexdigest() != SHA256[version]:
            _fetch(version, binary)
    return binary


def nvidia_library(version: str, cache: Path = CACHE) -> Path:
    """Returns NVIDIA's own libnvidia-ml.so.VERSION; downloads it to `cache` if that has none. It needs the real driver.

    Raises HostError when no suite is known for the version, no mirror is found, or apt fails.
    """
    if version not in SUITES:
        raise HostError("libnvidia-ml", f"no Debian suite is known for {version}", " or ".join(SUITES))
    library = cache / "nvidia-smi" / version / f"libnvidia-ml.so.{version}"
    with _locked(cache / "nvidia-smi.lock"), tempfile.TemporaryDirectory(prefix="libnvidia-ml.") as name:
        if not library.is_file():
            tree = _unpacked("libnvidia-ml1", version, SUITES[version][0], debian_mirror(cache), Path(name))
            library.parent.mkdir(parents=True, exist_ok=True)
            (found,) = tree.glob(f"usr/lib/*/nvidia/*/{library.name}")
            fresh = library.with_suffix(".new")
            shutil.copy2(found, fresh)
            fresh.replace(library)
    return library


def debian_mirror(cache: Path = CACHE) -> str:
    """Returns the Debian archive in this machine's apt sources, or the one that mmdebstrap used for the base image.

    Raises HostError when neither is known.
    """
    release = platform.freedesktop_os_release()
    suite = release.get("VERSION_CODENAME", "") if release.get("ID") == "debian" else ""
    targets = _run(["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages"])
    for line in targets.splitlines():
        uri, _, name = line.partition(" ")
        if suite and name == suite:
            return uri
    for sources in sorted(cache.glob("base-*/etc/apt/sources.list")):
        for line in sources.read_text().splitlines():
            words = [word for word in line.split() if not word.startswith("[") and not word.endswith("]")]
            if words[:1] == ["deb"] and len(words) > 2:
                return words[1]
    raise HostError("apt sources", "no Debian archive of this machine's release", "a Debian machine with its mirror")


def _fetch(version: str, binary: Path) -> None:
    """Downloads the binary from the first suite that has the version, and puts it in place in one step.

    Raises HostError when no suite has it or its SHA-256 is wrong.
    """
    mirror, refusals = debian_mirror(binary.parents[2]), []
    binary.parent.mkdir(parents=True, exist_ok=True)
    for suite in SUITES[version]:
        with tempfile.TemporaryDirectory(prefix="nvidia-smi.") as name:
            work = Path(name)
            try:
                tree = _unpacked(TESLA.get(version, "nvidia-smi"), version, suite, mirror, work)
            except HostError as error:
                refusals.append(f"{suite}: {error.found}")
                continue
            fresh = binary.with_suffix(".new")
            (found,) = tree.glob("usr/lib/nvidia/*/nvidia-smi")
            shutil.copy2(found, fresh)
            digest = hashlib.sha256(fresh.read_bytes()).hexdigest()
            if digest != SHA256[version]:
                raise HostError("nvidia-smi", f"{version} of {suite} has SHA-256 {digest}", SHA256[version])
            fresh.chmod(0o755)
            fresh.replace(binary)
            return
    raise HostError("nvidia-smi", f"{version} could not be fetched: {'; '.join(refusals)}", "network and a mirror")


def _unpacked(name: str, version: str, suite: str, mirror: str, work: Path) -> Path:
    """Returns the unpacked files of the package `name`. apt downloads it from `suite` and verifies it with the
    archive's key."""
    for folder in ("lists/partial", "archives/partial", "tree"):
        (work / folder).mkdir(parents=True)
    (work / "sources.list").write_text(f"deb [arch=amd64 signed-by={KEYRING}] {mirror} {suite} {COMPONENTS}\n")
    options = [
        f"Dir::Etc::SourceList={work}/sources.list",
        "Dir::Etc::SourceParts=-",
        "Dir::Etc::Preferences=-",
        "Dir::Etc::PreferencesParts=-",
        f"Dir::State::Lists={work}/lists",
        f"Dir::Cache={work}",
        f"Dir::Cache::Archives={work}/archives",
        "APT::Sandbox::User=root",
        "APT::Architecture=amd64",
        "Acquire::Languages=none",
    ]
    apt = ["apt-get", "-q", *(part for option in options for part in ("-o", option))]
    _run([*apt, "update", "--error-on=any"])
    _run([*apt, "download", f"{name}={version}-*"], cwd=work)
    (package,) = work.glob(f"{name}_*.deb")
    _run(["dpkg-deb", "-x", str(package), str(work / "tree")])
    return work / "tree"


def _run(argv: list[str], cwd: Path | None = None) -> str:
    """Returns the command's output. Raises HostError with the end of its stderr when it fails."""
    done = subprocess.run(
        argv, cwd=cwd, env={**os.environ, "LC_ALL": "C"}, capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode:
        raise HostError(argv[0], " ".join(done.stderr.split())[-400:] or f"exit {done.returncode}")
    return done.stdout


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds a lock that one process at a time can have."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
