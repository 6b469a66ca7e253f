"""The lab's signed package repositories, built from lab/archive/packages.

Ubuntu's and Debian's have suites and components, NVIDIA's is flat:

    archive/ubuntu/dists/jammy{,-updates,-security}   archive/ubuntu/pool; those of noble are in the same folders
    archive/debian/dists/bookworm{,-updates,...}      archive/debian/pool
    archive/cuda/ubuntu2204/x86_64                    `deb URL /`; it also has its key as 3bf863cc.pub, as NVIDIA's does
    archive/cuda-key-fingerprint                      40 hex digits of that key
    archive/toolkit/stable/deb/amd64                  NVIDIA Container Toolkit, flat, for every distribution;
    archive/toolkit/gpgkey
    archive/toolkit-key-fingerprint                   40 hex digits of its key
    archive/{ubuntu,debian}-archive-keyring.gpg       the keys that a host has from the start

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

from lab.archive import engines, ko_file, packages
from lab.archive.packages import Package, deb, signing
from lab.base.distros import Distro, distros
from lab.base.programs import run
from lab.simulators.cuda.build import build as build_cuda
from lab.simulators.nvml.build import build as build_nvml
from lab.simulators.nvml.real_smi import nvidia_smi
from lab.simulators.nvml.smi_forms import wrapper

LAB = Path(__file__).resolve().parents[1]
FLATS = {
    "ubuntu2204": "cuda/ubuntu2204/x86_64",
    "ubuntu2404": "cuda/ubuntu2404/x86_64",
    "debian12": "cuda/debian12/x86_64",
}
"""Maps each distribution to NVIDIA's repository for it."""
CUDA_KEY = "3bf863cc.pub"
TOOLKIT = "toolkit/stable/deb/amd64"
"""The path of the repository of NVIDIA Container Toolkit."""
ENGINES = ("noble", "bookworm")
"""The suites that have Debian's podman. That of jammy is 3.4.4, which knows no CDI; no stand-in replaces it."""
CUDA_VERSIONS = {"cuda": "@V@", "cudart": "@NVCC@", "cublas": "@BLAS@", "nccl": "@NCCL@+cuda@CUDA@"}
"""Maps a CUDA library to its version, in terms of the values of the package that contains it."""

Say = Callable[[str], None]


def kernel_values() -> dict[str, str]:
    """Returns the tables' values for the kernel: its version, and a version that is legal for a package."""
    kver = platform.release()
    number = re.match(r"[0-9.]+[0-9]", kver)
    return {"KVER": kver, "KPKG": f"{number[0] if number else '5.15.0'}-1.1"}


def archive(cache: Path, say: Say) -> Path:
    """Returns cache/archive. Builds it when its recipe (tables, files, library, kernel) has changed."""
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
    """Returns a digest of all inputs of the archive."""
    paths = [Path(__file__), LAB / "base" / "distros.yml", Path(ko_file.__file__), Path(engines.__file__)]
    folders = ("archive/packages", "simulators/guest_gpu", "simulators/nvml", "simulators/cuda")
    paths += [p for folder in folders for p in sorted((LAB / folder).rglob("*"))]
    return _digest(tuple((p, p.stat().st_mtime_ns) for p in paths if p.is_file() and "__pycache__" not in p.parts))


@lru_cache(maxsize=4)
def _digest(files: tuple[tuple[Path, int], ...]) -> str:
    """Returns a digest of the files and the kernel. The times in `files` make lru_cache see a changed file."""
    digest = hashlib.sha256(repr(sorted(kernel_values().items())).encode())
    for path, _ in files:
        digest.update(str(path.relative_to(LAB)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _build(out: Path, cache: Path) -> int:
    """Builds all repositories in `out`, and returns the number of packages."""
    keys = cache / "archive-keys"
    cuda_key = signing.Key.kept(keys / "cuda", "rigwright lab: cudatools stand-in")
    artefacts = cache / "artefacts"
    folder = artefacts / "keyring"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cuda.gpg").write_bytes(cuda_key.public)

    def built(what: str, values: dict[str, str]) -> Path:
        return folder / "cuda.gpg" if what == "cuda-keyring" else artefact(what, values, cache)

    table = packages.load(kernel_values())
    for package in table:  # one after the other, so that artefacts are built here and never by two threads at once
        for file in package.files:
            if file.kind == "built":
                built(file.content, package.values)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda p: deb.build(p, out / _folder(p), built), table))
    for repository in ("ubuntu", "debian"):
        key = signing.Key.kept(keys / repository, f"rigwright lab: {repository.title()} archive stand-in")
        own = [distro for distro in distros().values() if distro.repository == repository]
        podman = _linked(engines.engines(cache), out / repository / "pool/main/engines")
        python = _linked(engines.engines(cache, engines.PYTHON), out / repository / "pool/main/python")
        _suites(out / repository, [p for p in table if p.repository == repository], own, key, podman, python)
        (out / f"{repository}-archive-keyring.gpg").write_bytes(key.public)
    for name, flat in FLATS.items():
        _flat(out / flat, [p for p in table if p.repository == "cuda" and name in p.distros], out, cuda_key)
        (out / flat / CUDA_KEY).write_text(cuda_key.armored)
    (out / "cuda-key-fingerprint").write_text(cuda_key.fingerprint + "\n")
    toolkit_key = signing.Key.kept(keys / "toolkit", "rigwright lab: container toolkit stand-in")
    toolkit = [p for p in table if p.repository == "toolkit"]
    _flat(out / TOOLKIT, toolkit, out, toolkit_key, "NVIDIA CORPORATION")
    (out / "toolkit/gpgkey").write_text(toolkit_key.armored)
    (out / "toolkit-key-fingerprint").write_text(toolkit_key.fingerprint + "\n")
    return len(table)


