"""Runs a program once on a host: copies the programs for hosts there, runs it as a systemd unit, follows it, removes
the files."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import secrets
import tarfile
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct

from rigwright.core import features
from rigwright.core.command import Result, script
from rigwright.core.errors import HostError, RigwrightError, Unreachable
from rigwright.engine import jobs, own_programs as ours, run_owner
from rigwright.engine.host_run import HostRun
from rigwright.facts import Fact, Unavailable, Unreadable, own_programs
from rigwright.facts.nccl.document import FOLDER

T = TypeVar("T")

UNIT = FOLDER.rpartition("/")[2]
LIBRARIES = f"{FOLDER}/libraries"
"""The folder with links to all libraries of a program: NVIDIA's libraries load each other from their own folder."""
WATCHED = f"{FOLDER}/watched"


class OnhostProgram(Struct, frozen=True):
    """A program for hosts with its arguments. `limit_s`: the time limit for the whole run. `name`: for messages.

    `folders`: on the host; links to their libraries are in LIBRARIES (--libraries) while the program runs.
    `afterwards`: a program for hosts with its arguments that runs when the program has ended, also killed, and again
    at the end of its unit, so it must do nothing if nothing is left to do; "" for none. `at_end`: what it does, such as
    `puts 200 W back`. `watched_s`: the program ends if the file WATCHED, which this machine touches while it follows
    it, is older (--watched, --watched-s); 0: it does not. `incidental`: arguments that do not change what it measures.
    """

    program: str
    arguments: Sequence[str]
    limit_s: int
    name: str
    folders: Sequence[str] = ()
    afterwards: str = ""
    at_end: str = ""
    watched_s: int = 0
    incidental: Sequence[str] = ()

    @property
    def key(self) -> str:
        """Equal for programs whose documents answer the same question."""
        return hashlib.sha256("\0".join((self.program, *self.arguments)).encode()).hexdigest()[:16]

    @property
    def words(self) -> tuple[str, ...]:
        """All arguments."""
        watched = ("--watched", WATCHED, "--watched-s", str(self.watched_s)) if self.watched_s else ()
        libraries = ("--libraries", LIBRARIES) if self.folders else ()
        return (*self.arguments, *self.incidental, *watched, *libraries)

    @property
    def unit_limit_s(self) -> int:
        """The seconds after which systemd ends its unit."""
        return self.limit_s + 90


_BUSY = 75
_START = f"""{own_programs.BEGIN}
set -e
dir=$1 unit=$2 limit=$3 owner=$4 folders=$5 after=$6 description=$7 program=$8; shift 8
command -v python3 >/dev/null || {{ echo "python3 is not there" >&2; exit 69; }}
state=$(systemctl show -p SubState --value -- "$unit")
case $state in running|start*|stop*) echo "another test is running ($unit.service)" >&2; exit {_BUSY};; esac
systemctl stop -- "$unit" 2>/dev/null || :; systemctl reset-failed -- "$unit" 2>/dev/null || :
rm -rf -- "$dir"; mkdir -m 711 -- "$dir"; echo "$owner" >"$dir/owner"; mkdir -m 755 -- "$dir/libraries"
for folder in $folders; do ln -s -- "$folder"/*.so* "$dir/libraries/"; done
tar -xzpf - -C "$dir"; umask 077; : >"$dir/log"; : >"$dir/watched"
cat >"$dir/job" <<'END'
umask 077; dir=$1 program=$2 after=$3; shift 3
python3 "$dir/$program" "$@" >"$dir/document" 2>"$dir/log" </dev/null; code=$?
[ -z "$after" ] || python3 "$dir"/$after >>"$dir/log" 2>&1 </dev/null
read boot </proc/sys/kernel/random/boot_id
echo "$code $boot" >"$dir/result.new" && mv "$dir/result.new" "$dir/result"
END
begin "$description" --unit="$unit" -p RemainAfterExit=yes -p RuntimeMaxSec="$limit" -p TimeoutStopSec=30 \\
  -p SendSIGKILL=yes --setenv=HOME=/root --setenv=TMPDIR="$dir" --setenv=RIGWRIGHT_USER="${{SUDO_USER:-}}" \\
  ${{after:+-p "ExecStopPost=$(command -v python3) $dir/$after"}} sh "$dir/job" "$dir" "$program" "$after" "$@"
"""
_FOLLOW = """
dir=$1 unit=$2 owner=$3 follower=$4
case $(systemctl show -p SubState --value -- "$unit") in running|start*|stop*) ;; *) exit 1;; esac
touch "$dir/watched"; umask 077
echo "$follower" >"$dir/follower.new" && mv "$dir/follower.new" "$dir/follower" && echo "$owner" >"$dir/owner"
"""
"""Makes another command the one that follows a program at work, and that removes it."""
_END = """
dir=$1 unit=$2 owner=$3
case $(cat "$dir/owner" 2>/dev/null) in "$owner"|'') ;; *) exit 0;; esac
timeout 60 systemctl stop -- "$unit" 2>/dev/null || :; systemctl reset-failed -- "$unit" 2>/dev/null || :
rm -rf -- "$dir"
"""
"""Removes the unit and the folder; does nothing when the folder belongs to another run of a program."""


