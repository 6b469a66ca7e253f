"""Keys of hosts as OpenSSH's known_hosts files have them. A file is read once; of its keys only a host's own are decoded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import paramiko
from paramiko.hostkeys import HostKeyEntry, HostKeys, InvalidHostKey

from rigwright import editing
from rigwright.errors import UsageError

OWN = Path("~/.config/rigwright/known_hosts")


@dataclass(frozen=True)
class _Lines:
    """A file's lines with their numbers: by the plain names that stand in them, and those with hashed names."""

    named: dict[str, list[tuple[int, str]]]
    hashed: list[tuple[int, str]]


def recorded(path: Path, name: str) -> Iterator[paramiko.PKey]:
    """The keys that a file has for a name (`HOST`, or `[HOST]:PORT`), in its order; none when it cannot be read.

    As paramiko reads them: a name stands there plainly or hashed; patterns and lines with a @marker count for nothing.
    """
    try:
        state = path.stat()
        lines = _lines(str(path), state.st_mtime_ns, state.st_size, state.st_ino)
    except OSError:
        return
    own = [(number, line) for number, line in lines.hashed if _is_hashed(name, line)]
    for number, line in sorted([*lines.named.get(name, ()), *own]):
        key = _decoded(line, number)
        if key is not None:
            yield key


def learn(keys: HostKeys, path: Path, name: str) -> None:
    """The keys hold what a file has for a name, where they did not have one of that kind yet: the first that is found counts."""
    for key in recorded(path, name):
        if key.get_name() not in (keys.lookup(name) or ()):
            keys.add(name, key.get_name(), key)


@lru_cache(maxsize=16)
def _lines(path: str, _changed_ns: int, _size: int, _inode: int) -> _Lines:
    found = _Lines(defaultdict(list), [])
    for number, line in enumerate(Path(path).read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        words = line.split()
        if len(words) < 3 or words[0].startswith(("#", "@")):
            continue
        entry = (number, " ".join(words[:3]))
        if "|1|" in words[0]:
            found.hashed.append(entry)
        for name in words[0].split(","):
            found.named[name].append(entry)
    return found


def _is_hashed(name: str, line: str) -> bool:
    hashes = (one for one in line.split()[0].split(",") if one.startswith("|1|") and one.count("|") == 3)
    try:
        return any(HostKeys.hash_host(name, one) == one for one in hashes)
    except (ValueError, AssertionError):  # no base64, or a salt of another length
        return False


def _decoded(line: str, number: int) -> paramiko.PKey | None:
    try:
        entry = HostKeyEntry.from_line(line, number)
    except (paramiko.SSHException, InvalidHostKey, ValueError, IndexError):
        return None  # no key: a line that was cut, or of a kind that paramiko does not know
    return entry.key if entry else None


def fingerprint(key: paramiko.PKey) -> str:
    """A key's type and SHA256 fingerprint, as ssh-keygen -l prints it."""
    return f"{key.get_name()} {key.fingerprint}"


def trust(name: str, key: paramiko.PKey) -> Path:
    """The key stands in rigwright's own known_hosts afterwards; returns that file. Raises UsageError where it cannot be written."""
    path = OWN.expanduser()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        lines = path.read_bytes().splitlines() if path.is_file() else []
        kept = [line for line in lines if line.split()[:2] != [name.encode(), key.get_name().encode()]]
        added = f"{name} {key.get_name()} {key.get_base64()}\n".encode()
        editing.replace(path, b"\n".join([*kept, added]))
    except OSError as error:
        found = f"cannot be written: {error.strerror}"
        raise UsageError(str(path), found, "a place for known_hosts that you may write") from None
    return path
