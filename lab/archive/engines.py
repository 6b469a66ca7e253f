"""Debian's own packages of the container engines and of Python environments, for the simulated archives. They are
downloaded once and not changed.

apt verifies them with the archive's key, in a private configuration: the machine's own sources, lists and packages do
not change.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

from lab.base.lock import cache_lock
from lab.simulators.nvml.real_smi import KEYRING, debian_mirror
from rigwright.core.errors import HostError

SUITE = "bookworm"
PACKAGES = (
    "podman",
    "conmon",
    "crun",
    "golang-github-containers-common",
    "golang-github-containers-image",
    "libgpgme11",
    "libsubid4",
    "libyajl2",
    "netavark",
    "uidmap",
)
"""podman and what it needs besides the base image, without recommended packages."""

PYTHON = (
    "python3-venv",
    "python3.11-venv",
    "python3-pip-whl",
    "python3-setuptools-whl",
    "python3-distutils",
    "python3-lib2to3",
)
"""What makes environments of the Python in the base image, 3 MB."""

DOCKER = (
    "docker.io",
    "containerd",
    "runc",
    "tini",
    "iptables",
    "libdevmapper1.02.1",
    "dmsetup",
    "libip4tc2",
    "libip6tc2",
    "libmnl0",
    "libnetfilter-conntrack3",
    "libnfnetlink0",
    "libnftnl11",
    "libxtables12",
    "netbase",
)
"""docker.io and what it needs besides the base image, 65 MB. It is in no archive of the lab: a test gives it to its
host as a source."""


def engines(cache: Path, packages: tuple[str, ...] = PACKAGES) -> list[Path]:
    """Returns the .deb files of these packages, in `cache`. Downloads them when it has none: 13 MB for podman. Raises
    HostError when apt fails."""
    folder = cache / f"engines-{hashlib.sha256(repr((SUITE, packages)).encode()).hexdigest()[:12]}"
    if not folder.is_dir():
        with cache_lock(cache, "engines", print):
            if not folder.is_dir():
                _download(folder, packages, debian_mirror(cache))
    return sorted(folder.glob("*.deb"))


def _download(folder: Path, packages: tuple[str, ...], mirror: str) -> None:
    """Downloads the packages to `folder`, which appears when all are there."""
    with tempfile.TemporaryDirectory(prefix=f"{folder.name}.", dir=folder.parent) as name:
        work = Path(name)
        for inner in ("lists/partial", "archives/partial", "debs"):
            (work / inner).mkdir(parents=True)
        (work / "sources.list").write_text(f"deb [arch=amd64 signed-by={KEYRING}] {mirror} {SUITE} main\n")
        options = [
            f"Dir::Etc::SourceList={work}/sources.list",
            "Dir::Etc::SourceParts=-",
            "Dir::Etc::Preferences=-",
            "Dir::Etc::PreferencesParts=-",
            f"Dir::State::Lists={work}/lists",
            f"Dir::Cache={work}",
            "APT::Sandbox::User=root",
            "APT::Architecture=amd64",
        ]
        apt = ["apt-get", "-q", *(part for option in options for part in ("-o", option))]
        _run([*apt, "update", "--error-on=any"], work)
        _run([*apt, "download", *packages], work / "debs")
        (work / "debs").rename(folder)


def _run(argv: list[str], folder: Path) -> None:
    environment = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise HostError("engines", " ".join(done.stderr.split())[-400:] or f"{argv[0]}: exit {done.returncode}")
