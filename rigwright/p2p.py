"""The peer-to-peer test on a host: its files put there, run as a job of its own, followed, read, and taken away again."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from rigwright import catalogue, events, jobs, wheels
from rigwright.catalogue import nccl
from rigwright.checks import Finding, Verdict
from rigwright.errors import ConsentError, HostError, RigwrightError
from rigwright.facts import Unavailable, Unreadable, driver, p2p, pci
from rigwright.facts import os as system
from rigwright.facts.p2p import Document
from rigwright.hostrun import HostRun
from rigwright.shell import Command, script

UNIT = p2p.FOLDER.rpartition("/")[2]
PROGRAMS = Path(__file__).parent / "onhost"
NAME = "peer-to-peer test"
LIMIT_S, QUICK_LIMIT_S = 900, 240
LAB_WHEELS = ".lab/cache/wheels"
AS_THE_INVENTORY_SAYS = "inventory"


@dataclass(frozen=True)
class Asked:
    """How the test is to be. `quick`: small messages, no scaling table. `busy`: also while processes use the GPUs.

    `wheels`: where libraries come from that the host has not: "fetch" (pip's index), a directory, or "" (nowhere: a test
    that nobody asked for brings nothing to a host), or AS_THE_INVENTORY_SAYS: its variable `p2p_wheels`.
    """

    quick: bool = False
    busy: bool = False
    wheels: str = ""

    @property
    def missed(self) -> Verdict:
        """What it means when it cannot be run: nobody asked for the quick one."""
        return "info" if self.quick else "unknown"


_START = """
set -e
dir=$1 unit=$2 limit=$3; shift 3
command -v python3 >/dev/null || { echo "python3 is not there" >&2; exit 69; }
state=$(systemctl show -p SubState --value -- "$unit")
case $state in running|start*|stop*) echo "another test is running ($unit.service)" >&2; exit 75;; esac
systemctl stop -- "$unit" 2>/dev/null || :; systemctl reset-failed -- "$unit" 2>/dev/null || :
rm -rf -- "$dir"; mkdir -m 700 -- "$dir"; tar -xzf - -C "$dir"; : >"$dir/log"
cat >"$dir/job" <<'END'
dir=$1; shift
python3 "$dir/nccl_p2p.py" "$@" >"$dir/document" 2>"$dir/log" </dev/null; code=$?
read boot </proc/sys/kernel/random/boot_id
echo "$code $boot" >"$dir/result.new" && mv "$dir/result.new" "$dir/result"
END
systemd-run --quiet --unit="$unit" -p RemainAfterExit=yes -p RuntimeMaxSec="$limit" -p TimeoutStopSec=30 -p SendSIGKILL=yes \\
  --setenv=LC_ALL=C --setenv=HOME=/root --setenv=TMPDIR="$dir" \\
  --setenv=PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin sh "$dir/job" "$dir" "$@"
