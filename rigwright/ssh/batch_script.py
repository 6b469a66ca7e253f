"""Puts many commands into one shell script, and reads their results from its output.

The output has a header with a nonce and the length of each answer, so a command cannot forge an answer. Answers are
files on a tmpfs, so the script works with a full disk or a read-only root. Commands run under `timeout`. Commands that
run together do not wait for a process that ignores SIGKILL, such as nvidia-smi on a lost GPU. The script starts few
processes of its own, because they are its main cost on the host.

The answer to a command with a cache key is kept in CACHE, which only root can write, if the command succeeded and the
key printed the same before and after. Its name has checksums of the command and of the key's output.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache

from rigwright import __version__
from rigwright.core import host_text
from rigwright.core.command import Command, Result, in_shell, quote, with_stdin
from rigwright.core.errors import HostError
from rigwright.core.host_folders import UNTIL_BOOT

CUT_BYTES = host_text.ANSWER_BYTES
NO_ROOM = "rigwright: no room"
FREE_ROOM = "on the host: df -h /run /dev/shm; sudo du -xah /run /dev/shm | sort -h | tail shows what fills them"
LEAST_BYTES = 1 << 18
"""The least free space of a tmpfs for answers."""
LEFT_BYTES = 1 << 14
"""The space that must be free after all answers were written; with less, an answer may be incomplete."""
CACHE = f"{UNTIL_BOOT}/answers"
"""The folder on the host with answers that are kept until the next boot."""
MOST_KEPT_KIB = 256
"""The longest answer that is kept."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def together(commands: Sequence[Command], nonce: str, environment: Mapping[str, str]) -> str:
    """A script that runs the commands at the same time, each with an empty stdin, and prints their answers.

    Commands with the same time limit run under one `timeout`, which ends them and their child processes. A command that
    does not end in time has no exit code.
    """
    return _together(tuple(commands), tuple(environment.items())).replace(_NONCE, nonce)


_NONCE = secrets.token_hex(12)
"""A placeholder for the nonce of a script."""


@lru_cache(maxsize=8)
def _together(commands: tuple[Command, ...], environment: tuple[tuple[str, str], ...]) -> str:
    """As `together`, with _NONCE in place of the nonce, made once for equal hosts."""
    lines, groups, waits = [_opening(dict(environment))], [], []
    cached = [number for number, cmd in enumerate(commands) if cmd.cache_key]
    for name, numbers in (("s", [number for number in range(len(commands)) if number not in cached]), ("c", cached)):
        for limit_s in sorted({commands[number].timeout_s for number in numbers}):
            own = [number for number in numbers if commands[number].timeout_s == limit_s]
            run = [_in_background(number, commands[number]) for number in own]
            if name == "c":
                run = [f'[ -z "$_n{number}" ] || {text}' for number, text in zip(own, run, strict=True)]
            file = f"{name}{limit_s:g}"
            text = "\n".join(["trap : TERM; _rw=$PWD", *run, "until wait; do :; done"])
            lines.append(f'printf %s {quote([text])} >{file} || {{ echo "{NO_ROOM}"; exit; }}')
            start = f"timeout -k 2 {limit_s:g} sh ./{file} </dev/null >/dev/null 2>&1 &"
            if name == "s":
                groups.append(start)
            else:
                waits.append(f"case $miss in {'|'.join(f'*_{number}_*' for number in own)}) {start};; esac")
    kept = _find_kept(cached, commands) if cached else []
    lines += [*groups, *kept, *waits, "wait; new="]
    return "\n".join([*lines, *_frames(len(commands), _NONCE, _CODE), *([_KEEP] if cached else []), *_END])


_CODE = """eval "c=\\${_c$i-} name=\\${_n$i-}"
if [ -z "$c" ]; then
c=-1; [ ! -s $i.c ] || read -r c <$i.c
[ $c != -1 ] || rm -f $i.o $i.e
case "$c $name" in [01]\\ *-?*) new="$new $i $c $name";; esac
fi"""
"""Shell text that sets `c` to the exit code of command `i`, with the name of a kept answer. `new`: number, code and
name of answers to keep."""

KEYS_S = 20
"""The time limit of all cache keys; after it no kept answer is used."""

