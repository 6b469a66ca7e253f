"""Asks a program of the host once for what several facts ask it for, and gives each fact the answer that it would have got alone.

A host pays for each process: dpkg-query reads the whole database, nvidia-smi starts the driver's library. So commands of a batch that
differ only in what they ask for (packages, units, fields of all GPUs, files) become one. An answer that cannot be split with certainty is not
split: its commands then run as they are.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache

from rigwright.core.command import Command, Result, script
from rigwright.core.lazy_dataclasses import dataclass
from rigwright.facts import files, gpu, systemd

Split = Callable[[Result, tuple[Command, ...]], list[Result] | None]
"""The answer of each command, from the answer to all of them together; None when that cannot be told."""
MOST = 60
"""Commands in one; a program's answer has a limit."""


@dataclass(frozen=True)
class Merged:
    """A command that stands for others; `numbers` are their positions in the batch."""

    command: Command
    numbers: tuple[int, ...]
    split: Split


@lru_cache(maxsize=8)
def merged(commands: tuple[Command, ...]) -> tuple[Merged, ...]:
    """The commands that each stand for several of the batch; a command is in one of them at most. The same for all hosts of a run."""
    found = []
    kinds: dict[tuple[object, ...], list[int]] = {}
    for number, command in enumerate(commands):
        if kind := _kind(command):
            kinds.setdefault((*kind, command.timeout_s, command.cache_key), []).append(number)
    for (name, *_), every in kinds.items():
        together, split = _MERGERS[str(name)]
        for at in range(0, len(every), MOST):
            numbers = tuple(every[at : at + MOST])
            if len(numbers) > 1:
                found.append(Merged(together([commands[number] for number in numbers]), numbers, split))
    return tuple(found)


def _kind(command: Command) -> tuple[object, ...]:
    """What merged commands have in common; () for a command that is asked alone."""
    argv = command.argv
    if command.stdin or not command.reads or command.long:
        return ()
    if argv[:3] == ("dpkg-query", "-W", "-f") and argv[4:5] == ("--",) and argv[3].startswith("${Package}\\t"):
        return ("packages", argv[3])
    if argv[2:4] == (systemd.STATES, "sh") and " " not in argv[4]:
        return ("units",)
    if argv[:4] == files.file("").command.argv[:4] and len(argv) == 5:
        return ("files",)
    if argv[:4] == gpu.query("").argv[:4] and len(argv) == 5 and argv[4].startswith(_GPU_FIELDS):
        return ("gpus",)
    return ()


# --- dpkg-query


def _packages(commands: Sequence[Command]) -> Command:
    first = commands[0]
    patterns = dict.fromkeys(pattern for command in commands for pattern in command.argv[5:])
    return Command((*first.argv[:5], *patterns), timeout_s=first.timeout_s, reads=True, cache_key=first.cache_key)


@lru_cache(maxsize=16)  # hosts have equal packages, units and files
def _each_packages(result: Result, commands: tuple[Command, ...]) -> list[Result] | None:
    """The rows whose package matches a pattern of the command, in the order of the answer; exit code 1 where a pattern has none."""
    if result.code not in (0, 1) or result.cut:
        return None
    rows = [(row.partition("\t")[0], row) for row in result.stdout.decode("utf-8", "surrogateescape").splitlines(True)]
    answers = []
    for command in commands:
        patterns = command.argv[5:]
        if any(set(pattern) & set("[]\\:") for pattern in patterns):
            return None
        names = frozenset(pattern for pattern in patterns if not set(pattern) & set("*?"))
        globs = [pattern for pattern in patterns if pattern not in names]
        own = [(name, row) for name, row in rows if name in names or any(fnmatchcase(name, glob) for glob in globs)]
        found = {name for name, _ in own}
        unknown = [
            one
            for one in patterns
            if one not in found and not any(fnmatchcase(name, one) for name in found if one in globs)
        ]
        error = "".join(f"dpkg-query: no packages found matching {pattern}\n" for pattern in unknown)
        text = "".join(row for _, row in own).encode("utf-8", "surrogateescape")
        answers.append(Result(1 if unknown else 0, text, error.encode()))
    return answers


# --- systemctl show, and whether units are older than their files


def _units(commands: Sequence[Command]) -> Command:
    units = " ".join(command.argv[4] for command in commands)
    paths = dict.fromkeys(path for command in commands for path in command.argv[5:])
    return script(systemd.STATES, units, *paths, timeout_s=commands[0].timeout_s, reads=True)


