"""Reads and writes known_hosts files of OpenSSH. Reads an unchanged file once, and decodes only the needed keys."""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import shlex
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import paramiko
from paramiko.hostkeys import HostKeyEntry, HostKeys, InvalidHostKey

from rigwright.core import atomic_files
from rigwright.core.errors import UsageError

_Line = tuple[int, str]
"""A line with its number."""

OWN = Path("~/.config/rigwright/known_hosts")
COMPARED = "the same command with --yes, once the key is compared"
"""How the command goes on after a person has compared a new key."""


@dataclass(frozen=True)
class Record:
    """A key of a known_hosts file, with the name that it was looked up by, and the number of its line."""

    path: Path
    line: int
    name: str
    key: paramiko.PKey

    @property
    def where(self) -> str:
        """`FILE:LINE`."""
        return f"{self.path}:{self.line}"

    @property
    def since(self) -> str:
        """`since 2026-11-22` as `trust` noted it beside the key; else when the file last changed, so that it is older."""
        with contextlib.suppress(OSError, IndexError):
            line = self.path.read_text(encoding="utf-8", errors="replace").splitlines()[self.line - 1]
            noted = re.search(r" rigwright (\d{4}-\d\d-\d\d)$", line)
            changed = datetime.datetime.fromtimestamp(self.path.stat().st_mtime).date()
            return f"since {noted[1]}" if noted else f"in a file that last changed on {changed}"
        return ""

    @property
    def removal(self) -> str:
        """The command that removes the keys of the name from the file."""
        root = "" if os.access(self.path, os.W_OK) else "sudo "
        return f"{root}ssh-keygen -R {shlex.quote(self.name)} -f {shlex.quote(str(self.path))}"


def recorded(path: Path, name: str) -> Iterator[Record]:
    """The keys in a file for a name (`HOST` or `[HOST]:PORT`), in file order; none when the file cannot be read.

    Names may be plain or hashed. Like paramiko, it ignores patterns and lines with a @marker.
    """
    try:
        state = path.stat()
        named, hashed = _lines(str(path), state.st_mtime_ns, state.st_size, state.st_ino)
    except OSError:
        return
    own = [(number, line) for number, line in hashed if _is_hashed(name, line)]
    for number, line in sorted([*named.get(name, ()), *own]):
        key = _decoded(line, number)
        if key is not None:
            yield Record(path, number, name, key)


def learn(keys: HostKeys, path: Path, name: str) -> None:
    """Adds the keys in a file for a name to `keys`. Does not replace a key of a type that is already present."""
    for record in recorded(path, name):
        if record.key.get_name() not in (keys.lookup(name) or ()):
            keys.add(name, record.key.get_name(), record.key)


@lru_cache(maxsize=16)
def _lines(path: str, _changed_ns: int, _size: int, _inode: int) -> tuple[dict[str, list[_Line]], list[_Line]]:
    """The lines of a file by plain host name, and those with hashed names."""
    named: dict[str, list[_Line]] = defaultdict(list)
    hashed = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        words = line.split()
        if len(words) < 3 or words[0].startswith(("#", "@")):
            continue
        entry = (number, " ".join(words[:3]))
        if "|1|" in words[0]:
            hashed.append(entry)
        for name in words[0].split(","):
            named[name].append(entry)
    return named, hashed


def _is_hashed(name: str, line: str) -> bool:
    hashes = [word for word in line.split()[0].split(",") if word.startswith("|1|") and word.count("|") == 3]
    try:
        return any(HostKeys.hash_host(name, known) == known for known in hashes)
    except (ValueError, AssertionError):  # not base64, or a salt of another length
        return False


def _decoded(line: str, number: int) -> paramiko.PKey | None:
    try:
        entry = HostKeyEntry.from_line(line, number)
    except (paramiko.SSHException, InvalidHostKey, ValueError, IndexError):
        return None  # a truncated line, or a key type that paramiko does not know
    return entry.key if entry else None


def fingerprint(key: paramiko.PKey) -> str:
    """The type and the SHA256 fingerprint of a key, in the form of `ssh-keygen -l`."""
    return f"{key.get_name()} {key.fingerprint}"


def comparison(key: paramiko.PKey) -> str:
    """What a person does before a new key is recorded: the command for the key file of its kind."""
    kind = key.get_name().removeprefix("ssh-").partition("-")[0]
    return f"Compare it at the machine's console: ssh-keygen -lf /etc/ssh/ssh_host_{kind}_key.pub"


def trust(name: str, key: paramiko.PKey) -> Path:
    """Records the key and today's date in rigwright's own known_hosts file, and returns the path of that file.

    Raises UsageError when the file cannot be written.
    """
    path = OWN.expanduser()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        lines = path.read_bytes().splitlines() if path.is_file() else []
        kept = [line for line in lines if line.split()[:2] != [name.encode(), key.get_name().encode()]]
        added = f"{name} {key.get_name()} {key.get_base64()} rigwright {datetime.date.today()}\n".encode()
        atomic_files.replace(path, b"\n".join([*kept, added]))
    except OSError as error:
        found = f"cannot be written: {error.strerror}"
        fix = f"make {path.parent} writable for this user"
        raise UsageError(str(path), found, "a place for known_hosts that you may write", fix) from None
    return path