_KEEP = f"""set -- $new
if [ $# -gt 0 ] && timeout -k 2 {KEYS_S} sh ./keys.sh >keys.after && cmp -s keys keys.after &&
mkdir -p -m 755 {UNTIL_BOOT} && mkdir -p -m 700 {CACHE} && [ -O {CACHE} ]; then
find {CACHE} -mindepth 1 -mmin +10080 -delete
while [ $# -gt 0 ]; do
case $2$(eval "echo \\${{_z$1-}}") in
0*|11) [ -n "$(find $1.o $1.e -size +{MOST_KEPT_KIB}k)" ] || {{
t=$(mktemp -d -p {CACHE} new.XXXXXX) && cp $1.o $t/o && cp $1.e $t/e && echo $2 >$t/c &&
mv -f $t/o {CACHE}/$3.o && mv -f $t/e {CACHE}/$3.e && mv -f $t/c {CACHE}/$3.c; rm -rf $t; }};;
esac
shift 3
done
fi </dev/null >/dev/null 2>&1"""
"""Shell text that keeps answers after all were printed, if the keys print the same as before: three files for each, the
exit code last. Files older than a week are deleted. `_zNUMBER` is 1 if exit code 1 is an answer, too."""


def _find_kept(numbers: Sequence[int], commands: Sequence[Command]) -> list[str]:
    """Shell text that sets `_cNUMBER` to the code and name of each kept answer.

    Its files are linked to this folder, so that they stay if the answer is deleted meanwhile; if that fails, no kept
    answer is used. `miss`: the numbers of the other commands; `_nNUMBER`: the names for their answers, or `-`.
    """
    keys = {key: f"_k{at}" for at, key in enumerate(dict.fromkeys(commands[number].cache_key for number in numbers))}
    whole = 'read -r boot </proc/sys/kernel/random/boot_id; echo "$boot end."'
    printed = " ".join(
        f"{{ {{ {key}\n}} >{name} 2>/dev/null; [ ! -s {name} ] || {{ {whole}; }} >>{name} || : >{name}; }} &"
        for key, name in keys.items()
    )
    text = f"{printed} wait; sha256sum {' '.join(keys.values())}"
    lines = [
        f'printf %s {quote([text])} >keys.sh || {{ echo "{NO_ROOM}"; exit; }}',
        f"timeout -k 2 {KEYS_S} sh ./keys.sh </dev/null >keys 2>/dev/null",
        f"{' '.join(f'{name}=' for name in keys.values())}",
        'while read -r sum name; do [ ! -s "$name" ] || eval $name=$sum; done <keys',
        f"[ -O {CACHE} ] && kept=y || kept=",
        "found() { from= miss=_",
    ]
    for number in numbers:
        key = keys[commands[number].cache_key]
        lines += [
            f"name=${{{key}:+{_checksum(commands[number])}-${key}}}; _c{number}=",
            f'if [ "$kept" ] && [ "$name" ] && [ -e {CACHE}/$name.c ] && read -r c <{CACHE}/$name.c; then',
            f'_c{number}=$c@$name from="$from {CACHE}/$name.o {CACHE}/$name.e"',
            f"else miss=${{miss}}{number}_; export _n{number}=${{name:--}}; fi",
        ]
        if commands[number].argv[0] == "dpkg-query":  # it says so of a package that is not known
            lines.append(f"_z{number}=1")
    return [
        *lines,
        "}",
        'found; [ -z "$from" ] || ln -t . $from 2>/dev/null || cp -t . $from 2>/dev/null || { kept=; found; }',
    ]


def _checksum(cmd: Command) -> str:
    """16 hexadecimal digits for a command of this release. The environment, which has only the run's id, is no part."""
    parts = (__version__, _PATH, cmd.argv, cmd.stdin, cmd.timeout_s, cmd.reads, cmd.cache_key)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _in_background(number: int, cmd: Command) -> str:
    """Shell text that runs a command in the background, and then writes its exit code to NUMBER.c in the folder `$_rw`:
    124 if SIGTERM ended the command, nothing if SIGKILL ended it."""
    to, most = f">{number}.o 2>{number}.e", f"ulimit -f {CUT_BYTES // 512 + 1}"
    is_script = cmd.argv[:2] == ("sh", "-c") and cmd.argv[3:4] == ("sh",)
    if cmd.reads and is_script and not re.search(r"\b(exec|trap)\b", cmd.argv[2]):  # one shell for script and traps
        traps = f"trap 'echo $? >$_rw/{number}.c' 0; trap 'trap - 0; echo 124 >$_rw/{number}.c; exit' TERM"
        inside = f"set -- {quote(cmd.argv[4:])}; eval {quote(cmd.argv[2:3])}"
        return f"( {traps}; {most}; {inside} ) {to} </dev/null &"
    if cmd.reads:
        run = f"{most}; {in_shell(cmd)} {to}; c=$?"
    else:
        inside = f"{{ trap : TERM; {in_shell(cmd)} 2>{number}.e; echo $? >{number}.p; }}"
        run = f"{inside} | head -c {CUT_BYTES + 1} >{number}.o; read c <{number}.p"
    return f"( trap l=1 TERM; l= c=-1; {run}; [ -z $l ] || c=124; echo $c >{number}.c ) </dev/null &"


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
    """Shell text that prints the full file systems."""
    rest = "df -Pm $p | awk -v p=$p 'NR == 2 {print $4, p}'"
    return f'echo "{NO_ROOM}" $(for p in {places}; do {rest}; done)'


