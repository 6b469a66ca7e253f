"""The signed package repositories of the lab: Ubuntu's and Debian's (suites and components), NVIDIA's (flat), from lab/packages.

    archive/ubuntu/dists/jammy{,-updates,-security}   archive/ubuntu/pool; noble's beside them
    archive/debian/dists/bookworm{,-updates,...}      archive/debian/pool
    archive/cuda/ubuntu2204/x86_64                    `deb URL /`; its key is published there as 3bf863cc.pub, as in life
    archive/cuda-key-fingerprint                      40 hex digits of that key
    archive/{ubuntu,debian}-archive-keyring.gpg       what a host has in place from the start

Each repository has its own key, generated once and kept in cache/archive-keys.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import os
import platform
import re
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

from lab import mkko, packages
from lab.cuda.build import build as build_cuda
from lab.distros import Distro, distros
from lab.nvml.build import build as build_nvml
from lab.nvml.real_smi import nvidia_smi
from lab.packages import Package, deb, signing
from lab.programs import run

LAB = Path(__file__).resolve().parent
FLATS = {
    "ubuntu2204": "cuda/ubuntu2204/x86_64",
    "ubuntu2404": "cuda/ubuntu2404/x86_64",
    "debian12": "cuda/debian12/x86_64",
}
"""NVIDIA's repository for each distribution."""
CUDA_KEY = "3bf863cc.pub"
CUDA_VERSIONS = {"cuda": "@V@", "cudart": "@NVCC@", "cublas": "@BLAS@", "nccl": "@NCCL@+cuda@CUDA@"}
"""The version of a CUDA library, in the values of the package that has it."""

Say = Callable[[str], None]


def kernel_values() -> dict[str, str]:
    """What the tables need to know of the kernel: its version, and one that is legal as a package version."""
    kver = platform.release()
    number = re.match(r"[0-9.]+[0-9]", kver)
    return {"KVER": kver, "KPKG": f"{number[0] if number else '5.15.0'}-1.1"}


def archive(cache: Path, say: Say) -> Path:
    """cache/archive, built anew when its recipe (tables, files, library, kernel) is another than that it was built from."""
    target = cache / "archive"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "archive.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        recipe = _recipe()
        mark = target / ".recipe"
        if not (mark.is_file() and mark.read_text() == recipe):
            started = time.monotonic()
            partial = cache / "archive.partial"
            shutil.rmtree(partial, ignore_errors=True)
            count = _build(partial, cache)
            (partial / ".recipe").write_text(recipe)
            shutil.rmtree(target, ignore_errors=True)
            partial.rename(target)
            say(f"Package archives built: {count} packages in {time.monotonic() - started:.0f} s.")
    return target


def _recipe() -> str:
    """A digest of everything the archive is made from."""
    paths = [LAB / "archive.py", LAB / "distros.yml", Path(mkko.__file__)]
    paths += [p for d in ("packages", "guest_gpu", "nvml", "cuda") for p in sorted((LAB / d).rglob("*"))]
    return _digest(tuple((p, p.stat().st_mtime_ns) for p in paths if p.is_file() and "__pycache__" not in p.parts))


@lru_cache(maxsize=4)
def _digest(files: tuple[tuple[Path, int], ...]) -> str:
    """Of the files as they were at those moments, and of the kernel."""
    digest = hashlib.sha256(repr(sorted(kernel_values().items())).encode())
    for path, _ in files:
        digest.update(str(path.relative_to(LAB)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _build(out: Path, cache: Path) -> int:
    """Both repositories in `out`; the number of packages."""
    keys = cache / "archive-keys"
    cuda_key = signing.Key.kept(keys / "cuda", "rigwright lab: cudatools stand-in")
    artefacts = cache / "artefacts"
    folder = artefacts / "keyring"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cuda.gpg").write_bytes(cuda_key.public)

    def built(what: str, values: dict[str, str]) -> Path:
        return folder / "cuda.gpg" if what == "cuda-keyring" else artefact(what, values, cache)

    table = packages.load(kernel_values())
    for package in table:  # one after the other: the artefacts are made here, not by two threads at once
        for file in package.files:
            if file.kind == "built":
                built(file.content, package.values)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda p: deb.build(p, out / _folder(p), built), table))
    for repository in ("ubuntu", "debian"):
        key = signing.Key.kept(keys / repository, f"rigwright lab: {repository.title()} archive stand-in")
        own = [distro for distro in distros().values() if distro.repository == repository]
        _suites(out / repository, [p for p in table if p.repository == repository], own, key)
        (out / f"{repository}-archive-keyring.gpg").write_bytes(key.public)
    for name, flat in FLATS.items():
        _flat(out / flat, [p for p in table if p.repository == "cuda" and name in p.distros], out, cuda_key)
        (out / flat / CUDA_KEY).write_text(cuda_key.armored)
    (out / "cuda-key-fingerprint").write_text(cuda_key.fingerprint + "\n")
    return len(table)


