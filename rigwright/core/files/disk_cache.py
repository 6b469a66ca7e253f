"""A cache on disk for the checked YAML of the catalogue and the compiled templates and expressions of playbooks.

Its files are in `__pycache__`, beside Python's compiled modules: who can write there can also write the modules that
Python runs. A file begins with a digest of the names, sizes and times of the shipped files from which it was made, and
is used only for these. If the folder cannot be written, or Python keeps no compiled modules, nothing is kept.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import marshal
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from rigwright.core.files import shipped_files
from rigwright.core.once import once

T = TypeVar("T")
_FOLDER = Path(__file__).parent
_PACKAGE = _FOLDER.parents[1]
_SUFFIXES = (".py", ".yml", ".csv", ".j2")
_MOST_BYTES = 16 << 20

enabled = True
"""Whether files are read and written. A process that replaces the shipped files, as a test does, sets it to False."""


def cached_on_disk(function: Callable[[], T]) -> once[T]:
    """The function of the catalogue, called once: its result is read from disk, or written there."""
    name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
    return once(functools.wraps(function)(lambda: read_or_make(name, function)))


def read_or_make(name: str, make: Callable[[], T]) -> T:
    """The value in the file of this name; otherwise what `make` returns, which is then written."""
    if not enabled:
        return make()
    with contextlib.suppress(Exception):  # no file, one of other shipped files, or a damaged one
        value: T = _read(name)
        return value
    value = make()
    _write(name, value)
    return value


def _path(name: str) -> Path:
    return _FOLDER / "__pycache__" / f"{name}.{sys.implementation.cache_tag}.pickle"


def _read(name: str) -> Any:
    with _path(name).open("rb") as file:
        content = file.read(_MOST_BYTES)
    if not content.startswith(_digest()):
        raise ValueError("made of other files")
    return pickle.loads(content[len(_digest()) :])


def _write(name: str, value: object) -> None:
    """Replaces a file at once, so that no process reads half of it."""
    path = _path(name)
    new = path.with_name(f"{path.name}.{os.getpid()}")
    with contextlib.suppress(OSError, pickle.PicklingError):
        if not sys.dont_write_bytecode:
            path.parent.mkdir(exist_ok=True)
            new.write_bytes(_digest() + pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
            new.replace(path)


def _files(*folders: Path) -> Iterator[Path]:
    for folder in folders:
        for at, _, names in os.walk(folder):
            yield from (Path(at, name) for name in names if name.endswith(_SUFFIXES))


_TEMPLATES = (shipped_files.folder("playbooks"), shipped_files.folder("templates"))


@once
def _digest() -> bytes:
    """A digest of the shipped files, and of the modules with the classes of the kept values."""
    files = _files(_PACKAGE / "core", _PACKAGE / "catalogue", *_TEMPLATES)
    sources = [(str(path), (status := path.stat()).st_size, status.st_mtime_ns) for path in files]
    return hashlib.sha256(repr((sys.version, sorted(sources))).encode()).digest()


_new_codes: dict[tuple[str, str], bytes] = {}


def template_code(kind: str, text: str, make: Callable[[], Any]) -> Any:
    """The result of `make` for a text of Jinja2; `kind` is its kind. It is kept if a shipped file has the text."""
    if not enabled:
        return make()
    if code := _codes().get((kind, text)):
        return marshal.loads(code)
    if not _new_codes:
        atexit.register(_write_codes)
    _new_codes[kind, text] = marshal.dumps(made := make())
    return made


@once
def _codes_name() -> str:
    from jinja2 import __version__

    return f"templates.{__version__}"


@once
def _codes() -> dict[tuple[str, str], bytes]:
    codes: dict[tuple[str, str], bytes] = {}
    with contextlib.suppress(Exception):
        codes = _read(_codes_name())
    return codes


def _write_codes() -> None:
    with contextlib.suppress(OSError, ValueError):
        shipped = [path.read_text(encoding="utf-8") for path in _files(*_TEMPLATES)]
        new = {key: code for key, code in _new_codes.items() if any(key[1] in text for text in shipped)}
        if new:
            _write(_codes_name(), {**_codes(), **new})