_END = ("exit; }", "")


def _frames(count: int, nonce: str, known: str) -> list[str]:
    """Shell text that prints the answers. `known`: shell text that sets `c` to the exit code of command `i` and deletes
    an incomplete answer."""
    numbers, files = " ".join(map(str, range(count))), "*.o *.e 2>/dev/null"
    return [
        f"{{ printf %{LEFT_BYTES}s '' >room; }} 2>/dev/null || {{ {_no_room('${d%/*}')}; exit; }}",
        f'set --; for i in {numbers}; do {known}; set -- "$@" "$c"; done',
        f'echo "{nonce} codes $*"; stat -c "%n %s" {files}; echo "{nonce} data"; cat {files}; echo; echo "{nonce} end"',
    ]


def without_room(answer: bytes, where: str) -> HostError | None:
    """The error for a host without space for the answers; None for another output."""
    if not answer.startswith(NO_ROOM.encode()):
        return None
    places = re.findall(rb"(\d{1,9}) (/[\w./-]{1,200})", answer.split(b"\n", 1)[0])[:2]
    full = " and ".join(f"{path.decode()} ({free.decode()} MiB free)" for free, path in places)
    problem = f"the host has no room for the answers: {full or 'no temporary directory can be made'}"
    return HostError(where, problem, "room in /run or /dev/shm", FREE_ROOM)


def is_finished(answer: bytes, nonce: str) -> bool:
    """Whether the output is complete."""
    return answer.endswith(f"\n{nonce} end\n".encode())


_NAME = rb"[0-9a-f]{16}-[0-9a-f]{64}"
_HEADER = rb" codes((?: (?:-?[0-9]{1,3}(?:@NAME)?)?)*)\n((?:(?:[0-9]{1,5}|NAME)\.[oe] [0-9]{1,9}\n)*)".replace(
    b"NAME", _NAME
)
"""The exit codes, with the name of a kept answer, and the name and size of each answer."""
_HEADER_BYTES = 400
"""The most bytes of the header for one command."""


def results(answer: bytes, nonce: str, count: int) -> list[Result]:
    """The results in the order of the commands. A command that did not run or end in time has code -1.

    Raises HostError for any other output, for example from a shell that is not POSIX or with a full tmpfs.
    """
    if full := without_room(answer, ""):
        raise full
    start = answer.find(f"{nonce} codes".encode())
    middle = answer.find(f"{nonce} data\n".encode(), start)
    short = 0 <= middle - start <= _HEADER_BYTES * (count + 1)
    header = re.fullmatch(_HEADER, answer[start + len(nonce) : middle]) if short else None
    if header is None or start < 0 or not is_finished(answer, nonce):
        shown = answer[-300:].decode("utf-8", "replace").strip()
        problem = f"the host's shell did not answer as a shell does: {shown!r}"
        fix = "set the login shell of that user to a POSIX shell (chsh -s /bin/sh); df -h /run /dev/shm"
        raise HostError("", problem, "a POSIX shell and a writable /dev/shm or /run", fix)
    codes = [word.partition("@") for word in header[1].decode("ascii").split()]
    if len(codes) != count:
        raise HostError("", "the host has no room for the answers", "room in /run or /dev/shm", FREE_ROOM)
    parts: dict[str, bytes] = {}
    position = middle + len(f"{nonce} data\n")
    for line in header[2].decode("ascii").splitlines():
        name, size = line.split()
        parts[name] = answer[position : position + int(size)]
        position += int(size)
    results = []
    complete = answer[position:] == f"\n{nonce} end\n".encode()
    for number, (code, _, kept) in enumerate(codes):
        out, error = (parts.get(f"{kept or number}.{end}") for end in "oe")
        complete = complete and (int(code) < 0 or None not in (out, error))
        out, error = out or b"", host_text.without_middle(error or b"", host_text.ERROR_BYTES)
        results.append(Result(int(code), out[:CUT_BYTES], error, cut=len(out) > CUT_BYTES))
    if not complete:
        fix = "run the same command again"
        raise HostError("", "an answer changed while the host printed it", "the whole answer of each command", fix)
    return results
