"""Asks a program of the host once for what several facts ask it for, and gives each fact the answer that it would have got alone.

A host pays for each process: dpkg-query reads the whole database, nvidia-smi starts the driver's library. So commands of a batch that
differ only in what they ask for (packages, units, fields of all GPUs, files) become one, and a command whose answer has what another one asks
for stands for both: the XML of nvidia-smi has its fields, the document of the GPU limits program the NVLinks. An answer that cannot be split
with certainty is not split: its commands then run as they are.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache

from rigwright.core import host_text, lazy_re
from rigwright.core.command import Command, Result, script
from rigwright.core.lazy_dataclasses import dataclass
from rigwright.facts import files, gpu, systemd

Split = Callable[[Result, tuple[Command, ...]], Sequence[Result | None]]
"""The answer of each command, from the answer to all of them together; None for each whose answer cannot be told."""
MOST = 60
"""Commands in one; a program's answer has a limit."""


@dataclass(frozen=True)
class Merged:
    """A command that stands for others; `numbers` are their positions in the batch."""

    command: Command
    numbers: tuple[int, ...]
    split: Split

    def answers(self, result: Result, commands: tuple[Command, ...]) -> Sequence[Result | None]:
        """The answer of each of the commands at `numbers`; None for each that is then asked alone, also for all of a text of another form."""
        try:
            return self.split(result, commands)
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, csv.Error):
            return _untold(commands)


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
    if command in (gpu.nvml.command, gpu.LINKS):
        return ("nvlinks",)
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
    if command == gpu.XML:
        return ("gpus",)
    return ()


def _untold(commands: Sequence[Command]) -> list[Result | None]:
    return [None] * len(commands)


# --- dpkg-query


def _packages(commands: Sequence[Command]) -> Command:
    first = commands[0]
    patterns = dict.fromkeys(pattern for command in commands for pattern in command.argv[5:])
    return Command((*first.argv[:5], *patterns), timeout_s=first.timeout_s, reads=True, cache_key=first.cache_key)


@lru_cache(maxsize=16)  # hosts have equal packages, units and files
def _each_packages(result: Result, commands: tuple[Command, ...]) -> Sequence[Result | None]:
    """The rows whose package matches a pattern of the command, in the order of the answer; exit code 1 where a pattern has none."""
    if result.code not in (0, 1) or result.cut:
        return _untold(commands)
    rows = [(row.partition("\t")[0], row) for row in result.stdout.decode("utf-8", "surrogateescape").splitlines(True)]
    answers = []
    for command in commands:
        patterns = command.argv[5:]
        if any(set(pattern) & set("[]\\:") for pattern in patterns):
            return _untold(commands)
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
def _each_units(result: Result, commands: tuple[Command, ...]) -> Sequence[Result | None]:
    """The properties of each unit, the clock, and the times of its own files."""
    *parts, rest = result.stdout.split(b"\n\n")
    if result.code or result.cut or len(parts) != len(commands) or not all(parts):
        return _untold(commands)
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
_TOO_LATE = (124, 137, -1)
"""Exit codes of a command that had no answer in time. Another query of the same driver would wait as long."""


def _gpus(commands: Sequence[Command]) -> Command:
    return gpu.XML if gpu.XML in commands else gpu.query(_GPU_FIELDS + ",".join(_fields(commands)))


def _fields(commands: Sequence[Command]) -> list[str]:
    return list(
        dict.fromkeys(field for command in commands for field in command.argv[4].removeprefix(_GPU_FIELDS).split(","))
    )


def _each_gpus(result: Result, commands: tuple[Command, ...]) -> Sequence[Result | None]:
    """The fields of each command; a line that is no row, such as the one of a lost GPU, is in the answer of each."""
    if result.code in (9, 127, *_TOO_LATE):  # no driver, no program, no answer in time: so for every query
        return [result] * len(commands)
    if gpu.XML in commands:
        return _each_of_xml(result, commands)
    if result.code not in (0, 14) or result.cut:
        return _untold(commands)
    fields = _fields(commands)
    texts: list[list[str]] = [[] for _ in commands]
    for line in result.text.splitlines():
        cells = next(csv.reader([line], skipinitialspace=True), [])
        no_row = line.startswith((gpu.LOST, "WARNING:", "No devices")) or not line.strip()
        if not no_row and len(cells) != len(fields):
            return _untold(commands)
        cell_of = dict(zip(fields, cells, strict=False))
        for text, command in zip(texts, commands, strict=True):
            text.append(line if no_row else ", ".join(cell_of[field] for field in _fields([command])))
    return [
        Result(result.code, "".join(f"{line}\n" for line in text).encode(), result.stderr, result.cut) for text in texts
    ]


def _each_of_xml(result: Result, commands: tuple[Command, ...]) -> Sequence[Result | None]:
    """The XML itself, and the fields of each other command where one XML document has all GPUs and a value for each field."""
    from rigwright.facts import smi_xml

    answers: list[Result | None] = [result if command == gpu.XML else None for command in commands]
    begin, end = f"<{smi_xml.ROOT}>", f"</{smi_xml.ROOT}>"
    text = result.text
    if "WARNING:" in text:
        text = "".join(line for line in text.splitlines(True) if not line.startswith("WARNING:"))
    before, found, rest = text.partition(begin)
    inside, closed, after = rest.partition(end)
    whole = found and closed and before.startswith("<?xml") and not after.strip()
    if result.code not in (0, 14) or result.cut or not whole:  # 14: a corrupted infoROM, of which a line warns
        return answers
    try:
        gpus = smi_xml.gpus(found + inside + closed)
    except (ValueError, KeyError):
        return answers
    if not gpus or f"<attached_gpus>{len(gpus)}</attached_gpus>" not in inside:
        return answers
    for number, command in enumerate(commands):
        if answers[number] is None:
            rows = [_cells(index, texts, _fields([command])) for index, (_, texts) in enumerate(gpus)]
            told = [", ".join(row) for row in rows if row is not None]
            if len(told) == len(rows):
                answers[number] = Result(result.code, "".join(f"{row}\n" for row in told).encode(), result.stderr)
    return answers


