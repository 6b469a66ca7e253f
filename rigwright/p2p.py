"""The peer-to-peer test on a host: run as an errand, with the host's libraries or with wheels that are brought."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rigwright import catalogue, errand, events, wheels
from rigwright.catalogue import nccl
from rigwright.checks import Finding, Verdict
from rigwright.errand import Errand
from rigwright.errors import ConsentError
from rigwright.facts import Unavailable, Unreadable, driver, p2p, pci
from rigwright.facts import os as system
from rigwright.facts.p2p import Document
from rigwright.hostrun import HostRun

NAME = "peer-to-peer test"
LIMIT_S, QUICK_LIMIT_S = 900, 240
LAB_WHEELS = ".lab/cache/wheels"
AS_THE_INVENTORY_SAYS = "inventory"


@dataclass(frozen=True)
class Asked:
    """How the test is to be. `quick`: small messages, no scaling table. `busy`: also while processes use the GPUs.

    `wheels`: where libraries come from that the host has not: "fetch" (pip's index), a directory, or "" (nowhere: a test
    that nobody asked for brings nothing to a host), or AS_THE_INVENTORY_SAYS: its variable `p2p_wheels`. `beside`: other
    programs that were asked for test NCCL too.
    """

    quick: bool = False
    busy: bool = False
    wheels: str = ""
    beside: bool = False

    @property
    def missed(self) -> Verdict:
        """What it means when it cannot be run: nobody asked for the quick one, or other programs prove the collective."""
        return "info" if self.quick or self.beside else "unknown"


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
        document = _once(run, asked, ())
        if not _lacks_library(document):
            return None
        folders = _libraries(run, asked)
        if folders:
            _once(run, asked, folders)
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


def _libraries(run: HostRun, asked: Asked) -> list[str]:
    """The folders on the host that have what the test needs: kept from an earlier run, or brought now; [] when nothing is
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
    needed = found.needed(asked.quick)
    say = _sayer(run)
    if asked.wheels not in ("", "fetch"):
        local = wheels.given(Path(asked.wheels).expanduser(), needed, say)
        return wheels.brought(run.transport, local, say)
    names = {name: one.sha256 if asked.wheels else f"{name}-{one.version}" for name, one in needed.items()}
    there, free_bytes = wheels.kept(run.transport, list(names.values()))
    missing = {name: one for name, one in needed.items() if names[name] not in there}
    if missing and not asked.wheels:
        return []
    if missing:
        if run.value(system.simulated):
            raise wheels.NoWheels("a simulated host cannot use NVIDIA's own libraries", f"--wheels {LAB_WHEELS}")
        wheels.copy(run.transport, wheels.fetched(missing, say), free_bytes, say)
    return [f"{wheels.KEPT}/{name}" for name in names.values()]


def _once(run: HostRun, asked: Asked, folders: Sequence[str]) -> Document:
    """One run of the program. Its document stays a fact; its files and processes do not stay on the host.

    Raises HostError, Unreachable, Unreadable.
    """
    limit_s = QUICK_LIMIT_S if asked.quick else LIMIT_S
    words = ["--timeout-s", str(limit_s), *(["--quick"] if asked.quick else [])]
    words += ["--libraries", errand.LIBRARIES] if folders else []
    order = Errand("nccl_p2p.py", words, limit_s, NAME, folders)
    with run.uncut(NAME), errand.run(run.transport, order, _sayer(run), run.go_on):
        run.store.known.pop(p2p.tested, None)
        run.read((p2p.tested,))
        return run.store(p2p.tested)


def _sayer(run: HostRun) -> Callable[[str], None]:
    return lambda line: run.emit(events.OutputLine(run.name, NAME, line))
