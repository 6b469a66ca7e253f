"""Files and directories with a content, a mode and an owner."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Iterator

from rigwright.core.change import Change
from rigwright.core.command import Command, command, script
from rigwright.core.errors import HostError
from rigwright.core.schema import DIRECTORY_MODE, FILE_MODE, AbsolutePath, OctalMode
from rigwright.core.templating import Template
from rigwright.facts import Facts
from rigwright.facts.files import file
from rigwright.operations import operation

_WRITE = """
path=$1 mode=$2 owner=$3 group=$4
mkdir -p -m 755 -- "${path%/*}/"
if [ -e "$path" ] && [ -n "${RIGWRIGHT_RUN:-}" ]; then
  keep="/var/lib/rigwright/runs/$RIGWRIGHT_RUN/before${path%/*}"
  mkdir -p -- "$keep" && cp -an -- "$path" "$keep/"
fi
new=$(mktemp -- "$path.XXXXXX") || exit 1
cat >"$new" && chown -- "$owner:$group" "$new" && chmod -- "$mode" "$new" && sync -- "$new" && mv -fT -- "$new" "$path" || { rm -f -- "$new"; exit 1; }
"""


def write(path: str, content: bytes, mode: str = "0644", owner: str = "root", group: str = "root") -> Command:
    """A command that replaces a file atomically and synced, and keeps the previous one under the run's id."""
    return script(_WRITE, path, mode, owner, group, stdin=content)


@operation()
def present(
    facts: Facts,
    *,
    path: AbsolutePath,
    content: str,
    mode: OctalMode = FILE_MODE,
    owner: str = "root",
    group: str = "root",
    leads_to: str = "",
) -> Iterator[Change]:
    """The file at `path` holds exactly `content`, with this mode (octal, in quotes) and owner."""
    yield from differing(facts, path, content.encode(), mode, owner, group, leads_to)


@operation()
def template(
    facts: Facts,
    *,
    path: AbsolutePath,
    template: Template,
    mode: OctalMode = FILE_MODE,
    owner: str = "root",
    group: str = "root",
) -> Iterator[Change]:
    """The file at `path` is what the template makes of the host's variables."""
    yield from differing(facts, path, template.encode(), mode, owner, group)


def differing(
    facts: Facts,
    path: str,
    content: bytes,
    mode: str = "0644",
    owner: str = "root",
    group: str = "root",
    leads_to: str = "",
) -> Iterator[Change]:
    """The change that gives a file this content, mode and owner, if it differs. Other operations use it too."""
    now = facts(file(path))
    if now is not None and now.kind not in ("file", "link"):
        raise HostError("file", f"{path} is a {now.kind}", "a file", f"move it away: sudo mv {path} {path}.old")
    put = write(path, content, mode, owner, group)
    if now is None:
        yield Change("add", path, "", f"{len(content)} bytes, mode {mode}", (put,), leads_to=leads_to)
    elif now.sha256 != hashlib.sha256(content).hexdigest():
        private = any(not int(octal, 8) & 0o004 for octal in (now.mode, mode))
        before, after = (_shown(text, private) for text in (now.content, content))
        yield Change("change", path, before, after, (put,), leads_to=leads_to)
    elif (now.mode, now.owner, now.group) != (mode.zfill(4), owner, group):
        before = f"mode {now.mode}, {now.owner}:{now.group}"
        yield Change("change", path, before, f"mode {mode}, {owner}:{group}", (put,), leads_to=leads_to)


def _shown(content: bytes, private: bool) -> str:
    """A short text itself. Only its size if it is private: plans are printed and kept."""
    text = content.decode("utf-8", "replace").strip()
    return text if len(text) <= 300 and "\0" not in text and not private else f"{len(content)} bytes"


@operation()
def directory(
    facts: Facts, *, path: AbsolutePath, mode: OctalMode = DIRECTORY_MODE, owner: str = "root", group: str = "root"
) -> Iterator[Change]:
    """The directory exists, with this mode and owner."""
    now = facts(file(path))
    shown = f"{posixpath.normpath(path)}/"
    make = (
        command("mkdir", "-p", "--", path),
        command("chown", "--", f"{owner}:{group}", path),
        command("chmod", "--", f"0{mode.zfill(4)}", path),
    )
    if now is None:
        yield Change("add", shown, "", f"mode {mode}, {owner}:{group}", make)
    elif now.kind == "directory" and (now.mode, now.owner, now.group) != (mode.zfill(4), owner, group):
        yield Change(
            "change", shown, f"mode {now.mode}, {now.owner}:{now.group}", f"mode {mode}, {owner}:{group}", make
        )
    elif now.kind != "directory":
        raise HostError("file", f"{path} is a {now.kind}", "a directory", f"move it away: sudo mv {path} {path}.old")
