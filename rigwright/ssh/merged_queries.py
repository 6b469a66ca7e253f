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
from typing import Any

from rigwright.core import host_text, lazy_re
from rigwright.core.command import Command, Result, script
from rigwright.core.lazy_dataclasses import dataclass
from rigwright.facts import files, gpu, systemd

Split = Callable[[Result, tuple[Command, ...]], Sequence[Result | None]]
"""The answer of each command, from the answer to all of them together; None for each whose answer cannot be told."""
MOST = 60
"""Commands in one; a program's answer has a limit."""
_LONGEST_KEPT = 500_000
"""Bytes of an answer whose parts are kept for other hosts."""


@dataclass(frozen=True)
class Merged:
    """A command that stands for others; `numbers` are their positions in the batch."""

    command: Command
    numbers: tuple[int, ...]
    split: Split

    def answers(self, result: Result, commands: tuple[Command, ...]) -> Sequence[Result | None]:
        """The answer of each of the commands at `numbers`; None for each that is then asked alone, also for all of a text of another form."""
        if result.stdout.count(b"\n") > host_text.LINES:
            return _untold(commands)
        keep = len(result.stdout) <= _LONGEST_KEPT
        split = self.split if keep else getattr(self.split, "__wrapped__", self.split)
        try:
            return split(result, commands)
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
def _split_packages(result: Result, commands: tuple[Command, ...]) -> Sequence[Result | None]:
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
def _split_units(result: Result, commands: tuple[Command, ...]) -> Sequence[Result | None]:
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


def _gpus(commands: Sequence[Command]) -> Command:
    return gpu.XML if gpu.XML in commands else gpu.query(_GPU_FIELDS + ",".join(_fields(commands)))


def _fields(commands: Sequence[Command]) -> list[str]:
    return list(
        dict.fromkeys(field for command in commands for field in command.argv[4].removeprefix(_GPU_FIELDS).split(","))
    )


def _split_gpus(result: Result, commands: tuple[Command, ...]) -> Sequence[Result | None]:
    """The fields of each command; a line that is no row, such as the one of a lost GPU, is in the answer of each."""
    # Without a driver, the program or a GPU every query has this answer.
    if result.code in (9, 127) or result.text.startswith("No devices"):
        return [result] * len(commands)
    if gpu.XML in commands:
        return _split_xml(result, commands)
    if result.too_late:  # a driver that hangs does so for every short query
        return [result] * len(commands)
    if result.code not in (0, 14) or result.cut:
        return _untold(commands)
    fields = _fields(commands)
    texts: list[list[str]] = [[] for _ in commands]
    for line in result.lines:
        no_row = line.startswith((gpu.LOST, "WARNING:")) or not line.strip()
        cells = [] if no_row else next(csv.reader([line], skipinitialspace=True), [])
        if not no_row and len(cells) != len(fields):
            return _untold(commands)
        cell_of = dict(zip(fields, cells, strict=False))
        for text, command in zip(texts, commands, strict=True):
            text.append(line if no_row else ", ".join(cell_of[field] for field in _fields([command])))
    return [
        Result(result.code, "".join(f"{line}\n" for line in text).encode(), result.stderr, result.cut) for text in texts
    ]


def _split_xml(result: Result, commands: tuple[Command, ...]) -> Sequence[Result | None]:
    """The XML itself, and the fields of each other command where one XML document has all GPUs and a value for each field."""
    from rigwright.facts import smi_xml

    answers: list[Result | None] = [result if command == gpu.XML else None for command in commands]
    begin, end = f"<{smi_xml.ROOT}>", f"</{smi_xml.ROOT}>"
    text = result.text
    if "WARNING:" in text:
        text = "".join(line for line in text.splitlines(True) if not line.startswith("WARNING:"))
    before, _, rest = text.partition(begin)
    inside, closed, after = rest.partition(end)
    whole = closed and before.startswith("<?xml") and not after.strip()
    if result.code not in (0, 14) or result.cut or not whole:  # 14: a corrupted infoROM, of which a line warns
        return answers
    try:
        gpus = smi_xml.gpus(begin + inside + end)
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

    if any(name.startswith("power.") for name in fields) and not smi_xml.power_is_certain(texts):
        return None
    cells = [str(index) if name == "index" else smi_xml.field(texts, name) for name in fields]
    return [cell for cell in cells if cell is not None] if None not in cells else None


