"""The simulated CUDA libraries as wheels, named like NVIDIA's: what `--wheels` takes for a simulated host."""

from __future__ import annotations

import tempfile
import zipfile
from pathlib import Path

from lab.cuda.build import build
from rigwright.catalogue import nccl

PARTS = {"nccl": "nvidia-nccl-cu12", "cudart": "nvidia-cuda-runtime-cu12", "cublas": "nvidia-cublas-cu12"}
VERSIONS = {"nccl": "2.21.5+cuda12.4", "cudart": "12.4.127", "cublas": "12.4.5"}


def make_wheels(out: Path, cache: Path) -> Path:
    """`out` holds a wheel of each simulated library, with the versions of the catalogue's first set. Needs gcc."""
    wanted = next(iter(nccl.sets().values())).wheels
    out.mkdir(parents=True, exist_ok=True)
    for name, package in PARTS.items():
        stem = package.replace("-", "_")
        version = wanted[package].version
        target = out / f"{stem}-{version}-py3-none-manylinux2014_x86_64.whl"
        numbers = f"{VERSIONS[name]}.8" if name == "cublas" else VERSIONS[name]
        with tempfile.TemporaryDirectory() as work:
            made = build(name, numbers, Path(work), cache)
            soname = next(path.name for path in Path(work).iterdir() if path.is_symlink())
            entry = zipfile.ZipInfo(f"nvidia/{name}/lib/{soname}", (2026, 1, 1, 0, 0, 0))
            if _holds(target, entry.filename, made.read_bytes()):
                continue
            fresh = out / f".{stem}.new"
            with zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr(entry, made.read_bytes(), zipfile.ZIP_DEFLATED)
            fresh.replace(target)
    return out


def _holds(wheel: Path, name: str, content: bytes) -> bool:
    """Whether a wheel is there and holds that file, and no other."""
    if not wheel.exists():
        return False
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist() == [name] and archive.read(name) == content
