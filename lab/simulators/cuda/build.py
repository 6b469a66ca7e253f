"""Compiles the C sources of this folder: libcuda.so.1, libcudart.so.12 (13, 11.0), libcublas.so.12, libnccl.so.2."""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from lab.simulators import guest_libc, objects
from rigwright.core.errors import HostError

HERE = Path(__file__).resolve().parent
NVML = HERE.parent / "nvml"
STATE = (
    "activity clients clocks conf dynamics fabric gate gpu handles identity kernel nvlink physics rails supply system "
    "ticks topology"
).split()
"""Source files of the simulated NVML that libcuda contains too, so both report the same values."""
FLAGS = (
    "-D_GNU_SOURCE",
    "-shared",
    "-fPIC",
    "-O2",
    "-g0",
    "-std=gnu11",
    "-pthread",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wl,-z,defs",
    f"-Wl,--version-script={HERE / 'exports.map'}",
)


@dataclass(frozen=True)
class Library:
    """One of the four libraries: folder, soname (with MAJOR for the major version), regular expression of versions."""

    folder: str
    soname: str
    version: str


LIBRARIES = {
    "cuda": Library("driver", "libcuda.so.1", r"(\d+)\.(\d+)(\.\d+)?"),
    "cudart": Library("runtime", "libcudart.so.MAJOR", r"(\d+)\.(\d+)\.(\d+)"),
    "cublas": Library("blas", "libcublas.so.MAJOR", r"(\d+)\.(\d+)\.(\d+)\.(\d+)"),
    "nccl": Library("nccl", "libnccl.so.2", r"(\d+)\.(\d+)\.(\d+)\+cuda(\d+\.\d+)"),
}


def build(name: str, version: str, out: Path, cache: Path) -> Path:
    """Writes libNAME.so.VERSION and the link with its soname into `out`, and returns its path.

    The format of an NCCL version is 2.21.5+cuda12.4.

    The library is made once per source content and version, then copied from `cache`. Needs gcc, but no NVIDIA
    headers. Raises HostError with the compiler's output if compilation fails, and for an invalid version.
    """
    library = LIBRARIES[name]
    parts = re.fullmatch(library.version, version)
    if not parts:
        raise HostError(library.soname, f"{version!r} is no version of it", library.version)
    defines = _defines(name, version, parts)
    sources = _sources(name, library)
    soname = _soname(library, parts)
    built = cache / "cuda" / f"{_content_hash([soname, *defines], sources)}.so"
    if not built.exists():
        built.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=built.parent) as work:
            _compile(soname, defines, sources, Path(work), cache).replace(built)
    out.mkdir(parents=True, exist_ok=True)
    target = out / f"lib{name}.so.{version.partition('+')[0]}"
    fresh = target.with_name(f".{target.name}.new")
    shutil.copyfile(built, fresh)
    fresh.chmod(0o644)
    fresh.replace(target)
    link = out / soname
    link.unlink(missing_ok=True)
    link.symlink_to(target.name)
    return target


def _soname(library: Library, parts: re.Match[str]) -> str:
    """Returns the soname of a version. All releases of the CUDA 11 runtime use 11.0."""
    major = "11.0" if parts[1] == "11" and library.folder == "runtime" else parts[1]
    return library.soname.replace("MAJOR", major)


def _defines(name: str, version: str, parts: re.Match[str]) -> list[str]:
    """Returns the compiler options that define the version."""
    if name == "cuda":
        return [f'-DLIBRARY_VERSION="{version}"']
    if name == "nccl":
        return [f'-DNCCL_VERSION="{version.partition("+")[0]}"', f'-DNCCL_CUDA="{parts[4]}"']
    major, minor = int(parts[1]), int(parts[2])
    if name == "cudart":
        return [f"-DCUDART_VERSION={1000 * major + 10 * minor}"]
    return [f"-DCUBLAS_VERSION={10000 * major + 100 * minor + int(parts[3])}"]


def _sources(name: str, library: Library) -> list[Path]:
    """Returns the C files of one library."""
    own = sorted((HERE / library.folder).glob("*.c"))
    if name == "cuda":
        return [*own, *(NVML / f"{part}.c" for part in STATE)]
    errors = [HERE / "driver" / "errors.c"] if name == "cudart" else []
    return [*own, HERE / "loader.c", *errors]


def _compile(soname: str, defines: list[str], sources: list[Path], work: Path, cache: Path) -> Path:
    made = work / "library.so"
    objects.link(soname, made, sources, [*FLAGS, f"-Wl,-soname,{soname}"], defines, _headers(), cache)
    return made


def _headers() -> list[Path]:
    return [*sorted(HERE.rglob("*.h")), *sorted(NVML.glob("*.h"))]


def _content_hash(defines: list[str], sources: list[Path]) -> str:
    """Returns the hash of all inputs of a library except the compiler."""
    digest = hashlib.sha256(f"{defines}\n{FLAGS}\n".encode())
    for path in [
        *sources,
        *_headers(),
        HERE / "exports.map",
        guest_libc.HEADER,
        Path(objects.__file__),
    ]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:24]
