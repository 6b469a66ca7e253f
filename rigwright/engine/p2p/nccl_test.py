"""Runs the peer-to-peer test on a host, with the host's own NCCL libraries or with wheels that are copied to it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from rigwright import catalogue
from rigwright.catalogue import nccl_wheels
from rigwright.checks import Finding, Verdict, p2p
from rigwright.engine import onhost_program
from rigwright.engine.gpu_use import gpu_use, mig_use
from rigwright.engine.host_run import HostRun
from rigwright.engine.onhost_program import OnhostProgram
from rigwright.engine.p2p import wheels as wheel_copy
from rigwright.engine.report import NcclTestResult
from rigwright.facts import Unavailable, Unreadable, driver, pci, system
from rigwright.facts.nccl import p2p_test as facts_nccl
from rigwright.facts.nccl.p2p_test import Document

NAME = p2p.TEST
LIMIT_S, QUICK_LIMIT_S = 900, 240
LAB_WHEELS = ".lab/cache/wheels"
AS_THE_INVENTORY_SAYS = "inventory"


class NcclTestOptions(Struct, frozen=True):
    """Options of the test. `quick`: small messages, no scaling table. `busy`: also while processes use the GPUs.

    `wheels`: the source of libraries that the host lacks: "fetch" (pip's index), a directory, "" (none: nothing is
    copied to the host), or AS_THE_INVENTORY_SAYS (the inventory variable `p2p_wheels`). `optional`: a host without the
    libraries needs no test, because other programs test NCCL in the same run, or its owner has decided against it.
    """

    quick: bool = False
    busy: bool = False
    wheels: str = ""
    optional: bool = False


def test(run: HostRun, options: NcclTestOptions) -> NcclTestResult:
    """Runs the test; its document is also a fact of the run.

    Nothing stays on the host but libraries that were copied to it. Raises HostError, Unreachable.
    """
    if (use := gpu_use(run, continues=NAME)) and not options.busy:
        return _not_run(use, "end them, then the same command again; or add --busy")
    if split := mig_use(run):
        why = f"{split}, and its instances have no peer access and no NCCL between them"
        return _not_run(why, "mig: off in the inventory and invoke provision, to test the whole GPUs", "info")
    without_libraries: Verdict = "info" if options.optional else "unknown"
    try:
        document = _run_once(run, options, ())
        if not _lacks_library(document):
            return NcclTestResult(document)
        folders = libraries(run, options)
        if folders:
            return NcclTestResult(_run_once(run, options, folders))
    except wheel_copy.NoWheels as error:
        return _not_run(str(error), error.fix, without_libraries)
    except (Unavailable, Unreadable) as error:
        fix = "invoke verify --tags p2p; journalctl -u rigwright-p2p, on the host"
        return _not_run(str(error), fix)
    lacks = f"on the host {document.errors[0].what}"
    source = f"--wheels {LAB_WHEELS}" if run.value(system.simulated) else "--wheels fetch, or --wheels DIR"
    return _not_run(lacks, f"invoke verify --tags p2p with {source}", without_libraries)


def _not_run(why: str, fix: str, verdict: Verdict = "unknown") -> NcclTestResult:
    return NcclTestResult(None, (Finding(NAME, verdict, f"not run: {why}", fix=fix, check="p2p.ran"),))


def _lacks_library(document: Document) -> bool:
    return document.outcome == "could not run" and any(
        error.where == "libraries" and "libcuda.so" not in error.what for error in document.errors
    )


def libraries(run: HostRun, options: NcclTestOptions) -> list[str]:
    """The folders on the host with the libraries that the test needs: kept from an earlier run, or copied now.

    [] when the host lacks them and `wheels` is "". Raises NoWheels.
    """
    bus, loaded, machine = run.value(pci.gpus), run.value(driver.loaded_version), run.value(system.architecture)
    if not loaded:
        raise wheel_copy.NoWheels("no driver is loaded, and the test needs one", "invoke provision")
    models = [catalogue.model_of(gpu.device_id) for gpu in bus]
    capabilities = sorted({model.compute_capability for model in models if model})
    libraries = nccl_wheels.libraries_for(int(loaded.partition(".")[0]), capabilities)
    if libraries is None or machine != "x86_64":
        why = f"no pinned libraries are for driver {loaded}, {machine} and capabilities {', '.join(capabilities)}"
        fix = "install NCCL and the CUDA runtime of that driver on the host (libnccl2, cuda-cudart)"
        raise wheel_copy.NoWheels(why, fix)
    needed = libraries.needed(options.quick)
    on_line = run.output_sink(NAME)
    if options.wheels not in ("", "fetch"):
        local = wheel_copy.find(Path(options.wheels).expanduser(), needed, on_line)
        folders = wheel_copy.copy_missing(run.transport, local, on_line)
        on_line(f"the libraries of {options.wheels} are used")
        return folders
    names = {name: wheel.sha256 if options.wheels else f"{name}-{wheel.version}" for name, wheel in needed.items()}
    present, free_bytes = wheel_copy.kept_on_host(run.transport, list(names.values()))
    missing = {name: wheel for name, wheel in needed.items() if names[name] not in present}
    if missing and not options.wheels:
        return []
    if missing:
        if run.value(system.simulated):
            raise wheel_copy.NoWheels("a simulated host cannot use NVIDIA's own libraries", f"--wheels {LAB_WHEELS}")
        wheel_copy.copy(run.transport, wheel_copy.fetch(missing, on_line), free_bytes, on_line)
    on_line("the pinned libraries are used")
    return [f"{wheel_copy.KEPT}/{name}" for name in names.values()]


def _run_once(run: HostRun, options: NcclTestOptions, folders: Sequence[str]) -> Document:
    """Runs the program once. Its document becomes a fact; its files and processes are removed from the host.

    Raises HostError, Unreachable, Unreadable.
    """
    limit_s = QUICK_LIMIT_S if options.quick else LIMIT_S
    words = ["--timeout-s", str(limit_s), *(["--quick"] if options.quick else [])]
    program = OnhostProgram("nccl_p2p.py", words, limit_s, NAME, folders)
    onhost_program.run_and_read(run, program, facts_nccl.tested)
    return run.store(facts_nccl.tested)