def artefact(what: str, values: dict[str, str], cache: Path) -> Path:
    """A built file of a package with these values. Raises ValueError for one that nobody can build."""
    if what == "nvml":
        return build_nvml(values["V"], cache / "artefacts/nvml" / values["V"], cache)
    if what in CUDA_VERSIONS:
        version = packages.substitute(CUDA_VERSIONS[what], values)
        return build_cuda(what, version, cache / "artefacts" / what / version, cache)
    if what == "nvidia-smi":
        return nvidia_smi(values["SMI"], cache)
    raise ValueError(f"no artefact is called {what!r}")


def _folder(package: Package) -> str:
    """Where a package's .deb lies below the archive: the pool as distributions lay it out, or a folder for NVIDIA's."""
    if package.repository == "cuda":
        return "cuda/pool"
    source = package.control.get("Source", package.name)
    letter = source[:4] if source.startswith("lib") else source[0]
    return f"{package.repository}/pool/{package.component}/{letter}/{source}"


def _suites(root: Path, table: list[Package], own: list[Distro], key: signing.Key) -> None:
    """dists/SUITE with an index per component and a signed Release, for all suites of the distributions."""
    text = run(["env", "-C", root, "apt-ftparchive", "packages", "pool"]).stdout
    stanzas = {
        m[1]: s for s in text.strip().split("\n\n") if (m := re.search(r"^Filename: pool/.*/([^/\n]+)$", s, re.M))
    }
    for distro in own:
        title = root.name.title()
        for suite in distro.suites:
            for component in distro.components.split():
                here = [stanzas[p.deb] for p in table if suite in p.suites and p.component == component]
                _index(root / "dists" / suite / component / "binary-amd64", "".join(f"{s}\n\n" for s in sorted(here)))
            _release(
                root / "dists" / suite, key, Origin=title, Label=title, Suite=suite,
                Version=distro.release.get("VERSION_ID", "12"), Codename=distro.suites[0], Architectures="amd64",
                Components=distro.components, Description=f"rigwright lab: simulated {title}",
            )  # fmt: skip


def _flat(root: Path, table: list[Package], out: Path, key: signing.Key) -> None:
    """NVIDIA's layout: packages, index and Release in one folder."""
    root.mkdir(parents=True)
    for package in table:
        os.link(out / _folder(package) / package.deb, root / package.deb)
    text = run(["env", "-C", root, "apt-ftparchive", "packages", "."]).stdout
    _index(root, text)
    _release(root, key, Origin="NVIDIA", Label="NVIDIA CUDA", Architectures="amd64 all")


def _index(folder: Path, text: str) -> None:
    """Packages and Packages.gz in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "Packages").write_text(text)
    (folder / "Packages.gz").write_bytes(gzip.compress(text.encode(), 6, mtime=0))


def _release(folder: Path, key: signing.Key, **fields: str) -> None:
    """Release, Release.gpg and InRelease of `folder`, signed."""
    options = [word for k, v in fields.items() for word in ("-o", f"APT::FTPArchive::Release::{k}={v}")]
    text = run(["env", "-C", folder, "apt-ftparchive", *options, "release", "."]).stdout
    (folder / "Release").write_text(text)
    (folder / "InRelease").write_text(key.clearsigned(text))
    (folder / "Release.gpg").write_text(key.detached(text))
