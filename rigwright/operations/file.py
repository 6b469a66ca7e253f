"""Files and directories with a content, a mode and an owner."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Iterator
from functools import lru_cache

from rigwright.core.change import Change
from rigwright.core.command import Command, script
from rigwright.core.errors import HostError
from rigwright.core.schema import DIRECTORY_MODE, FILE_MODE, SECRET_FILE_MODE, AbsolutePath, OctalMode
from rigwright.core.secrets import SHOWN, Secret
from rigwright.core.templates.variables import Template
from rigwright.facts import Facts
from rigwright.facts.files import file
from rigwright.facts.footprint import NOTE, ORIGINALS
from rigwright.operations import operation
from rigwright.operations._run_recording import KEEP

ENTER = """
enter() {  # FOLDER [make]: goes to a folder. A link counts only in a folder that no other user can change
  cd / || return
  left=$1
  while [ -n "$left" ]; do
    part=${left%%/*}
    case $left in */*) left=${left#*/};; *) left=;; esac
    [ -n "$part" ] || continue
    here=$(pwd -P) about=$(stat -c %u:%a .) || return
    [ -z "$2" ] || [ -e "./$part" ] || mkdir -m 755 -- "./$part" || return
    cd -P -- "./$part" || return
    case $about in "$(id -u)":*[2367][0-7] | "$(id -u)":*[2367]) ;; "$(id -u)":*) continue;; esac
    inside "$here" "$part" || return
  done
}
inside() {  # FOLDER NAME: fails unless the current folder is NAME in FOLDER, and no link led to it
  [ "$(pwd -P)" = "${1%/}/$2" ] || { echo "${1%/}/$2 is a link, and another user may change ${1%/}/" >&2; return 1; }
}
"""
"""Shell functions that go to a folder part by part, without following links of other users who own a folder on the way.
A process keeps its folder even if somebody puts a link in its place."""

_WRITE = """
path=$1 mode=$2 owner=$3 group=$4 name=${1##*/}
enter "${path%/*}" make || exit 1
if { [ -e "./$name" ] || [ -L "./$name" ]; } &&
  ! grep -qxF -e "$path" /var/lib/rigwright/files 2>/dev/null && ! [ -e "$originals$path" ]; then
  original=$originals$path
  mkdir -p -m 755 /var/lib/rigwright && (umask 077; mkdir -p -- "${original%/*}") &&
    cp -a -- "./$name" "$original.new" || exit 1
  { [ -L "$original.new" ] || sync -- "$original.new"; } && mv -fT -- "$original.new" "$original" || exit 1
fi
note files "$path" && kept "./$name" "$path" || exit 1
if [ -e "./$name" ] && [ -n "${RIGWRIGHT_RUN:-}" ]; then
  runs=/var/lib/rigwright/runs keep="/var/lib/rigwright/runs/$RIGWRIGHT_RUN/before${path%/*}"
  mkdir -p -m 755 /var/lib/rigwright && mkdir -p -m 700 "$runs" && chmod 700 "$runs" &&
    (umask 077; mkdir -p -- "$keep") && cp -an -- "./$name" "$keep/"
fi
new=$(mktemp -d ./.rigwright.XXXXXX) || exit 1
here=$(pwd -P)
cd -P -- "$new" && inside "$here" "${new#./}" || exit 1
case $(stat -c %u:%a .) in "$(id -u)":700 | "$(id -u)":2700) ;; *) echo "$here/$new is not private" >&2; exit 1;; esac
cat >content && chown -- "$owner:$group" content && chmod -- "$mode" content && sync -- content &&
  wrote "$(state content "$path")" && mv -fT -- content "../$name"