def run_and_read(host_run: HostRun, program: OnhostProgram, fact: Fact[Any]) -> None:
    """Runs a program on the host of a run and reads the fact that its document becomes. Its lines become events.

    The same program whose command has ended is followed to its end in place of a new one; another one is waited for.
    The first Ctrl-C does not interrupt it. Raises HostError, Unreachable, Interrupted.
    """
    host_run.store.known.pop(fact, None)
    with host_run.critical_section(program.name), run(host_run, program):
        host_run.read((fact,))


def result(host_run: HostRun, program: OnhostProgram, fact: Fact[T]) -> T:
    """Runs the program as `run_and_read` does; returns what the fact reads. Raises HostError also without a result."""
    run_and_read(host_run, program, fact)
    try:
        return host_run.store(fact)
    except (Unavailable, Unreadable) as error:
        fix = f"journalctl -u {UNIT}, on the host; then the same command again"
        raise HostError(host_run.host.name, f"the {program.name} has no result: {error}", "its document", fix) from None


@contextlib.contextmanager
def run(host_run: HostRun, program: OnhostProgram) -> Iterator[None]:
    """Inside the context the program has ended and its document is on the host. On exit its files and processes are
    removed, also when it did not start. The first Ctrl-C ends it.

    Raises HostError, also when another program is running; Unreachable.
    """
    transport, token = host_run.transport, secrets.token_hex(8)
    try:
        stopped = _begin(host_run, program, token)
        jobs.watch(transport, FOLDER, program.limit_s + 150, program.name, host_run.output_sink(program.name), stopped)
        yield
    finally:
        end = script(_END, FOLDER, UNIT, token, timeout_s=90)
        with contextlib.suppress(RigwrightError):
            try:
                transport.run([end])
            except Unreachable:
                transport.connect()
                transport.run([end])


def _begin(host_run: HostRun, program: OnhostProgram, token: str) -> Callable[[], object]:
    """Starts the program, or follows the same one that is at work; returns a function to be called while it runs."""
    started = _start(host_run, program, token)
    if started.code == _BUSY and (other := ours.of_unit(host_run, UNIT)):
        if other.key == program.key and ours.command_ended(other):
            host_run.note(f"continues {ours.in_words(other)}")
            follower = run_owner.owner(host_run.options.run_id, host_run.host.name)
            if host_run.transport.run([script(_FOLLOW, FOLDER, UNIT, token, follower)])[0].code == 0:
                return ours.countdown(host_run, other)
        else:
            ours.await_end(host_run, other)
        started = _start(host_run, program, token)
    if started.code != 0:
        expected, fix = "systemd-run, python3, room in /run", "sudo apt-get install python3; df -h /run"
        if started.code == _BUSY:
            expected, fix = "one test at a time", "wait until that test has ended, then the same command again"
        raise HostError(program.name, f"it cannot be started: {started.error_text}", expected, fix)
    return host_run.raise_if_stopped


def _start(host_run: HostRun, program: OnhostProgram, token: str) -> Result:
    owner = run_owner.owner(host_run.options.run_id, host_run.host.name)
    description = own_programs.description(
        program.name, owner, program.unit_limit_s, program.key, program.watched_s, program.at_end
    )
    words = (FOLDER, UNIT, str(program.unit_limit_s), token, " ".join(program.folders), program.afterwards, description)
    start = script(_START, *words, program.program, *program.words, stdin=archive(), timeout_s=90)
    return host_run.transport.run([start])[0]


@lru_cache(maxsize=2)
def archive(*names: str) -> bytes:
    """A gzipped tar of these programs for hosts, without names of all of them, and of pynvml.py."""
    programs, pynvml = features.host_programs(), importlib.util.find_spec("pynvml")
    paths = [programs[name] for name in sorted(names or programs)]
    paths += [Path(pynvml.origin)] if pynvml and pynvml.origin else []
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as packed:
        for path in paths:
            entry = tarfile.TarInfo(path.name)
            entry.size, entry.mode = path.stat().st_size, 0o644
            packed.addfile(entry, io.BytesIO(path.read_bytes()))
    return out.getvalue()