"""
_END = """
dir=$1 unit=$2
timeout 60 systemctl stop -- "$unit" 2>/dev/null || :; systemctl reset-failed -- "$unit" 2>/dev/null || :
rm -rf -- "$dir" "$3"
"""


def test(run: HostRun, asked: Asked) -> Finding | None:
    """The test's document is a fact of the run; or why it was not run.

    Nothing of it stays on the host but libraries that were brought. Raises HostError, Unreachable.
    """
    try:
        users = run.busy()
    except ConsentError as error:
        users = error.found
    if users and not asked.busy:
        return _not_run(
            asked, f"the GPUs are in use by {users}", "end them, then invoke verify --tags p2p; or add --busy"
        )
    try:
        document = _once(run, asked, "")
        if not _lacks_library(document):
            return None
        folder = _libraries(run, asked)
        if folder:
            _once(run, asked, folder)
            return None
    except wheels.NoWheels as error:
        return _not_run(asked, str(error), error.todo)
    except (Unavailable, Unreadable) as error:
        return _not_run(
            asked, str(error), "invoke verify --tags p2p; journalctl -u rigwright-p2p, on the host", "unknown"
        )
    lacks = f"on the host {document.errors[0].what}"
    there = f"--wheels {LAB_WHEELS}" if run.value(system.simulated) else "--wheels fetch, or --wheels DIR"
    return _not_run(asked, lacks, f"invoke verify --tags p2p with {there}")


def _not_run(asked: Asked, why: str, fix: str, verdict: Verdict | None = None) -> Finding:
    return Finding("p2p.ran", NAME, verdict or asked.missed, f"not run: {why}", "", "", fix)


def _lacks_library(document: Document) -> bool:
    return document.outcome == "could not run" and any(
        error.where == "libraries" and "libcuda.so" not in error.what for error in document.errors
    )


def _libraries(run: HostRun, asked: Asked) -> str:
    """The folder on the host that has what the test needs: kept from an earlier run, or brought now; "" when nothing is
    to be brought. Raises NoWheels."""
    bus, loaded, machine = run.value(pci.gpus), run.value(driver.loaded_version), run.value(system.architecture)
    models = [catalogue.model_of(one.device_id) for one in bus]
    capabilities = sorted({one.compute_capability for one in models if one})
    found = nccl.libraries_for(int((loaded or "0").partition(".")[0]), capabilities)
    if found is None or machine != "x86_64":
        why = f"no pinned libraries are for driver {loaded or 'none'}, {machine} and capabilities {', '.join(capabilities)}"
        raise wheels.NoWheels(
            why, "install NCCL and the CUDA runtime of that driver on the host (libnccl2, cuda-cudart)"
        )
    needed = found[1].needed(asked.quick)
    say = _sayer(run)
    if asked.wheels in ("", "fetch"):
        pinned = asked.wheels == "fetch"
        names = [one.sha256 if pinned else f"{name}-{one.version}" for name, one in needed.items()]
        there, _ = wheels.kept(run.transport, names)
        if there == set(names):
            return wheels.together(run.transport, [f"{wheels.KEPT}/{name}" for name in names])
        if not asked.wheels:
            return ""
        if run.value(system.simulated):
            raise wheels.NoWheels("a simulated host cannot use NVIDIA's own libraries", f"--wheels {LAB_WHEELS}")
        local = wheels.fetched(needed, say)
    else:
        local = wheels.given(Path(asked.wheels).expanduser(), needed, say)
    return wheels.together(run.transport, wheels.copy(run.transport, local, say))


def _once(run: HostRun, asked: Asked, libraries: str) -> Document:
    """One run of the program. Its document stays a fact; its files and processes do not stay on the host.

    Raises HostError, Unreachable, Unreadable.
    """
    limit_s = QUICK_LIMIT_S if asked.quick else LIMIT_S
    words = ["--timeout-s", str(limit_s), *(["--quick"] if asked.quick else [])]
    words += ["--libraries", libraries] if libraries else []
    order = script(_START, p2p.FOLDER, UNIT, str(limit_s + 90), *words, stdin=_archive(), timeout_s=90)
    with run.uncut(NAME):
        return _followed(run, order, limit_s)


def _followed(run: HostRun, order: Command, limit_s: float) -> Document:
    """As `_once`; a run that is stopped ends the test on the host, and takes its files away, before it raises Interrupted."""
    started = run.transport.run([order])[0]
    if started.code != 0:
        fix = "wait for it" if started.code == 75 else "apt-get install python3; df -h /run"
        raise HostError(NAME, f"it cannot be started: {started.error_text}", "systemd-run, python3, room in /run", fix)
    try:
        jobs.watch(run.transport, p2p.FOLDER, limit_s + 150, NAME, _sayer(run), run.go_on)
        run.store.known.pop(p2p.tested, None)
        run.read((p2p.tested,))
        return run.store(p2p.tested)
    finally:
        with contextlib.suppress(RigwrightError):
            run.transport.run([script(_END, p2p.FOLDER, UNIT, wheels.TOGETHER, timeout_s=90)])


def _sayer(run: HostRun) -> Callable[[str], None]:
    return lambda line: run.emit(events.OutputLine(run.name, NAME, line))


@lru_cache(maxsize=1)
def _archive() -> bytes:
    """The program's files and pynvml.py, as a tar."""
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
