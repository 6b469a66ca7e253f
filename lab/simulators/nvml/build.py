"""Compiles the simulated libnvidia-ml.so.VERSION: generated wrappers and the C sources of this folder."""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
from pathlib import Path

from lab.simulators import guest_libc, objects
from rigwright.core.errors import HostError

HERE = Path(__file__).resolve().parent
SLOTS = 512  # as in sim.h
FLAGS = (
    "-D_GNU_SOURCE",
    "-shared",
    "-fPIC",
    "-O1",
    "-g0",
    "-std=gnu11",
    "-pthread",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
)
KINDS = {"device": "FIRST_IS_DEVICE", "none": "0", "early": "BEFORE_INIT", "waits": "WAITS"}


def build(version: str, out: Path, cache: Path) -> Path:
    """Writes libnvidia-ml.so.VERSION (soname libnvidia-ml.so.1) to the folder `out` and returns its path.

    The library is made once per source content and version, then copied from `cache`. Needs gcc, but no network
    and no NVIDIA headers. Raises HostError with the compiler's output if compilation fails.
    """
    built = cache / "nvml" / f"{_content_hash(version)}.so"
    if not built.exists():
        built.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=built.parent) as work:
            _compile(version, Path(work), cache).replace(built)
    out.mkdir(parents=True, exist_ok=True)
    target = out / f"libnvidia-ml.so.{version}"
    fresh = target.with_name(f".{target.name}.new")
    shutil.copyfile(built, fresh)
    fresh.chmod(0o644)
    fresh.replace(target)
    return target


def exported(version: str) -> dict[str, str]:
    """Returns the functions of a library version and their kinds. An unknown series has those of all earlier series."""
    names: dict[str, str] = {}
    series = 0
    for line in (HERE / "symbols").read_text().splitlines():
        if line.startswith("["):
            series = int(line.strip("[]"))
        elif line and not line.startswith("#") and (series <= int(version.split(".")[0]) or series == 535):
            name, kind = line.split()
            names[name] = kind
    return names


def generated(version: str) -> str:
    """Returns the C code of the wrappers.

    Every exported function passes its arguments to the gate; every slot also passes its number to slot_dispatch.
    """
    arguments = "word a, word b, word c, word d, word e, word f"
    lines = ['#include "sim.h"']
    for name, kind in exported(version).items():
        lines.append(
            f'__attribute__((weak, visibility("hidden"))) unsigned sim_{name}({arguments});\n'
            f"EXPORTED unsigned {name}({arguments})\n"
            f'{{ return gate("{name}", {KINDS[kind]}, sim_{name}, a, b, c, d, e, f); }}'
        )
    for slot in range(SLOTS):
        lines.append(f"static unsigned slot_{slot}({arguments}) {{ return slot_dispatch(a, b, c, d, e, f, {slot}); }}")
    slots = ", ".join(f"slot_{slot}" for slot in range(SLOTS))
    lines.append(f"const nvml_call slot_functions[SLOTS] = {{{slots}}};")
    return "\n".join(lines) + "\n"


def _compile(version: str, work: Path, cache: Path) -> Path:
    if not re.fullmatch(r"\d+(\.\d+)+", version):
        raise HostError("libnvidia-ml", f"{version!r} is no driver version", "such as 535.261.03")
    wrappers = work / "wrappers.c"
    wrappers.write_text(generated(version))
    library = work / "library.so"
    sources = [wrappers, *sorted(HERE.glob("*.c"))]
    flags = [*FLAGS, f"-I{HERE}", "-Wl,-soname,libnvidia-ml.so.1"]
    defines = [f'-DLIBRARY_VERSION="{version}"']
    objects.link("libnvidia-ml", library, sources, flags, defines, sorted(HERE.glob("*.h")), cache)
    return library


def _content_hash(version: str) -> str:
    """Returns the hash of all inputs of the library except the compiler."""
    digest = hashlib.sha256(f"{version}\n{FLAGS}\n".encode())
    for path in sorted(
        [
            *HERE.glob("*.c"),
            *HERE.glob("*.h"),
            HERE / "symbols",
            HERE / "build.py",
            guest_libc.HEADER,
            Path(objects.__file__),
        ]
    ):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:24]