code=$?
cd -P .. && rm -rf -- "$new"
exit $code
"""
"""The new content is written in a folder that only root can change, where no user can put a link in its place."""

_TAKE_AWAY = """
[ -e "${1%/*}/" ] || exit 0
path=$1 to=$2 name=${1##*/}
enter "${path%/*}" && kept "./$name" "$path" && wrote "$(state /nonexistent "$path")" || exit 1
if [ -n "$to" ]; then
  kept "./${to##*/}" "$to" && wrote "$(state "./$name" "$to")" && mv -fT -- "./$name" "./${to##*/}"
else rm -f -- "./$name"; fi
"""

_DIRECTORY = """
path=$1 owner=$2 mode=$3 name=${1##*/}
enter "${path%/*}" make || exit 1
[ -d "./$name" ] || mkdir -- "./$name" || exit 1
here=$(pwd -P)
cd -P -- "./$name" && inside "$here" "$name" && chown -- "$owner" . && chmod -- "$mode" .
"""


def write(path: str, content: bytes, mode: str = "0644", owner: str = "root", group: str = "root") -> Command:
    """A command that replaces a file atomically and synced.

    The previous file is kept with its mode under the run's id, in a folder that only root can read. The path is
    recorded on the host, and a file from before rigwright is kept for `remove`.
    """
    return script(f"{NOTE}{ENTER}{KEEP}\noriginals={ORIGINALS}{_WRITE}", path, mode, owner, group, stdin=content)


def take_away(path: str, renamed: str = "") -> Command:
    """A command that removes a file, or renames it to another path of its folder. It is recorded for `rollback`."""
    return script(ENTER + KEEP + _TAKE_AWAY, path, renamed)


@operation()
def present(
    facts: Facts,
    *,
    path: AbsolutePath,
    content: str | Secret,
    mode: OctalMode | None = None,
    owner: str = "root",
    group: str = "root",
    leads_to: str = "",
) -> Iterator[Change]:
    """The file at `path` has exactly this content, mode (octal, in quotes) and owner. The default mode is 0644, or 0600
    for a content with a secret, which the plan shows as `(secret)`."""
    yield from _written(facts, path, content, mode, owner, group, leads_to)


@operation()
def template(
    facts: Facts,
    *,
    path: AbsolutePath,
    template: Template | Secret,
    mode: OctalMode | None = None,
    owner: str = "root",
    group: str = "root",
) -> Iterator[Change]:
    """The file at `path` is the template with the host's variables. The default mode is 0644, or 0600 for a content
    with a secret, which the plan shows as `(secret)`."""
    yield from _written(facts, path, template, mode, owner, group)


def _written(
    facts: Facts, path: str, content: str | Secret, mode: str | None, owner: str, group: str, leads_to: str = ""
) -> Iterator[Change]:
    secret = isinstance(content, Secret)
    facts(file(path))  # before a source of secrets is read
    text = content.reveal() if isinstance(content, Secret) else content
    mode = mode or (SECRET_FILE_MODE if secret else FILE_MODE)
    yield from differing(facts, path, text.encode(), mode, owner, group, leads_to, secret=secret)


def differing(
    facts: Facts,
    path: str,
    content: bytes,
    mode: str = "0644",
    owner: str = "root",
    group: str = "root",
    leads_to: str = "",
    *,
    secret: bool = False,
) -> Iterator[Change]:
    """The change that gives a file this content, mode and owner, if it differs. A change of a `secret` content has no
    text and no size."""
    now = facts(file(path))
    if now is not None and now.kind not in ("file", "link"):
        raise HostError("file", f"{path} is a {now.kind}", "a file", f"move it away: sudo mv {path} {path}.old")
    if now is None:
        before, after = "", f"{SHOWN if secret else f'{len(content)} bytes'}, mode {mode}"
    elif now.sha256 != _sha256(content):
        private = any(not int(octal, 8) & 0o004 for octal in (now.mode, mode))
        before, after = (SHOWN if secret else _shown(text, private) for text in (now.content, content))
        after += ", another content" if before == after and not secret else ""
    elif (now.mode, now.owner, now.group) != (mode.zfill(4), owner, group):
        before, after = f"mode {now.mode}, {now.owner}:{now.group}", f"mode {mode}, {owner}:{group}"
    else:
        return
    put = write(path, content, mode, owner, group)
    yield Change("change" if now else "add", path, before, after, (put,), leads_to=leads_to)


@lru_cache(maxsize=64)
def _sha256(content: bytes) -> str:
    """The digest of a content; equal hosts get equal files."""
    return hashlib.sha256(content).hexdigest()


def _shown(content: bytes, private: bool) -> str:
    """A short text, or only the size if it is private or long: plans are printed and kept."""
    text = content.decode("utf-8", "replace").strip()
    return text if len(text) <= 300 and "\0" not in text and not private else f"{len(content)} bytes"


@operation()
def directory(
    facts: Facts, *, path: AbsolutePath, mode: OctalMode = DIRECTORY_MODE, owner: str = "root", group: str = "root"
) -> Iterator[Change]:
    """The directory exists, with this mode and owner."""
    now = facts(file(path))
    if now is not None and now.kind != "directory":
        raise HostError("file", f"{path} is a {now.kind}", "a directory", f"move it away: sudo mv {path} {path}.old")
    whole, after = f"/{posixpath.normpath(path).lstrip('/')}", f"mode {mode}, {owner}:{group}"
    make = (script(ENTER + _DIRECTORY, whole, f"{owner}:{group}", f"0{mode.zfill(4)}"),)
    if now is None:
        yield Change("add", f"{whole}/", "", after, make)
    elif (now.mode, now.owner, now.group) != (mode.zfill(4), owner, group):
        yield Change("change", f"{whole}/", f"mode {now.mode}, {now.owner}:{now.group}", after, make)
