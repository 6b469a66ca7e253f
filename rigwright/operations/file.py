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
from rigwright.facts.run_recording import KEEP
from rigwright.operations import operation
from rigwright.operations._own_folder import ENTER

_WRITE = (
    f"""{NOTE}{ENTER}{KEEP}
originals={ORIGINALS}
"""
    + """
path=$1 mode=$2 owner=$3 group=$4 name=${1##*/}
enter "${path%/*}" make || exit 1
if { [ -e "./$name" ] || [ -L "./$name" ]; } && ! grep -qxF -e "$path" /var/lib/rigwright/files 2>/dev/null && ! [ -e "$originals$path" ]; then
  mkdir -p -m 755 /var/lib/rigwright && (umask 077; mkdir -p -- "$originals${path%/*}") && cp -a -- "./$name" "$originals$path.new" || exit 1
  { [ -L "$originals$path.new" ] || sync -- "$originals$path.new"; } && mv -fT -- "$originals$path.new" "$originals$path" || exit 1
fi
note files "$path" && kept "./$name" "$path" || exit 1
if [ -e "./$name" ] && [ -n "${RIGWRIGHT_RUN:-}" ]; then
  runs=/var/lib/rigwright/runs keep="/var/lib/rigwright/runs/$RIGWRIGHT_RUN/before${path%/*}"
  mkdir -p -m 755 /var/lib/rigwright && mkdir -p -m 700 "$runs" && chmod 700 "$runs" && (umask 077; mkdir -p -- "$keep") &&
    cp -an -- "./$name" "$keep/"
fi
new=$(mktemp -d ./.rigwright.XXXXXX) || exit 1
here=$(pwd -P)
cd -P -- "$new" && inside "$here" "${new#./}" || exit 1
case $(stat -c %u:%a .) in "$(id -u)":700 | "$(id -u)":2700) ;; *) echo "$here/$new is not private" >&2; exit 1;; esac
cat >content && chown -- "$owner:$group" content && chmod -- "$mode" content && sync -- content && wrote "$(state content "$path")" && mv -fT -- content "../$name"
code=$?
cd -P .. && rm -rf -- "$new"
exit $code
"""
)
"""The new content is made in a folder that only root can change, where no user can put a link in its place."""

_TAKE_AWAY = (
    f"""{ENTER}{KEEP}
[ -e "${{1%/*}}/" ] || exit 0
"""
    + """
path=$1 to=$2 name=${1##*/}
enter "${path%/*}" && kept "./$name" "$path" && wrote "$(state /nonexistent "$path")" || exit 1
if [ -n "$to" ]; then
  kept "./${to##*/}" "$to" && wrote "$(state "./$name" "$to")" && mv -fT -- "./$name" "./${to##*/}"
else rm -f -- "./$name"; fi
"""
)

_DIRECTORY = (
    ENTER
    + """
path=$1 owner=$2 mode=$3 name=${1##*/}
enter "${path%/*}" make || exit 1
[ -d "./$name" ] || mkdir -- "./$name" || exit 1
here=$(pwd -P)
cd -P -- "./$name" && inside "$here" "$name" && chown -- "$owner" . && chmod -- "$mode" .
"""
)


def write(path: str, content: bytes, mode: str = "0644", owner: str = "root", group: str = "root") -> Command:
    """A command that replaces a file atomically and synced.

    The previous one is kept with its mode under the run's id, in a folder that only root can read. The path is recorded
    on the host, and a file that was there before the first time is kept for `remove`.
    """
    return script(_WRITE, path, mode, owner, group, stdin=content)


def take_away(path: str, renamed: str = "") -> Command:
    """A command that removes a file, or renames it to another path of its folder. It is recorded for `rollback`."""
    return script(_TAKE_AWAY, path, renamed)


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
    """The file at `path` holds exactly `content`, with this mode (octal, in quotes) and owner.

    The mode is 0644 if none is given, 0600 for a content with a secret, which the plan shows as `(secret)`.
    """
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
    """The file at `path` is what the template makes of the host's variables.

    The mode is 0644 if none is given, 0600 for a content with a secret, which the plan shows as `(secret)`.
    """
    yield from _written(facts, path, template, mode, owner, group)


def _written(
    facts: Facts, path: str, content: str | Secret, mode: str | None, owner: str, group: str, leads_to: str = ""
) -> Iterator[Change]:
    secret = isinstance(content, Secret)
    facts(file(path))  # requested before a source of secrets is asked
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
    """The change that gives a file this content, mode and owner, if it differs. Other operations use it too.

    Of a `secret` content, and of the content that it replaces, the change has no text and no size.
    """
    now = facts(file(path))
    if now is not None and now.kind not in ("file", "link"):
        raise HostError("file", f"{path} is a {now.kind}", "a file", f"move it away: sudo mv {path} {path}.old")
    if (
        now is not None
        and now.sha256 == _sha256(content)
        and (now.mode, now.owner, now.group) == (mode.zfill(4), owner, group)
    ):
        return
    put = write(path, content, mode, owner, group)
    if now is None:
        size = SHOWN if secret else f"{len(content)} bytes"
        yield Change("add", path, "", f"{size}, mode {mode}", (put,), leads_to=leads_to)
    elif now.sha256 != _sha256(content):
        private = any(not int(octal, 8) & 0o004 for octal in (now.mode, mode))
        before, after = (SHOWN if secret else _shown(text, private) for text in (now.content, content))
        other = ", another content" if before == after and not secret else ""
        yield Change("change", path, before, f"{after}{other}", (put,), leads_to=leads_to)
    else:
        before = f"mode {now.mode}, {now.owner}:{now.group}"
        yield Change("change", path, before, f"mode {mode}, {owner}:{group}", (put,), leads_to=leads_to)


@lru_cache(maxsize=64)
def _sha256(content: bytes) -> str:
    """The digest of a content; equal hosts get equal files."""
    return hashlib.sha256(content).hexdigest()


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
    whole = f"/{posixpath.normpath(path).lstrip('/')}"
    shown = f"{whole}/"
    make = (script(_DIRECTORY, whole, f"{owner}:{group}", f"0{mode.zfill(4)}"),)
    if now is None:
        yield Change("add", shown, "", f"mode {mode}, {owner}:{group}", make)
    elif now.kind == "directory" and (now.mode, now.owner, now.group) != (mode.zfill(4), owner, group):
        yield Change(
            "change", shown, f"mode {now.mode}, {now.owner}:{now.group}", f"mode {mode}, {owner}:{group}", make
        )
    elif now.kind != "directory":
        raise HostError("file", f"{path} is a {now.kind}", "a directory", f"move it away: sudo mv {path} {path}.old")
