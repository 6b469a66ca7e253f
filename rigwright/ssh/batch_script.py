"""Puts many commands into one shell script, and reads their results from its output.

The output has a header with a nonce and the length of each answer, so a command cannot forge an answer. Answers are
collected in files on a tmpfs, so the script works with a full disk or a read-only root. Commands run under `timeout`.
Commands that run together do not wait for a process that ignores SIGKILL, such as nvidia-smi on a lost GPU. The script
starts few processes of its own, because starting processes is its main cost on the host.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache

from rigwright.core import host_text
from rigwright.core.command import Command, Result, in_shell, quote, with_stdin
from rigwright.core.errors import HostError

CUT_BYTES = host_text.ANSWER_BYTES
NO_ROOM = "rigwright: no room"
FREE_ROOM = "on the host: df -h /run /dev/shm; sudo du -xah /run /dev/shm | sort -h | tail shows what fills them"
LEAST_BYTES = 1 << 18
"""The least room on a tmpfs for it to hold answers."""
LEFT_BYTES = 1 << 14
"""The room that must be left when all answers are written; with less, an answer may be incomplete."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def together(commands: Sequence[Command], nonce: str, environment: Mapping[str, str]) -> str:
    """A script that runs the commands at the same time, each with an empty stdin, and prints their answers.

    Commands with the same time limit run under one `timeout`, which ends them and their child processes. Each command
    writes its exit code to a pipe when it ends. A command that does not end in time has no exit code.
    """
    return _together(tuple(commands), tuple(environment.items())).replace(_NONCE, nonce)


_NONCE = secrets.token_hex(12)
"""Stands for the nonce of a script; no command has it."""


@lru_cache(maxsize=8)
def _together(commands: tuple[Command, ...], environment: tuple[tuple[str, str], ...]) -> str:
    """As `together`, with _NONCE in place of the nonce: equal hosts are asked the same."""
    lines, groups = [_opening(dict(environment))], []
    for group, limit_s in enumerate(sorted({cmd.timeout_s for cmd in commands})):
        own = [_in_background(number, cmd) for number, cmd in enumerate(commands) if cmd.timeout_s == limit_s]
        text = "\n".join(["trap : TERM", *own, "until wait; do :; done"])
        lines.append(f'printf %s {quote([text])} >s{group} || {{ echo "{NO_ROOM}"; exit; }}')
        groups.append(f"timeout -k 2 {limit_s:g} sh ./s{group} </dev/null 2>/dev/null &")
    known = 'eval "c=\\${c$i:--1}"; [ $c != -1 ] || rm -f $i.o $i.e'
    lines.append(f"{{ {' '.join(groups)} wait; }} | {{ while read i c; do eval c$i=$c; done")
    return "\n".join([*lines, *_frames(len(commands), _NONCE, known), "}", *_END])


def _in_background(number: int, cmd: Command) -> str:
    """Shell text that runs a command in the background, and prints its number and exit code once its answer is stored.

    The exit code is 124 when SIGTERM ended the command. Nothing is printed when SIGKILL ended it.
    """
    if cmd.reads:
        run = f"ulimit -f {CUT_BYTES // 512 + 1}; {in_shell(cmd)} >{number}.o 2>{number}.e; c=$?"
    else:
        piped = f"{{ trap : TERM; {in_shell(cmd)} 2>{number}.e; echo $? >{number}.c; }} | head -c {CUT_BYTES + 1} >{number}.o"
        run = f"{piped}; read c <{number}.c"
    return f"( trap l=1 TERM; l= c=-1; {run}; [ -z $l ] || c=124; echo {number} $c ) </dev/null &"


def in_order(commands: Sequence[Command], nonce: str, environment: Mapping[str, str]) -> str:
    """A script that runs the commands in order, stops after the first failure, and prints the answers."""
    lines = [_opening(environment), "while :; do"]
    for number, cmd in enumerate(commands):
        limited = Command(("timeout", "-k", "5", f"{cmd.timeout_s:g}", *cmd.argv), cmd.stdin)
        lines.append(with_stdin(limited, f">{number}.o 2>{number}.e"))
        lines.append(f"c=$?; echo $c >{number}.c; : >{number}.r; [ $c = 0 ] || break")
    lines.append("break; done")
    known = "c=-1; [ -e $i.r ] || rm -f $i.o $i.e $i.c; [ -s $i.c ] && read c <$i.c"
    return "\n".join([*lines, *_frames(len(commands), nonce, known), *_END])


