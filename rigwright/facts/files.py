"""Files and directories."""

from __future__ import annotations

import hashlib
from functools import lru_cache

from rigwright.core import host_text
from rigwright.core.command import Result, script
from rigwright.core.lazy_dataclasses import dataclass
from rigwright.facts import Fact, Unreadable


@dataclass(frozen=True)
class File:
    """An existing path. `kind`: file, directory, link, other. `sha256` and `content` (up to 64 KiB) are set for files only."""

    kind: str
    mode: str
    owner: str
    group: str
    sha256: str = ""
    content: bytes = b""

    @property
    def text(self) -> str:
        """The content as text."""
        return self.content.decode("utf-8", "replace")


_KINDS = {"regular file": "file", "regular empty file": "file", "directory": "directory", "symbolic link": "link"}
_SCRIPT = """
[ -e "$1" ] || [ -L "$1" ] || { echo absent; exit 0; }
about=$(stat -c '%F|%a|%U|%G|%s' -- "$1") || exit 1
echo "$about"
[ -f "$1" ] || exit 0
[ "${about##*|}" -gt 65536 ] && exec sha256sum <"$1"
exec cat -- "$1"
"""


def _file(result: Result) -> File | None:
    head, _, rest = result.stdout.partition(b"\n")
    if head == b"absent":
        return None
    if result.code != 0:
        raise Unreadable(result.error_text or "cannot be read")
    words, mode, owner, group, size = head.decode().split("|")
    kind = _KINDS.get(words, "other")
    if kind != "file":
        return File(kind, mode.zfill(4), owner, group)
    if host_text.integer(size) > 65536:
        return File(kind, mode.zfill(4), owner, group, rest.decode().split()[0])
    return File(kind, mode.zfill(4), owner, group, hashlib.sha256(rest).hexdigest(), rest)


def file(path: str) -> Fact[File | None]:
    """The file or directory at a path; None if there is none."""
    return _of(path)


@lru_cache(maxsize=1024)
def _of(path: str) -> Fact[File | None]:
    return Fact(f"files.file({path})", script(_SCRIPT, path, reads=True), _file)
