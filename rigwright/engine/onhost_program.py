"""Runs a program of `onhost/` once on a host: copies its files, runs it as a systemd unit, follows it, removes the files."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import secrets
import tarfile
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from rigwright.core import shipped_files
from rigwright.core.command import script
from rigwright.core.errors import HostError, RigwrightError, Unreachable
from rigwright.core.lazy_dataclasses import dataclass
from rigwright.engine import jobs
from rigwright.engine.host_run import HostRun
from rigwright.facts import Fact
from rigwright.facts.nccl import FOLDER
from rigwright.ssh.transport import Transport

UNIT = FOLDER.rpartition("/")[2]
LIBRARIES = f"{FOLDER}/libraries"
"""The folder with links to all libraries of a program: NVIDIA's libraries load each other from their own folder."""
WATCHED = f"{FOLDER}/watched"
PROGRAMS = shipped_files.folder("onhost")


@dataclass(frozen=True)
class OnhostProgram:
    """A program of onhost/ with its arguments. `limit_s`: the time limit for the whole run. `name`: the name in messages.

    `folders`: folders on the host; links to their libraries are in LIBRARIES while the program runs. `afterwards`: a program of
    onhost/ with its arguments, "" for none, that runs whenever the program has ended, also killed, and once more at the end of its
    unit; it must do nothing when there is nothing left to do. While this machine follows a program it touches the file WATCHED.
    """

    program: str
    arguments: Sequence[str]
    limit_s: int
    name: str
    folders: Sequence[str] = ()
    afterwards: str = ""


_START = """
set -e
dir=$1 unit=$2 limit=$3 owner=$4 folders=$5 after=$6 program=$7; shift 7
command -v python3 >/dev/null || { echo "python3 is not there" >&2; exit 69; }
state=$(systemctl show -p SubState --value -- "$unit")
case $state in running|start*|stop*) echo "another test is running ($unit.service)" >&2; exit 75;; esac
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
systemd-run --quiet --unit="$unit" -p RemainAfterExit=yes -p RuntimeMaxSec="$limit" -p TimeoutStopSec=30 -p SendSIGKILL=yes \\
  --setenv=LC_ALL=C --setenv=HOME=/root --setenv=TMPDIR="$dir" --setenv=RIGWRIGHT_USER="${SUDO_USER:-}" \\
  --setenv=PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \\
  ${after:+-p "ExecStopPost=$(command -v python3) $dir/$after"} sh "$dir/job" "$dir" "$program" "$after" "$@"
"""
_END = """
dir=$1 unit=$2 owner=$3
case $(cat "$dir/owner" 2>/dev/null) in "$owner"|'') ;; *) exit 0;; esac
timeout 60 systemctl stop -- "$unit" 2>/dev/null || :; systemctl reset-failed -- "$unit" 2>/dev/null || :
rm -rf -- "$dir"
"""
"""Removes the unit and the folder; does nothing when the folder belongs to another run of a program."""


def run_and_read(host_run: HostRun, program: OnhostProgram, fact: Fact[Any]) -> None:
    """Runs a program on the host of a run and reads the fact that its document becomes. Its lines become events.

    The first Ctrl-C does not interrupt it. Raises HostError, Unreachable, Interrupted.
    """
    host_run.store.known.pop(fact, None)
    sink = host_run.output_sink(program.name)
    with (
        host_run.critical_section(program.name),
        run(host_run.transport, program, sink, host_run.raise_if_stopped),
    ):
        host_run.read((fact,))


@contextlib.contextmanager
def run(
    transport: Transport,
    program: OnhostProgram,
    on_line: Callable[[str], None],
    raise_if_stopped: Callable[[], object] = int,
) -> Iterator[None]:
    """Inside the context the program has ended and its document is on the host. On exit its files and processes are removed,
    also when it did not start.

    `on_line` gets each line of output. `raise_if_stopped` is called every few seconds; an exception from it ends the program.
    Raises HostError, also when another program is running; Unreachable.
    """
    owner = secrets.token_hex(8)
    limit, folders = str(program.limit_s + 90), " ".join(program.folders)
    words = (FOLDER, UNIT, limit, owner, folders, program.afterwards, program.program, *program.arguments)
    try:
        started = transport.run([script(_START, *words, stdin=archive(), timeout_s=90)])[0]
        if started.code != 0:
            expected, fix = "systemd-run, python3, room in /run", "sudo apt-get install python3; df -h /run"
            if started.code == 75:
                expected, fix = "one test at a time", "wait until that test has ended, then the same command again"
            raise HostError(program.name, f"it cannot be started: {started.error_text}", expected, fix)
        jobs.watch(transport, FOLDER, program.limit_s + 150, program.name, on_line, raise_if_stopped)
        yield
    finally:
        end = script(_END, FOLDER, UNIT, owner, timeout_s=90)
        with contextlib.suppress(RigwrightError):
            try:
                transport.run([end])
            except Unreachable:
                transport.connect()
                transport.run([end])


@lru_cache(maxsize=2)
def archive(pattern: str = "*.py") -> bytes:
    """A gzipped tar of the programs of onhost/ whose names match, and of pynvml.py."""
    pynvml = importlib.util.find_spec("pynvml")
    paths = [*sorted(PROGRAMS.glob(pattern)), *([Path(pynvml.origin)] if pynvml and pynvml.origin else [])]
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as packed:
        for path in paths:
            entry = tarfile.TarInfo(path.name)
            entry.size, entry.mode = path.stat().st_size, 0o644
            packed.addfile(entry, io.BytesIO(path.read_bytes()))
    return out.getvalue()
