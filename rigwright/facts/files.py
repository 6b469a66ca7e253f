"""Files and directories."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache

from msgspec import Struct

from rigwright.core import host_text
from rigwright.core.command import Command, Result, script
from rigwright.facts import Fact, Merger, Unreadable


class File(Struct, frozen=True):
    """An existing path. `kind`: file, directory, link, other. `sha256` and `content` (up to 64 KiB): of files only."""

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


_file_fact = lru_cache(maxsize=1024)(lambda path: Fact(f"files.file({path})", script(_SCRIPT, path, reads=True), _file))


def file(path: str) -> Fact[File | None]:
    """The file or directory at a path; None if there is none."""
    return _file_fact(path)


_SCRIPT_OF_SEVERAL = """
count=$#
for file; do if [ -e "$file" ] || [ -L "$file" ]; then set -- "$@" "$file"; echo here; else echo absent; fi; done
shift $count
[ $# = 0 ] && exit
about=$(stat -c '%F|%a|%U|%G|%s' -- "$@") || exit 1
echo "$about"
while IFS='|' read -r kind mode user group size; do
  file=$1; shift
  case $kind in regular*) if [ "$size" -le 65536 ];
    then set -- "$@" "$file"; else sha256sum <"$file" || exit 1; fi;; esac
done <<.
$about
.
echo data
[ $# = 0 ] || exec cat -- "$@"
"""


def _together(commands: Sequence[Command]) -> Command:
    paths = (command.argv[4] for command in commands)
    return script(_SCRIPT_OF_SEVERAL, *paths, timeout_s=commands[0].timeout_s, reads=True)


def _split(result: Result, commands: tuple[Command, ...]) -> list[Result] | None:
    """What the script of one file prints: its properties, and its content or the checksum of a large file. None if a
    file changed meanwhile, so that its content does not have the size that stat printed."""
    head, marker, data = result.stdout.partition(b"\ndata\n")
    lines = host_text.lines(head.decode("utf-8", "surrogateescape"))
    here, rest = lines[: len(commands)], lines[len(commands) :]
    if result.code or len(here) != len(commands) or set(here) - {"here", "absent"}:
        return None
    count = here.count("here")
    if not count:
        return [Result(0, b"absent\n", result.stderr)] * len(commands) if not any(rest) else None
    abouts, sums = rest[:count], rest[count:]
    if not marker or len(abouts) != count or any(about.count("|") != 4 for about in abouts):
        return None
    answers, position = [], 0
    for state in here:
        if state == "absent":
            answers.append(Result(0, b"absent\n"))
            continue
        about = abouts.pop(0)
        content, size = b"", int(about.rpartition("|")[2])
        if about.startswith("regular") and size > 65536:
            if not sums:
                return None
            content = sums.pop(0).encode() + b"\n"
        elif about.startswith("regular"):
            content, position = data[position : position + size], position + size
        answers.append(Result(0, about.encode("utf-8", "surrogateescape") + b"\n" + content))
    return answers if position == len(data) and not sums else None


MERGER = Merger(lambda command: command.argv[2:4] == (_SCRIPT, "sh"), _together, _split)