def _cells(index: int, texts: Mapping[str, str], fields: Sequence[str]) -> list[str] | None:
    """The fields of the GPU with this index; None unless each has a value. nvidia-smi writes the GPUs in the order of their indices."""
    from rigwright.facts import smi_xml

    cells = [str(index) if name == "index" else smi_xml.field(texts, name) for name in fields]
    return [cell for cell in cells if cell is not None] if None not in cells else None


# --- NVLinks


def _nvlinks(commands: Sequence[Command]) -> Command:
    return gpu.nvml.command if gpu.nvml.command in commands else gpu.LINKS


def _each_nvlinks(result: Result, commands: tuple[Command, ...]) -> Sequence[Result | None]:
    """The document of the GPU limits program, and what `nvidia-smi nvlink` prints for the links in it, where it has those of all GPUs."""
    if gpu.nvml.command not in commands or result.code in _TOO_LATE:
        return [result] * len(commands)
    hangs = result.code == 1 and "driver: no answer within" in result.error_text
    links = Result(1, b"", result.stderr) if hangs else None if result.code or result.cut else _links(result.text)
    return [result if command == gpu.nvml.command else links for command in commands]


def _links(document: str) -> Result | None:
    """The links of the GPUs that answer; None where the document does not have the links of one: the driver did not tell them, or the program
    is that of an earlier rigwright."""
    parts: tuple[list[str], ...] = ([], [], [])
    try:
        answering = [one for one in host_text.json_value(document)["gpus"] if "gpu" not in one["errors"]]
        for one in answering:
            title = f"GPU {one['index']:d}: {_NO_NAME.sub('', one['name'])} (UUID: {one['uuid']})"
            for part in parts:
                part.append(title)
            links = one["nvlinks"]
            if links and all(link["mb_s"] is None for link in links):
                parts[0].append(_ALL_DOWN)
                links = []
            for link in links:
                number, mb_s, peer, errors = (link[key] for key in ("link", "mb_s", "peer", "errors"))
                states, peers, counters = parts
                states.append(f"\t Link {number:d}: " + ("<inactive>" if mb_s is None else f"{mb_s / 1000:g} GB/s"))
                if peer is not None:
                    peers.append(f"\t Link {number:d}: {peer}")
                if errors is not None:
                    counters.append(f"\t Link {number:d}: Replay Errors: {errors:d}")
    except (ValueError, KeyError, TypeError, OverflowError):
        return None
    texts = ["".join(f"{line}\n" for line in part) for part in parts]
    return Result(0, "{}--- peers\n{}--- errors\n{}".format(*texts).encode("utf-8", "surrogateescape"))


_ALL_DOWN = "\t NVML: Unable to retrieve NVLink information as all links are inActive"
"""nvidia-smi's line in place of the links of a GPU."""
_NO_NAME = lazy_re.compile(r"[^A-Za-z0-9 ._:/()+-]")


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
def _each_files(result: Result, commands: tuple[Command, ...]) -> Sequence[Result | None]:
    """What the script of one file prints: its properties and its content, or the checksum of a large one. None if a file changed
    meanwhile, so that the contents have not the sizes that they had."""
    head, marker, data = result.stdout.partition(b"\ndata\n")
    lines = head.decode("utf-8", "surrogateescape").split("\n")
    here, rest = lines[: len(commands)], lines[len(commands) :]
    if result.code or result.cut or len(here) != len(commands) or set(here) - {"here", "absent"}:
        return _untold(commands)
    count = here.count("here")
    if not count:
        return [Result(0, b"absent\n", result.stderr)] * len(commands) if not any(rest) else _untold(commands)
    abouts, sums = rest[:count], rest[count:]
    if not marker or len(abouts) != count or any(about.count("|") != 4 for about in abouts):
        return _untold(commands)
    answers, position = [], 0
    for state in here:
        if state == "absent":
            answers.append(Result(0, b"absent\n"))
            continue
        about = abouts.pop(0)
        content, size = b"", int(about.rpartition("|")[2])
        if about.startswith("regular") and size > 65536:
            if not sums:
                return _untold(commands)
            content = sums.pop(0).encode() + b"\n"
        elif about.startswith("regular"):
            content, position = data[position : position + size], position + size
        answers.append(Result(0, about.encode("utf-8", "surrogateescape") + b"\n" + content))
    return answers if position == len(data) and not sums else _untold(commands)


_MERGERS: dict[str, tuple[Callable[[Sequence[Command]], Command], Split]] = {
    "packages": (_packages, _each_packages),
    "units": (_units, _each_units),
    "gpus": (_gpus, _each_gpus),
    "nvlinks": (_nvlinks, _each_nvlinks),
    "files": (_files, _each_files),
}
