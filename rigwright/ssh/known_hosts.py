"""Reads and writes known_hosts files of OpenSSH. An unchanged file is read once, and only needed keys are decoded."""

from __future__ import annotations

import base64
import contextlib
import datetime
import hmac
import os
import re
import shlex
import stat
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import paramiko
from msgspec import Struct
from paramiko.hostkeys import HostKeyEntry, HostKeys, InvalidHostKey

from rigwright.core.errors import UsageError
from rigwright.core.files import atomic


class _Line(NamedTuple):
    """A line: its number; `@revoked`, `@cert-authority` or ""; its names, the type of its key, and the key."""

    number: int
    marker: str
    text: str


_LARGEST_CHARACTERS = 64 << 20
"""The characters of a file that are read."""
OWN = Path("~/.config/rigwright/known_hosts")
COMPARED = "the same command with --yes, once the key is compared"
"""The fix for a new key."""


class Record(Struct, frozen=True):
    """A key of a known_hosts file, the name by which it was found, and the number of its line."""

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
        """`since 2026-11-22`, the date that `trust` wrote; otherwise the last change of the file."""
        with contextlib.suppress(OSError, IndexError):
            line = self.path.read_text(encoding="utf-8", errors="replace").splitlines()[self.line - 1]
            written = re.search(r" rigwright (\d{4}-\d\d-\d\d)$", line)
            changed = datetime.datetime.fromtimestamp(self.path.stat().st_mtime).date()
            return f"since {written[1]}" if written else f"in a file that last changed on {changed}"
        return ""

    @property
    def removal(self) -> str:
        """The command that removes the keys of the name from the file."""
        root = "" if os.access(self.path, os.W_OK) else "sudo "
        return f"{root}ssh-keygen -R {shlex.quote(self.name)} -f {shlex.quote(str(self.path))}"


def records_of(path: Path, name: str) -> Iterator[Record]:
    """The keys in a file for a name (`HOST` or `[HOST]:PORT`), in file order, without lines with a @marker; none if the
    file cannot be read. Names in the file may be plain, hashed or patterns."""
    for line in _of(path, name):
        key = _decode_key(line.text, line.number) if not line.marker else None
        if key is not None:
            yield Record(path, line.number, name, key)


def where_revoked(path: Path, name: str, key: paramiko.PKey) -> str:
    """`FILE:LINE` of a `@revoked` line of this key for a name; "" without one."""
    for line in _of(path, name):
        if line.marker == "@revoked" and _blob(line.text) == key.asbytes():
            return f"{path}:{line.number}"
    return ""


def authority(path: Path, name: str) -> str:
    """`FILE:LINE` of a `@cert-authority` line for a name; "" without one."""
    return next((f"{path}:{line.number}" for line in _of(path, name) if line.marker == "@cert-authority"), "")


_KRL = b"SSHKRL\n\0"
"""The beginning of a binary list of revoked keys."""


