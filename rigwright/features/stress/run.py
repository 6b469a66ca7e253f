"""Runs host/stress.py on a host, with the host's own libraries or with libraries that are copied to it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from rigwright.core.errors import HostError, Interrupted, RigwrightError, Unreachable
from rigwright.engine import onhost_program
from rigwright.engine.gpu_use import gpu_use, mig_use
from rigwright.engine.host_run import HostRun
from rigwright.engine.onhost_program import OnhostProgram
from rigwright.engine.p2p import nccl_test, wheels as wheel_copy
from rigwright.engine.p2p.nccl_test import NcclTestOptions
from rigwright.facts import system
from rigwright.features.recorder import recorder
from rigwright.features.stress import facts as stress
from rigwright.features.stress.facts import Stress

NAME = "stress"
"""The name of the program on the host."""
START_S = 180
"""The longest start of CUDA, NVML and NCCL on all GPUs, as in stress.py."""
RECORDED_LONGER_S = 300
"""The recorder ends by itself this long after the planned end of the stress."""
WITHOUT_MIG = "mig: off in the inventory, then invoke provision --tags mig; then the same command again"
LEFT_S = 120
"""If the connection is lost, the recorder ends and removes its journal this long after the end of stress.py. The start
of stress.py takes less, its end on a slow host too (assumed)."""


def refuse_busy(run: HostRun) -> None:
    """Raises HostError while processes use the GPUs, also those of another stress, and with MIG on."""
    if use := gpu_use(run, continues=NAME):
        problem = f"{use}, and a stress takes all that the GPUs have"
        fix = "wait for their end, or end them; then the same command again"
        raise HostError(run.host.name, problem, "idle GPUs", fix)
    if split := mig_use(run):
        raise HostError(run.host.name, f"{split}, and a stress loads whole GPUs", "MIG off", WITHOUT_MIG)


def load_gpus(run: HostRun, seconds: float, wheels: str) -> Stress:
    """Runs the stress; its document is also a fact of the run. Only libraries that were copied stay on the host.
    `seconds`: the duration of all stages. `wheels`: a source of libraries, as in NcclTestOptions.

    Raises HostError, also while processes use the GPUs and when the stress could not run; Unreachable.
    """
    refuse_busy(run)
    try:
        document = _run_once(run, seconds, ())
        if document.outcome == "could not run" and any(error.where == "libraries" for error in document.errors):
            folders = nccl_test.libraries(run, NcclTestOptions(wheels=wheels))
            document = _run_once(run, seconds, folders) if folders else document
    except wheel_copy.NoWheels as error:
        raise HostError(run.host.name, str(error), "the libraries of a stress", error.fix) from None
    if document.outcome == "could not run":
        what = document.errors[0].what if document.errors else "no reason was given"
        fix = f"invoke verify --host {run.host.name}"
        if any(error.where == "libraries" and "libcuda.so" not in error.what for error in document.errors):
            source = nccl_test.LAB_WHEELS if run.value(system.simulated) else "fetch, or --wheels DIR"
            fix = f"the same command with --wheels {source}"
        raise HostError(run.host.name, f"the stress could not run: {what}", "a driver, CUDA, cuBLAS and NCCL", fix)
    return document


def _run_once(run: HostRun, seconds: float, folders: Sequence[str]) -> Stress:
    limit_s = round(seconds) + START_S
    words = ["--seconds", f"{seconds:g}", "--timeout-s", str(limit_s)]
    with recorded(run, limit_s + RECORDED_LONGER_S) as folder:
        marks = ["--marks", f"{folder}/marks.jsonl", "--alive", f"{folder}/alive"] if folder else []
        program = OnhostProgram("stress.py", words, limit_s, NAME, folders, incidental=marks)
        return onhost_program.result(run, program, stress.measured)


@contextlib.contextmanager
def recorded(run: HostRun, limit_s: int) -> Iterator[str]:
    """A context in which a recorder runs; yields the recorder's folder on the host, or "" if it cannot be started.

    The journal of a stress that ended is removed. After an error it stays on the host: verify explains a reset from it.
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
    """Ends the recorder, with `discard` also its journal. Errors are ignored, as the recorder ends by itself."""
    with contextlib.suppress(RigwrightError):
        recorder.stop(run, folder)
        if discard:
            recorder.discard(run, folder)
