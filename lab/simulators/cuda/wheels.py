"""Builds wheels of the simulated CUDA libraries, named like NVIDIA's, for `--wheels` with a simulated host."""

from __future__ import annotations

import tempfile
import zipfile
from pathlib import Path

from lab.simulators.cuda.build import build
from rigwright.catalogue import nccl_wheels

PARTS = {"nvidia-nccl": "nccl", "nvidia-cuda-runtime": "cudart", "nvidia-cublas": "cublas"}


def make_wheels(out: Path, cache: Path) -> Path:
    """Writes a wheel of every library in the catalogue's sets, with its version, to `out`, and returns `out`.

    Needs gcc.
    """
    out.mkdir(parents=True, exist_ok=True)
    for cuda, one in nccl_wheels.sets().items():
        for package, wheel in one.wheels.items():
            name = PARTS[package.rpartition("-")[0]]
            version = f"{wheel.version}+{cuda}" if name == "nccl" else wheel.version
            target = out / f"{package.replace('-', '_')}-{wheel.version}-py3-none-manylinux2014_x86_64.whl"
            with tempfile.TemporaryDirectory() as work:
                made = build(name, version, Path(work), cache).read_bytes()
                soname = next(path.name for path in Path(work).iterdir() if path.is_symlink())
            entry = zipfile.ZipInfo(f"nvidia/{name}/lib/{soname}", (2026, 1, 1, 0, 0, 0))
            if _holds(target, entry.filename, made):
                continue
            fresh = out / f".{target.name}.new"
            with zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr(entry, made, zipfile.ZIP_DEFLATED)
            fresh.replace(target)
    return out


def _holds(wheel: Path, name: str, content: bytes) -> bool:
    """Whether a wheel exists and contains only that file with that content."""
    if not wheel.exists():
        return False
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist() == [name] and archive.read(name) == content