def revoked_by(path: str, key: paramiko.PKey) -> str:
    """Why a file of RevokedHostKeys (public keys, or a KRL, which ssh-keygen reads) does not allow the key; "" if it
    does. As with OpenSSH, a file that cannot be read allows no key."""
    file = Path(path).expanduser()
    unread = f"RevokedHostKeys {path} cannot be read"
    try:
        content = file.read_bytes()
    except OSError as error:
        return f"{unread}: {error.strerror}"
    if not content.startswith(_KRL):
        lines = content.decode("utf-8", "replace").splitlines()
        return f"{path} revokes it" if any(_blob(f"- {line}") == key.asbytes() for line in lines) else ""
    argv = ["ssh-keygen", "-Q", "-f", str(file), "/dev/stdin"]
    line = f"{key.get_name()} {key.get_base64()} key\n".encode()
    try:
        done = subprocess.run(argv, input=line, capture_output=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{unread}: {error}"
    if done.returncode == 0:
        return ""
    if b"REVOKED" in done.stdout:
        return f"{path} revokes it"
    return f"{unread}: {done.stderr.decode('utf-8', 'replace').strip()[-200:]}"


def learn(keys: HostKeys, records: Iterable[Record], as_name: str) -> None:
    """Adds the keys on record to `keys` as those of `as_name`. Does not replace a key of a type that is present."""
    present = set(keys.lookup(as_name) or ()) if keys else set()
    for record in records:
        kind = record.key.get_name()
        if kind not in present:
            present.add(kind)
            keys.add(as_name, kind, record.key)


def _of(path: Path, name: str) -> list[_Line]:
    """The lines of a file for a name, in file order; [] when it is no file, or cannot be read."""
    try:
        state = path.stat()
        if not stat.S_ISREG(state.st_mode):
            return []  # a device or a pipe may have no end
        return list(_lines_for(str(path), state.st_mtime_ns, state.st_size, state.st_ino, name.lower()))
    except OSError:
        return []


@lru_cache(maxsize=1024)
def _lines_for(path: str, changed_ns: int, size: int, inode: int, name: str) -> tuple[_Line, ...]:
    """The lines of a file for a name in lower case, in file order; a login reads them several times."""
    named, others = _lines(path, changed_ns, size, inode)
    own = [line for line in others if _matches(name, line.text.split(" ", 1)[0])]
    return tuple(sorted([*named.get(name, ()), *own]))


@lru_cache(maxsize=16)
def _lines(path: str, _changed_ns: int, _size: int, _inode: int) -> tuple[dict[str, list[_Line]], list[_Line]]:
    """The lines of a file by plain host name in lower case, and those with hashed names or patterns."""
    named: dict[str, list[_Line]] = defaultdict(list)
    others = []
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read(_LARGEST_CHARACTERS)
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        marker = words.pop(0) if words and words[0].startswith("@") else ""
        if len(words) < 3 or words[0].startswith("#"):
            continue
        entry = _Line(number, marker, " ".join(words[:3]))
        if "|1|" in words[0] or any(sign in words[0] for sign in "*?!"):
            others.append(entry)
        else:
            for name in words[0].lower().split(","):
                named[name].append(entry)
    return named, others


def _matches(name: str, field: str) -> bool:
    """Whether the first field of a line names the host: a pattern matches, and none with `!` does."""
    if field.startswith("|1|"):
        return any(_is_hash(name, word) for word in field.split(","))
    matches = False
    for word in field.lower().split(","):
        if _is_like(name, word.removeprefix("!")):
            if word.startswith("!"):
                return False
            matches = True
    return matches


def _is_hash(name: str, word: str) -> bool:
    salt, digest = _salt_and_digest(word)
    return salt != b"" and hmac.digest(salt, name.encode(), "sha1") == digest


_SHA1_BYTES = 20


@lru_cache(maxsize=1 << 16)
def _salt_and_digest(word: str) -> tuple[bytes, bytes]:
    """The salt and the digest of a hashed name; b"" for another text."""
    try:
        _, kind, *parts = word.split("|")
        salt, digest = (base64.b64decode(part, validate=True) for part in parts)
    except ValueError:  # not base64, or not two parts
        return b"", b""
    return (salt, digest) if kind == "1" and len(salt) == len(digest) == _SHA1_BYTES else (b"", b"")


def _is_like(name: str, pattern: str) -> bool:
    """Whether a name matches a pattern with `*` and `?`, in a time that grows with the product of both lengths."""
    matched = {0}  # the lengths of the beginnings of the name that the beginning of the pattern matches
    for sign in pattern:
        if sign == "*":
            matched = set(range(min(matched), len(name) + 1))
        else:
            matched = {at + 1 for at in matched if at < len(name) and sign in ("?", name[at])}
        if not matched:
            return False
    return len(name) in matched


def _blob(line: str) -> bytes:
    """The key of a line; b"" if it is no base64."""
    try:
        return base64.b64decode(line.split(" ")[2])
    except (ValueError, IndexError):
        return b""


@lru_cache(maxsize=1024)
def _decode_key(line: str, number: int) -> paramiko.PKey | None:
    try:
        entry = HostKeyEntry.from_line(line, number)
    except (paramiko.SSHException, InvalidHostKey, ValueError, IndexError):
        return None  # a truncated line, or a key type that paramiko does not know
    return entry.key if entry else None


def fingerprint(key: paramiko.PKey) -> str:
    """The type and the SHA256 fingerprint of a key, as `ssh-keygen -l` prints them."""
    return f"{key.get_name()} {key.fingerprint}"


def comparison(key: paramiko.PKey) -> str:
    """What a person does before a new key is recorded."""
    kind = key.get_name().removeprefix("ssh-").partition("-")[0]
    return f"Compare it at the machine's console: ssh-keygen -lf /etc/ssh/ssh_host_{kind}_key.pub"


def trust(name: str, key: paramiko.PKey) -> Path:
    """Records the key and today's date in rigwright's own known_hosts file, and returns its path. Raises UsageError if
    the file cannot be written."""
    path = OWN.expanduser()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        lines = path.read_bytes().splitlines() if path.is_file() else []
        kept = [line for line in lines if line.split()[:2] != [name.encode(), key.get_name().encode()]]
        added = f"{name} {key.get_name()} {key.get_base64()} rigwright {datetime.date.today()}\n".encode()
        atomic.replace(path, b"\n".join([*kept, added]))
    except OSError as error:
        problem = f"cannot be written: {error.strerror}"
        fix = f"make {path.parent} writable for this user"
        raise UsageError(str(path), problem, "a place for known_hosts that you may write", fix) from None
    return path
