"""Compiled parts of the catalogue beside Python's compiled modules, so that a command does not read and check YAML that has not changed.

A part is what a function made of the catalogue's files, as a pickle in `__pycache__`. It counts only for exactly the files that it was made from:
its first bytes are a digest of names, sizes and times of all files of the catalogue and of all modules that its classes are in. Otherwise it
is made again. Whoever can write such a file can also write the compiled modules that Python runs from the same folder. Where the folder
cannot be written, or Python keeps no compiled modules, the catalogue is read from its own files each time.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from rigwright.catalogue import loader
from rigwright.core.once import once

T = TypeVar("T")
_OWN = Path(__file__).parent
_CORE = _OWN.parent / "core"
_SUFFIXES = (".py", ".yml", ".csv")
_MOST_BYTES = 16 << 20

enabled = True
"""Whether parts are read and written. A process that replaces what the catalogue is made of, as a test does, sets it to False."""


def compiled(function: Callable[[], T]) -> Callable[[], T]:
    """The function, whose result is read from the compiled part of the catalogue where there is one, and becomes one otherwise."""
    name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"

    @functools.wraps(function)
    def read() -> T:
        return part(name, function)

    return read


def part(name: str, make: Callable[[], T]) -> T:
    """The part of the catalogue with that name; `make` makes it of the catalogue's files, and its errors are not kept."""
    if not enabled or loader.FOLDER != _OWN:
        return make()
    path = _OWN / "__pycache__" / f"{name}.{sys.implementation.cache_tag}.pickle"
    with contextlib.suppress(Exception):  # no file, one of another catalogue, or a damaged one
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES)
        if content.startswith(_digest()):
            found: T = pickle.loads(content[len(_digest()) :])
            return found
    made = make()
    if not sys.dont_write_bytecode:
        with contextlib.suppress(OSError, pickle.PicklingError):
            _write(path, _digest() + pickle.dumps(made, pickle.HIGHEST_PROTOCOL))
    return made


@once
def _digest() -> bytes:
    """A digest of what all parts are made of: names, sizes and times of the files."""
    sources = []
    for folder in (_OWN, _CORE, *(_OWN / name for name in ("gpus", "power", "rigs", "topics"))):
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(_SUFFIXES):
                    about = entry.stat()
                    sources.append((entry.path, about.st_size, about.st_mtime_ns))
    return hashlib.sha256(repr((sys.version, sorted(sources))).encode()).digest()


def _write(path: Path, content: bytes) -> None:
    """Replaces a file at once, so that no process reads half of it."""
    path.parent.mkdir(exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.write_bytes(content)
    new.replace(path)
