"""The simulated CUDA libraries as wheels, named like NVIDIA's: what `--wheels` takes for a simulated host."""

from __future__ import annotations

import tempfile
import zipfile
from pathlib import Path

from lab.cuda.build import build, soname
from rigwright.catalogue import nccl

PARTS = {"nccl": "nvidia-nccl-cu12", "cudart": "nvidia-cuda-runtime-cu12", "cublas": "nvidia-cublas-cu12"}
VERSIONS = {"nccl": "2.21.5+cuda12.4", "cudart": "12.4.127", "cublas": "12.4.5"}


def make_wheels(out: Path, cache: Path) -> Path:
    """`out` holds a wheel of each simulated library, with the versions of the catalogue's first set.

    One of other sources is made anew. Needs gcc.
    """
    wanted = next(iter(nccl.sets().values())).wheels
    out.mkdir(parents=True, exist_ok=True)
    for name, package in PARTS.items():
        stem = package.replace("-", "_")
        version = wanted[package].version
        numbers = f"{VERSIONS[name]}.8" if name == "cublas" else VERSIONS[name]
        target = out / f"{stem}-{version}-py3-none-manylinux2014_x86_64.whl"
        with tempfile.TemporaryDirectory() as work:
            made = build(name, numbers, Path(work), cache).read_bytes()
        inner = f"nvidia/{name}/lib/{soname(name, numbers)}"
        if not _holds(target, inner, made):
            fresh = out / f".{stem}.new"
            with zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED) as archive:
                entry = zipfile.ZipInfo(inner, (2026, 1, 1, 0, 0, 0))
                archive.writestr(entry, made, zipfile.ZIP_DEFLATED)
            fresh.replace(target)
    return out


def _holds(wheel: Path, inner: str, content: bytes) -> bool:
    """Whether a wheel is there and has that library, and no other."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            return archive.namelist() == [inner] and archive.read(inner) == content
    except (OSError, zipfile.BadZipFile):
        return False
