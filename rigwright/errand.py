"""A program of `onhost/`, run once on a host over its GPUs: its files put there, run as a job of its own, followed, taken away."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from rigwright import jobs
from rigwright.errors import HostError, RigwrightError
from rigwright.facts.p2p import FOLDER
from rigwright.shell import script
from rigwright.transport import Transport

UNIT = FOLDER.rpartition("/")[2]
PROGRAMS = Path(__file__).parent / "onhost"


@dataclass(frozen=True)
class Errand:
    """What is to run: a program of onhost/, its words, the limit for all of it, what it is called, and a folder on the host
    that is to go with it."""

    program: str
    words: Sequence[str]
    limit_s: int
    name: str
    folder: str = ""


_START = """
set -e
dir=$1 unit=$2 limit=$3; shift 3
command -v python3 >/dev/null || { echo "python3 is not there" >&2; exit 69; }
state=$(systemctl show -p SubState --value -- "$unit")
case $state in running|start*|stop*) echo "another test is running ($unit.service)" >&2; exit 75;; esac
systemctl stop -- "$unit" 2>/dev/null || :; systemctl reset-failed -- "$unit" 2>/dev/null || :
rm -rf -- "$dir"; mkdir -m 711 -- "$dir"; tar -xzpf - -C "$dir"; umask 077; : >"$dir/log"
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
dir=$1 unit=$2; shift 2
timeout 60 systemctl stop -- "$unit" 2>/dev/null || :; systemctl reset-failed -- "$unit" 2>/dev/null || :
rm -rf -- "$dir" "$@"
"""


@contextlib.contextmanager
def run(
    transport: Transport, errand: Errand, say: Callable[[str], None], go_on: Callable[[], object] = int
) -> Iterator[None]:
    """Inside, the program has ended and its document stands on the host; afterwards no file and no process of it is left.

    What `go_on` raises, called every few seconds, ends it early. Raises HostError, Unreachable.
    """
    words = (errand.program, *errand.words)
    order = script(_START, FOLDER, UNIT, str(errand.limit_s + 90), *words, stdin=_archive(), timeout_s=90)
    started = transport.run([order])[0]
    if started.code != 0:
        fix = "wait for it" if started.code == 75 else "apt-get install python3; df -h /run"
        wanted = "systemd-run, python3, room in /run"
        raise HostError(errand.name, f"it cannot be started: {started.error_text}", wanted, fix)
    try:
        jobs.watch(transport, FOLDER, errand.limit_s + 150, errand.name, say, go_on)
        yield
    finally:
        also = [errand.folder] if errand.folder else []
        with contextlib.suppress(RigwrightError):
            transport.run([script(_END, FOLDER, UNIT, *also, timeout_s=90)])


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