# --- NVLinks


def _nvlinks(commands: Sequence[Command]) -> Command:
    return gpu.nvml.command if gpu.nvml.command in commands else gpu.LINKS


def _split_nvlinks(result: Result, commands: tuple[Command, ...]) -> Sequence[Result | None]:
    """The document of the GPU limits program, and what `nvidia-smi nvlink` prints for the links in it, where it has those of all GPUs.

    A driver that does not answer NVML is not asked by nvidia-smi after it.
    """
    if gpu.nvml.command not in commands or result.too_late:
        return [result] * len(commands)
    error = result.error_text.rpartition("\n")[2]
    if result.code == 1 and error.startswith("driver: "):
        links: Result | None = Result(1, b"", f"NVML: {error}".encode())
    else:
        links = None if result.code or result.cut else _as_links_text(result.text)
    return [result if command == gpu.nvml.command else links for command in commands]


def _as_links_text(document: str) -> Result | None:
    """The links of a document in the form that gpu.LINKS prints, so that topology.nvlinks has one parser. A GPU that NVML cannot open is left
    out, as by nvidia-smi; for one that does not answer in time, the result is that error.

    None where the document does not have the links of a GPU: NVML did not tell them, or the program is that of an earlier rigwright.
    """
    states: list[str] = []
    peers: list[str] = []
    errors: list[str] = []
    try:
        every = host_text.json_value(document)["gpus"]
        late = next((one["errors"]["gpu"] for one in every if one.get("hangs")), None)
        if late is not None:
            return Result(1, b"", f"NVML: {late}".encode())
        for one in every:
            if one.get("code") is None and not _add_links(one, states, peers, errors):
                return None
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
    if not states:
        return None
    texts = ["".join(f"{line}\n" for line in part) for part in (states, peers, errors)]
    return Result(0, "{}--- peers\n{}--- errors\n{}".format(*texts).encode())


def _add_links(one: Mapping[str, Any], states: list[str], peers: list[str], errors: list[str]) -> bool:
    """Appends the lines of a GPU; False if a value has another form. Raises KeyError, TypeError, AttributeError."""
    from rigwright.facts import smi_xml

    if type(one["index"]) is not int or not smi_xml.UUID.fullmatch(one["uuid"]):
        return False
    title = f"GPU {one['index']}: {_NOT_IN_NAMES.sub('', one['name'])} (UUID: {one['uuid']})"
    for part in (states, peers, errors):
        part.append(title)
    if one["nvlinks"] and all(link["mb_s"] is None for link in one["nvlinks"]):
        states.append(_ALL_DOWN)
        return True
    for link in one["nvlinks"]:
        number, mb_s, peer, count = (link[key] for key in ("link", "mb_s", "peer", "errors"))
        sizes = [value for value in (number, mb_s, count) if value is not None]
        if (
            any(type(value) is not int or not 0 <= value < _MOST_COUNT for value in sizes)
            or number is None
            or mb_s == 0
        ):
            return False
        states.append(f"\t Link {number}: " + ("<inactive>" if mb_s is None else f"{mb_s / 1000:.10g} GB/s"))
        if peer is not None:
            if not smi_xml.BUS_ID.fullmatch(peer):
                return False
            peers.append(f"\t Link {number}: {peer}")
        if count is not None:
            errors.append(f"\t Link {number}: Replay Errors: {count}")
    return True


_MOST_COUNT = 10**12
"""A larger number of a link is refused."""
_ALL_DOWN = "\t NVML: Unable to retrieve NVLink information as all links are inActive"
"""nvidia-smi's line in place of the links of a GPU."""
_NOT_IN_NAMES = lazy_re.compile(r"[^A-Za-z0-9 ._:/()+-]")


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
def _split_files(result: Result, commands: tuple[Command, ...]) -> Sequence[Result | None]:
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
    "packages": (_packages, _split_packages),
    "units": (_units, _split_units),
    "gpus": (_gpus, _split_gpus),
    "nvlinks": (_nvlinks, _split_nvlinks),
    "files": (_files, _split_files),
}
