"""The simulated CUDA libraries as wheels, named like NVIDIA's: what `--wheels` takes for a simulated host."""

from __future__ import annotations

import tempfile
import zipfile
from pathlib import Path

from lab.cuda.build import build
from rigwright.catalogue import nccl

PARTS = {"nvidia-nccl": "nccl", "nvidia-cuda-runtime": "cudart", "nvidia-cublas": "cublas"}


def make_wheels(out: Path, cache: Path) -> Path:
    """`out` holds a wheel of every library of the catalogue's sets, in its version. Needs gcc."""
    out.mkdir(parents=True, exist_ok=True)
    for cuda, one in nccl.sets().items():
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
    """Whether a wheel is there and holds that file, and no other."""
    if not wheel.exists():
        return False
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist() == [name] and archive.read(name) == content
