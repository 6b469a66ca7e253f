"""A program of `onhost/`, run once on a host over its GPUs: its files put there, run as a job of its own, followed, taken away."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import secrets
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from rigwright import jobs
from rigwright.errors import HostError, RigwrightError, Unreachable
from rigwright.facts.p2p import FOLDER
from rigwright.shell import script
from rigwright.transport import Transport

UNIT = FOLDER.rpartition("/")[2]
LIBRARIES = f"{FOLDER}/libraries"
"""Links to all libraries of an errand: NVIDIA's find each other beside themselves."""
PROGRAMS = Path(__file__).parent / "onhost"


@dataclass(frozen=True)
class Errand:
    """What is to run: a program of onhost/, its words, the limit for all of it, what it is called, and the folders on the
    host whose libraries stand in LIBRARIES while it runs."""

    program: str
    words: Sequence[str]
    limit_s: int
    name: str
    folders: Sequence[str] = ()


_START = """
set -e
dir=$1 unit=$2 limit=$3 owner=$4 folders=$5; shift 5
command -v python3 >/dev/null || { echo "python3 is not there" >&2; exit 69; }
state=$(systemctl show -p SubState --value -- "$unit")
case $state in running|start*|stop*) echo "another test is running ($unit.service)" >&2; exit 75;; esac
systemctl stop -- "$unit" 2>/dev/null || :; systemctl reset-failed -- "$unit" 2>/dev/null || :
rm -rf -- "$dir"; mkdir -m 711 -- "$dir"; echo "$owner" >"$dir/owner"; mkdir -m 755 -- "$dir/libraries"
for folder in $folders; do ln -s -- "$folder"/*.so* "$dir/libraries/"; done
tar -xzpf - -C "$dir"; umask 077; : >"$dir/log"
cat >"$dir/job" <<'END'
umask 077; dir=$1 program=$2; shift 2
python3 "$dir/$program" "$@" >"$dir/document" 2>"$dir/log" </dev/null; code=$?
read boot </proc/sys/kernel/random/boot_id
echo "$code $boot" >"$dir/result.new" && mv "$dir/result.new" "$dir/result"
END
systemd-run --quiet --unit="$unit" -p RemainAfterExit=yes -p RuntimeMaxSec="$limit" -p TimeoutStopSec=30 -p SendSIGKILL=yes \\
  --setenv=LC_ALL=C --setenv=HOME=/root --setenv=TMPDIR="$dir" --setenv=RIGWRIGHT_USER="${SUDO_USER:-}" \\
  --setenv=PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin sh "$dir/job" "$dir" "$@"
"""
_END = """
dir=$1 unit=$2 owner=$3
case $(cat "$dir/owner" 2>/dev/null) in "$owner"|'') ;; *) exit 0;; esac
timeout 60 systemctl stop -- "$unit" 2>/dev/null || :; systemctl reset-failed -- "$unit" 2>/dev/null || :
rm -rf -- "$dir"
"""
"""What stands in the folder of another errand is left to it."""


@contextlib.contextmanager
def run(
    transport: Transport, errand: Errand, say: Callable[[str], None], go_on: Callable[[], object] = int
) -> Iterator[None]:
    """Inside, the program has ended and its document stands on the host; afterwards no file and no process of it is left,
    also where it did not start. Another errand that is under way is left alone, and this one not begun.

    What `go_on` raises, called every few seconds, ends it early. Raises HostError, Unreachable.
    """
    owner = secrets.token_hex(8)
    limit, folders = str(errand.limit_s + 90), " ".join(errand.folders)
    words = (FOLDER, UNIT, limit, owner, folders, errand.program, *errand.words)
    try:
        started = transport.run([script(_START, *words, stdin=_archive(), timeout_s=90)])[0]
        if started.code != 0:
            fix = "wait for it" if started.code == 75 else "apt-get install python3; df -h /run"
            wanted = "systemd-run, python3, room in /run"
            raise HostError(errand.name, f"it cannot be started: {started.error_text}", wanted, fix)
        jobs.watch(transport, FOLDER, errand.limit_s + 150, errand.name, say, go_on)
        yield
    finally:
        with contextlib.suppress(RigwrightError):
            _end(transport, owner)


def _end(transport: Transport, owner: str) -> None:
    """Nothing of the errand of that owner is left. Raises HostError; Unreachable, where there is no way back to the host."""
    end = script(_END, FOLDER, UNIT, owner, timeout_s=90)
    try:
        transport.run([end])
    except Unreachable:
        transport.connect()
        transport.run([end])


@lru_cache(maxsize=1)
def _archive() -> bytes:
    """The programs' files and pynvml.py, as a tar."""
    found = importlib.util.find_spec("pynvml")
    paths = [*sorted(PROGRAMS.glob("nccl_*.py")), *([Path(found.origin)] if found and found.origin else [])]
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for path in paths:
            about = tarfile.TarInfo(path.name)
            about.size, about.mode = path.stat().st_size, 0o644
            with path.open("rb") as file:
                archive.addfile(about, file)
    return out.getvalue()
