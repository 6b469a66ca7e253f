"""Runs the stress of all GPUs on a host: onhost/stress.py, with the host's own libraries or with those that are copied
to it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from msgspec import Struct

from rigwright.core.errors import HostError, Interrupted, RigwrightError, Unreachable
from rigwright.engine import onhost_program
from rigwright.engine.gpu_use import gpu_use, mig_use
from rigwright.engine.host_run import HostRun
from rigwright.engine.onhost_program import OnhostProgram
from rigwright.engine.p2p import nccl_test, wheels as wheel_copy
from rigwright.engine.p2p.nccl_test import NcclTestOptions
from rigwright.facts import Unavailable, Unreadable, system
from rigwright.features.recorder import recorder
from rigwright.features.stress import facts as stress
from rigwright.features.stress.facts import Stress

NAME = "stress"
"""The facts that a stress is kept with."""
START_S = 180
"""What the start of CUDA, NVML and NCCL on all GPUs may take beside the stages, as in stress.py."""
RECORDED_LONGER_S = 300
"""The recorder ends by itself so long after the stress, whatever happens."""
WITHOUT_MIG = "mig: off in the inventory, then invoke provision --tags mig; then the same command again"
LEFT_S = 120
"""The recorder ends, and removes its journal, this long after the end of stress.py if this machine has not stopped it:
its connection was lost. The start of stress.py takes less, its end on a slow host too (assumed)."""


class StressOptions(Struct, frozen=True):
    """`seconds`: of all stages. `wheels`: a source of libraries, as in NcclTestOptions."""

    seconds: float
    wheels: str = ""


def refuse_busy(run: HostRun) -> None:
    """Raises HostError while processes use the GPUs, also those of another stress, and with MIG on."""
    if use := gpu_use(run, continues=NAME):
        found = f"{use}, and a stress takes all that the GPUs have"
        fix = "wait for their end, or end them; then the same command again"
        raise HostError(run.host.name, found, "idle GPUs", fix)
    if split := mig_use(run):
        raise HostError(run.host.name, f"{split}, and a stress loads whole GPUs", "MIG off", WITHOUT_MIG)


def stressed(run: HostRun, options: StressOptions) -> Stress:
    """Runs the stress; its document is also a fact of the run. Nothing stays on the host but libraries that were copied
    to it.

    Raises HostError, also while processes use the GPUs and when the stress could not run; Unreachable.
    """
    refuse_busy(run)
    of_test = NcclTestOptions(wheels=options.wheels)
    try:
        found = _run_once(run, options, ())
        if found.outcome == "could not run" and any(error.where == "libraries" for error in found.errors):
            folders = nccl_test.libraries(run, of_test)
            found = _run_once(run, options, folders) if folders else found
    except wheel_copy.NoWheels as error:
        raise HostError(run.host.name, str(error), "the libraries of a stress", error.fix) from None
    except (Unavailable, Unreadable) as error:
        fix = f"journalctl -u {onhost_program.UNIT}, on the host; then the same command again"
        raise HostError(run.host.name, f"the stress has no result: {error}", "its document", fix) from None
    if found.outcome == "could not run":
        what = found.errors[0].what if found.errors else "no reason was given"
        source = (
            f"--wheels {nccl_test.LAB_WHEELS}" if run.value(system.simulated) else "--wheels fetch, or --wheels DIR"
        )
        fix = f"the same command with {source}" if _lacks_library(found) else f"invoke verify --host {run.host.name}"
        raise HostError(run.host.name, f"the stress could not run: {what}", "a driver, CUDA, cuBLAS and NCCL", fix)
    return found


def _lacks_library(found: Stress) -> bool:
    return any(error.where == "libraries" and "libcuda.so" not in error.what for error in found.errors)


def _run_once(run: HostRun, options: StressOptions, folders: Sequence[str]) -> Stress:
    limit_s = round(options.seconds) + START_S
    words = ["--seconds", f"{options.seconds:g}", "--timeout-s", str(limit_s)]
    with recorded(run, limit_s + RECORDED_LONGER_S) as folder:
        marks = ["--marks", f"{folder}/marks.jsonl", "--alive", f"{folder}/alive"] if folder else []
        program = OnhostProgram("stress.py", words, limit_s, NAME, folders, incidental=marks)
        onhost_program.run_and_read(run, program, stress.measured)
    return run.store(stress.measured)


@contextlib.contextmanager
def recorded(run: HostRun, limit_s: int) -> Iterator[str]:
    """Inside the context a recorder runs, whose folder on the host it yields; "" where it cannot be started, as while
    another one runs.

    The journal of a stress that ended is removed. It stays on the host when an error ends the context: verify explains
    a reset from it.
    """
    try:
        folder = recorder.start(run, limit_s, idle_s=LEFT_S)
    except HostError as error:
        run.note(f"without a recorder: {error.found}")
        yield ""
        return
    try:
        yield folder
    except RigwrightError as error:
        if not isinstance(error, Unreachable):
            _end_recording(run, folder, discard=isinstance(error, Interrupted))
        raise
    _end_recording(run, folder, discard=True)


def _end_recording(run: HostRun, folder: str, *, discard: bool) -> None:
    """Ends the recorder, which else ends by itself; with `discard` its journal is removed."""
    with contextlib.suppress(RigwrightError):
        recorder.stop(run, folder)
        if discard:
            recorder.discard(run, folder)