@lru_cache(maxsize=16)
def _each_units(result: Result, commands: tuple[Command, ...]) -> list[Result] | None:
    """The properties of each unit, the clock, and the times of its own files."""
    *parts, rest = result.stdout.split(b"\n\n")
    if result.code or result.cut or len(parts) != len(commands) or not all(parts):
        return None
    lines = rest.decode("utf-8", "surrogateescape").splitlines(True)
    answers = []
    for part, command in zip(parts, commands, strict=True):
        paths = tuple(f"{path}\n" for path in command.argv[5:])
        process = next((line[8:].decode() for line in part.split(b"\n") if line.startswith(b"MainPID=")), "")
        own = [
            line
            for line in lines
            if line.startswith(("now=", "up="))
            or line == f"deleted={process}\n"
            or (line.startswith("ctime ") and line.split(" ", 2)[2] in paths)
        ]
        answers.append(
            Result(0, part.strip(b"\n") + b"\n\n" + "".join(own).encode("utf-8", "surrogateescape"), result.stderr)
        )
    return answers


# --- fields of nvidia-smi

_GPU_FIELDS = "--query-gpu="


def _gpus(commands: Sequence[Command]) -> Command:
    return gpu.query(_GPU_FIELDS + ",".join(_fields(commands)))


def _fields(commands: Sequence[Command]) -> list[str]:
    return list(
        dict.fromkeys(field for command in commands for field in command.argv[4].removeprefix(_GPU_FIELDS).split(","))
    )


def _each_gpus(result: Result, commands: tuple[Command, ...]) -> list[Result] | None:
    """The fields of each command; a line that is no row, such as the one of a lost GPU, is in the answer of each."""
    if result.code in (9, 127):  # no driver, no program: so for every query
        return [result] * len(commands)
    if result.code not in (0, 14) or result.cut:
        return None
    fields = _fields(commands)
    texts: list[list[str]] = [[] for _ in commands]
    for line in result.text.splitlines():
        cells = next(csv.reader([line], skipinitialspace=True), [])
        no_row = line.startswith((gpu.LOST, "WARNING:", "No devices")) or not line.strip()
        if not no_row and len(cells) != len(fields):
            return None
        cell_of = dict(zip(fields, cells, strict=False))
        for text, command in zip(texts, commands, strict=True):
            text.append(line if no_row else ", ".join(cell_of[field] for field in _fields([command])))
    return [
        Result(result.code, "".join(f"{line}\n" for line in text).encode(), result.stderr, result.cut) for text in texts
    ]


# --- files

_FILES = """
count=$#
for file; do if [ -e "$file" ] || [ -L "$file" ]; then set -- "$@" "$file"; echo here; else echo absent; fi; done
shift $count
[ $# = 0 ] && exit
about=$(stat -c '%F|%a|%U|%G|%s' -- "$@") || exit 1
echo "$about"
while IFS='|' read -r kind mode user group size; do
  file=$1; shift
  case $kind in regular*) if [ "$size" -le 65536 ]; then set -- "$@" "$file"; else sha256sum <"$file" || exit 1; fi;; esac
done <<.
$about
.
echo data
[ $# = 0 ] || exec cat -- "$@"
"""


def _files(commands: Sequence[Command]) -> Command:
    return script(_FILES, *(command.argv[4] for command in commands), timeout_s=commands[0].timeout_s, reads=True)


@lru_cache(maxsize=16)  # hosts have equal packages, units and files
def _each_files(result: Result, commands: tuple[Command, ...]) -> list[Result] | None:
    """What the script of one file prints: its properties and its content, or the checksum of a large one. None if a file changed
    meanwhile, so that the contents have not the sizes that they had."""
    head, marker, data = result.stdout.partition(b"\ndata\n")
    lines = head.decode("utf-8", "surrogateescape").split("\n")
    here, rest = lines[: len(commands)], lines[len(commands) :]
    if result.code or result.cut or len(here) != len(commands) or set(here) - {"here", "absent"}:
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


_MERGERS: dict[str, tuple[Callable[[Sequence[Command]], Command], Split]] = {
    "packages": (_packages, _each_packages),
    "units": (_units, _each_units),
    "gpus": (_gpus, _each_gpus),
    "files": (_files, _each_files),
}