def _opening(environment: Mapping[str, str]) -> str:
    exports = " ".join(f"{name}={quote([value])}" for name, value in environment.items())
    return (
        f"{{ export LC_ALL=C LANGUAGE=C PATH={_PATH} {exports}\numask 022\n"
        f"{_ROOM}room /run || room /dev/shm || {{ {_no_room('/run /dev/shm')}; exit; }}\n"
        "trap 'cd /; rm -rf \"$d\"' EXIT; trap exit PIPE"  # a lost connection ends the shell at its first output
    )


_ROOM = f"""room() {{
d=$(mktemp -d -p $1 rigwright.XXXXXX 2>/dev/null) && cd "$d" || return 1
{{ printf %{LEAST_BYTES}s '' >room; }} 2>/dev/null && : >room && return 0
cd /; rm -rf "$d"; return 1
}}
"""


def _no_room(places: str) -> str:
    """Shell text that says which file systems are full."""
    rest = "df -Pm $p | awk -v p=$p 'NR == 2 {print $4, p}'"
    return f'echo "{NO_ROOM}" $(for p in {places}; do {rest}; done)'


_END = ("exit; }", "")


def _frames(count: int, nonce: str, known: str) -> list[str]:
    """Shell text that prints the answers.

    `known` is shell text that sets `c` to the exit code of command `i`, and deletes an incomplete answer.
    """
    numbers = " ".join(str(number) for number in range(count))
    return [
        f"{{ printf %{LEFT_BYTES}s '' >room; }} 2>/dev/null || {{ {_no_room('${d%/*}')}; exit; }}",
        f'set --; for i in {numbers}; do {known}; set -- "$@" "$c"; done',
        f'echo "{nonce} codes $*"; stat -c "%n %s" *.o *.e 2>/dev/null; echo "{nonce} data"; cat *.o *.e 2>/dev/null; echo; echo "{nonce} end"',
    ]


def without_room(answer: bytes, where: str) -> HostError | None:
    """The error for a host that has no room for the answers; None for another output."""
    if not answer.startswith(NO_ROOM.encode()):
        return None
    places = re.findall(rb"(\d{1,9}) (/[\w./-]{1,200})", answer.split(b"\n", 1)[0])[:2]
    full = " and ".join(f"{path.decode()} ({free.decode()} MiB free)" for free, path in places)
    found = f"the host has no room for the answers: {full or 'no temporary directory can be made'}"
    return HostError(where, found, "room in /run or /dev/shm", FREE_ROOM)


def finished(answer: bytes, nonce: str) -> bool:
    """Whether the output is complete."""
    return answer.endswith(f"\n{nonce} end\n".encode())


_HEADER = rb" codes((?: (?:-?[0-9]{1,3})?)*)\n((?:[0-9]{1,5}\.[oe] [0-9]{1,9}\n)*)"
"""The exit codes, and the name and size of each answer."""
_HEADER_BYTES = 100
"""More than the header has for one command."""


def results(answer: bytes, nonce: str, count: int) -> list[Result]:
    """Parses the output to results in the order of the commands. A command that did not run or end in time has code -1.

    Raises HostError for any other output, for example from a shell that is not POSIX or with a full tmpfs.
    """
    if full := without_room(answer, ""):
        raise full
    start = answer.find(f"{nonce} codes".encode())
    middle = answer.find(f"{nonce} data\n".encode(), start)
    header = (
        re.fullmatch(_HEADER, answer[start + len(nonce) : middle])
        if 0 <= middle - start <= _HEADER_BYTES * (count + 1)
        else None
    )
    if header is None or start < 0 or not finished(answer, nonce):
        shown = answer[-300:].decode("utf-8", "replace").strip()
        found = f"the host's shell did not answer as a shell does: {shown!r}"
        fix = "set the login shell of that user to a POSIX shell (chsh -s /bin/sh); df -h /run /dev/shm"
        raise HostError("", found, "a POSIX shell and a writable /dev/shm or /run", fix)
    codes = [int(word) for word in header[1].split()]
    if len(codes) != count:
        raise HostError("", "the host has no room for the answers", "room in /run or /dev/shm", FREE_ROOM)
    parts: dict[str, bytes] = {}
    position = middle + len(f"{nonce} data\n")
    for line in header[2].decode("ascii").splitlines():
        name, size = line.split()
        parts[name] = answer[position : position + int(size)]
        position += int(size)
    return [
        Result(
            code,
            out[:CUT_BYTES],
            host_text.without_middle(parts.get(f"{number}.e", b""), host_text.ERROR_BYTES),
            cut=len(out) > CUT_BYTES,
        )
        for number, code in enumerate(codes[:count])
        for out in (parts.get(f"{number}.o", b""),)
    ]
