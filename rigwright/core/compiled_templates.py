"""What Jinja2 makes of the texts of shipped playbooks and templates, kept beside Python's compiled modules.

Jinja2 reads and compiles an expression in half a millisecond, and a run without changes uses forty. What it made counts only for exactly these files,
this version of Jinja2 and these modules of rigwright; texts of other files, such as an inventory, are compiled in each process, and never
written. Whoever can write the kept file can also write the compiled modules that Python runs from the same folder.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import marshal
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jinja2

from rigwright.core import shipped_files
from rigwright.core.once import once

_OWN = Path(__file__)
_MODULES = (_OWN, _OWN.with_name("rendering.py"))
_SUFFIXES = (".yml", ".j2")
_MOST_BYTES = 4 << 20

enabled = True
"""Whether texts are looked up and kept. A process that replaces what templates are compiled with, as a test does, sets it to False."""

_Key = tuple[str, str]
_new: dict[_Key, Any] = {}


def compiled(kind: str, text: str, make: Callable[[], Any]) -> Any:
    """What `make` makes of a text: code, or a value of simple types. `kind` tells what is made of it."""
    if not enabled:
        return make()
    key = kind, text
    if key in (known := _kept()):
        return known[key]
    made = make()
    if not _new:
        atexit.register(_write)
    _new[key] = made
    return made


def _path() -> Path:
    return _OWN.parent / "__pycache__" / f"templates.{sys.implementation.cache_tag}.marshal"


@once
def _kept() -> dict[_Key, Any]:
    with contextlib.suppress(OSError, ValueError, EOFError, TypeError):  # no file, one of other files, or a damaged one
        with _path().open("rb") as file:
            content = file.read(_MOST_BYTES)
        if content.startswith(_digest()):
            found = marshal.loads(content[len(_digest()) :])
            if isinstance(found, dict):
                return found
    return {}


def _files() -> Iterator[Path]:
    for folder in (shipped_files.folder("playbooks"), shipped_files.folder("templates")):
        for at, _, names in os.walk(folder):
            yield from (Path(at, name) for name in names if name.endswith(_SUFFIXES))


@once
def _digest() -> bytes:
    """A digest of what the kept file is made of: names, sizes and times of the files, and the version of Jinja2."""
    sources = [(str(path), (about := path.stat()).st_size, about.st_mtime_ns) for path in (*_MODULES, *_files())]
    return hashlib.sha256(repr((sys.version, jinja2.__version__, sorted(sources))).encode()).digest()


def _write() -> None:
    """Replaces the kept file at once, with the new texts that are in a shipped file."""
    if sys.dont_write_bytecode:
        return
    with contextlib.suppress(OSError, ValueError):
        shipped = [path.read_text(encoding="utf-8") for path in _files()]
        new = {key: made for key, made in _new.items() if any(key[1] in text for text in shipped)}
        if new:
            path = _path()
            path.parent.mkdir(exist_ok=True)
            temporary = path.with_name(f"{path.name}.{os.getpid()}")
            temporary.write_bytes(_digest() + marshal.dumps({**_kept(), **new}))
            temporary.replace(path)
