"""Compiles C sources to object files, which are kept in the cache: the versions of a library share those in which no
version stands."""

from __future__ import annotations

import hashlib
import re
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from lab.simulators import guest_libc
from rigwright.core.errors import HostError


def link(
    name: str,
    out: Path,
    sources: Sequence[Path],
    flags: Sequence[str],
    defines: Sequence[str],
    headers: Iterable[Path],
    cache: Path,
) -> None:
    """Writes the library `out` of these sources.

    `flags` are for the compiler and the linker, `defines` (-DMACRO=VALUE) for the sources that contain MACRO; no header
    may. `headers`: what the sources include. Raises HostError with the compiler's output if compilation fails.
    """
    compiles = [flag for flag in flags if flag != "-shared" and not flag.startswith("-Wl,")]
    texts = [header.read_text() for header in (*headers, guest_libc.HEADER)]
    read = hashlib.sha256("\0".join([*compiles, *texts]).encode()).hexdigest()
    objects = [_object(name, source, compiles, defines, read, cache) for source in sources]
    _gcc(name, [*guest_libc.INCLUDED, *flags, "-o", str(out), *map(str, objects)])
    guest_libc.check(out, name)


def _object(name: str, source: Path, flags: Sequence[str], defines: Sequence[str], read: str, cache: Path) -> Path:
    """Returns the object file of a source, and first compiles it when the cache has none of this content."""
    text = source.read_text()
    own = [define for define in defines if re.search(rf"\b{define.removeprefix('-D').partition('=')[0]}\b", text)]
    digest = hashlib.sha256("\0".join([read, source.name, text, *own]).encode()).hexdigest()[:24]
    made = cache / "objects" / f"{digest}.o"
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=made.parent) as work:
            fresh = Path(work) / "made.o"
            _gcc(name, [*guest_libc.INCLUDED, *flags, *own, "-c", "-o", str(fresh), str(source)])
            fresh.replace(made)
    return made


def _gcc(name: str, words: Sequence[str]) -> None:
    try:
        done = subprocess.run(["gcc", *words], capture_output=True, text=True, timeout=300, check=False)
    except FileNotFoundError:
        raise HostError(name, "gcc is not there", "gcc", "apt-get install gcc libc6-dev") from None
    if done.returncode:
        raise HostError(name, f"gcc failed:\n{done.stderr[-2000:]}")