def _linked(debs: list[Path], folder: Path) -> list[str]:
    """Links the files into `folder`, and returns their names."""
    folder.mkdir(parents=True)
    for deb_file in debs:
        os.link(deb_file, folder / deb_file.name)
    return [deb_file.name for deb_file in debs]


def artefact(what: str, values: dict[str, str], cache: Path) -> Path:
    """Returns a built file of a package with these values. Raises ValueError for an unknown artefact."""
    if what == "nvml":
        return build_nvml(values["V"], cache / "artefacts/nvml" / values["V"], cache)
    if what in CUDA_VERSIONS:
        version = packages.substitute(CUDA_VERSIONS[what], values)
        return build_cuda(what, version, cache / "artefacts" / what / version, cache)
    if what == "nvidia-smi-real":
        return nvidia_smi(values["SMI"], cache)
    if what == "nvidia-smi":
        return _reworded(values["V"], cache) or nvidia_smi(values["SMI"], cache)
    raise ValueError(f"no artefact is called {what!r}")


def _reworded(version: str, cache: Path) -> Path | None:
    """Returns the file of a wrapper that prints what nvidia-smi of this version prints; None if the real program
    does."""
    script = wrapper(version)
    if script is None:
        return None
    path = cache / "artefacts" / "nvidia-smi" / version
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script)
    return path


def _folder(package: Package) -> str:
    """Returns a package's folder below the archive: in the pool as distributions arrange it, or NVIDIA's folder."""
    if package.repository in ("cuda", "toolkit"):
        return f"{package.repository}/pool"
    source = package.control.get("Source", package.name)
    letter = source[:4] if source.startswith("lib") else source[0]
    return f"{package.repository}/pool/{package.component}/{letter}/{source}"


def _suites(
    root: Path, table: list[Package], own: list[Distro], key: signing.Key, podman: list[str], python: list[str]
) -> None:
    """Writes dists/SUITE with an index per component and a signed Release, for all suites of the distributions.

    `podman`, `python`: files of the pool that are in the component main of the suites of ENGINES, and of the first
    suite of each distribution, besides the table's packages.
    """
    text = run(["env", "-C", root, "apt-ftparchive", "packages", "pool"]).stdout
    stanzas = {
        m[1]: s for s in text.strip().split("\n\n") if (m := re.search(r"^Filename: pool/.*/([^/\n]+)$", s, re.M))
    }
    for distro in own:
        title = root.name.title()
        for suite in distro.suites:
            for component in distro.components.split():
                here = [stanzas[p.deb] for p in table if suite in p.suites and p.component == component]
                if component == "main":
                    here += [stanzas[name] for name in podman if suite in ENGINES]
                    here += [stanzas[name] for name in python if suite == distro.suites[0]]
                _index(root / "dists" / suite / component / "binary-amd64", "".join(f"{s}\n\n" for s in sorted(here)))
            _release(
                root / "dists" / suite, key, Origin=title, Label=title, Suite=suite,
                Version=distro.release.get("VERSION_ID", "12"), Codename=distro.suites[0], Architectures="amd64",
                Components=distro.components, Description=f"rigwright lab: simulated {title}",
            )  # fmt: skip


def _flat(root: Path, table: list[Package], out: Path, key: signing.Key, label: str = "NVIDIA CUDA") -> None:
    """Writes NVIDIA's layout: packages, index and Release in one folder."""
    root.mkdir(parents=True)
    for package in table:
        os.link(out / _folder(package) / package.deb, root / package.deb)
    text = run(["env", "-C", root, "apt-ftparchive", "packages", "."]).stdout
    _index(root, text)
    _release(root, key, Origin="NVIDIA", Label=label, Architectures="amd64 all")


def _index(folder: Path, text: str) -> None:
    """Writes Packages and Packages.gz to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "Packages").write_text(text)
    (folder / "Packages.gz").write_bytes(gzip.compress(text.encode(), 6, mtime=0))


def _release(folder: Path, key: signing.Key, **fields: str) -> None:
    """Writes and signs Release, Release.gpg and InRelease of `folder`."""
    options = [word for k, v in fields.items() for word in ("-o", f"APT::FTPArchive::Release::{k}={v}")]
    text = run(["env", "-C", folder, "apt-ftparchive", *options, "release", "."]).stdout
    (folder / "Release").write_text(text)
    (folder / "InRelease").write_text(key.clearsigned(text))
    (folder / "Release.gpg").write_text(key.detached(text))
