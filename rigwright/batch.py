"""Many commands in one script on a shell's stdin, and the frames in which the answers come back.

Answers are framed by length behind a nonce, so no output can forge a frame; they are collected in files on a tmpfs, so
a full disk or a read-only root can still be read; commands run under `timeout`, and in a round nothing waits for a
process that ignores KILL (nvidia-smi on a lost GPU). Processes are what a round costs a host: there are few beside the
commands' own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rigwright.errors import HostError
from rigwright.shell import Command, Result, in_shell, quote, with_stdin

CUT_BYTES = 4 * 1024 * 1024
NO_ROOM = "rigwright: no room"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def together(commands: Sequence[Command], nonce: str) -> str:
    """A script that runs the commands side by side, each with an empty stdin, and frames every answer.

    Those with one time limit run under one `timeout`, which ends them and all that they began. A pipe tells which are
    done, with their exit codes; what is not told in time has none.
    """
    lines, groups = [_opening({})], []
    for group, limit_s in enumerate(sorted({cmd.timeout_s for cmd in commands})):
        own = [_one(number, cmd) for number, cmd in enumerate(commands) if cmd.timeout_s == limit_s]
        text = "\n".join(["trap : TERM", *own, "until wait; do :; done"])
        lines.append(f'printf %s {quote([text])} >s{group} || {{ echo "{NO_ROOM}"; exit; }}')
        groups.append(f"timeout -k 2 {limit_s:g} sh ./s{group} </dev/null 2>/dev/null &")
    known = 'eval "c=\\${c$i:--1}"; [ $c != -1 ] || rm -f $i.o $i.e'
    lines.append(f"{{ {' '.join(groups)} wait; }} | {{ while read i c; do eval c$i=$c; done")
    return "\n".join([*lines, *_frames(len(commands), nonce, known), "}", *_END])


def _one(number: int, cmd: Command) -> str:
    """Shell text that runs a command in the background and tells its number and exit code once its answer is whole.

    124 when it ended because it was told to; nothing when it had to be killed.
    """
    if cmd.reads:
        run = f"ulimit -f {CUT_BYTES // 512 + 1}; {in_shell(cmd)} >{number}.o 2>{number}.e; c=$?"
    else:
        piped = f"{{ trap : TERM; {in_shell(cmd)} 2>{number}.e; echo $? >{number}.c; }} | head -c {CUT_BYTES + 1} >{number}.o"
        run = f"{piped}; read c <{number}.c"
    return f"( trap l=1 TERM; l= c=-1; {run}; [ -z $l ] || c=124; echo {number} $c ) </dev/null &"


def in_order(commands: Sequence[Command], nonce: str, environment: Mapping[str, str]) -> str:
    """A script that runs the commands one after the other up to the first that fails, and frames the answers."""
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
        f'd=$(mktemp -d -p /run rigwright.XXXXXX 2>/dev/null || mktemp -d -p /dev/shm rigwright.XXXXXX) && cd "$d" || {{ echo "{NO_ROOM}"; exit; }}\n'
        "trap 'cd /; rm -rf \"$d\"' EXIT"
    )


_END = ("exit; }", "")


def _frames(count: int, nonce: str, known: str) -> list[str]:
    """Prints the answers; `known` sets `c` to the exit code of command `i`, and takes away an answer that is not whole."""
    numbers = " ".join(str(number) for number in range(count))
    return [
        f'set --; for i in {numbers}; do {known}; set -- "$@" "$c"; done',
        f'echo "{nonce} codes $*"; stat -c "%n %s" *.o *.e 2>/dev/null; echo "{nonce} data"; cat *.o *.e 2>/dev/null; echo; echo "{nonce} end"',
    ]


def finished(answer: bytes, nonce: str) -> bool:
    """Whether the last frame has come."""
    return answer.endswith(f"\n{nonce} end\n".encode())


def results(answer: bytes, nonce: str, count: int) -> list[Result]:
    """The results in the order of the commands; code -1 for what did not run or gave no answer in time.

    Raises HostError when the answer is not one of our scripts' (a shell that is no shell, a full tmpfs).
    """
    start = answer.find(f"{nonce} codes".encode())
    middle = answer.find(f"{nonce} data\n".encode(), start)
    if start < 0 or middle < 0 or not finished(answer, nonce):
        shown = answer[-300:].decode("utf-8", "replace").strip()
        raise HostError(
            "",
            f"the host's shell did not answer as a shell does: {shown!r}",
            "a POSIX shell and a writable /dev/shm or /run",
        )
    header = answer[start:middle].decode("ascii", "replace").splitlines()
    codes = [int(word) for word in header[0].split()[2:]]
    if len(codes) != count:
        raise HostError("", "the host has no room for the answers", "room in /run or /dev/shm", "df -h /run /dev/shm")
    parts: dict[str, bytes] = {}
    position = middle + len(f"{nonce} data\n")
    for line in header[1:]:
        name, size = line.split()
        parts[name] = answer[position : position + int(size)]
        position += int(size)
    return [
        Result(code, out[:CUT_BYTES], parts.get(f"{number}.e", b"")[:CUT_BYTES], cut=len(out) > CUT_BYTES)
        for number, code in enumerate(codes[:count])
        for out in (parts.get(f"{number}.o", b""),)
    ]
