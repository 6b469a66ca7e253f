"""Trains a small model on the GPUs of a host: host/train_smoke.py, with the training environment or another
interpreter."""

from __future__ import annotations

from msgspec import Struct

from rigwright.core.errors import HostError
from rigwright.engine import onhost_program
from rigwright.engine.gpu_use import gpu_use, mig_use
from rigwright.engine.host_run import HostRun
from rigwright.engine.onhost_program import OnhostProgram
from rigwright.facts import Unavailable, Unreadable, pci
from rigwright.features.stress import run as stress
from rigwright.features.training import facts as environment
from rigwright.features.training.variables import Training
from rigwright.features.training_smoke import facts as training_smoke
from rigwright.features.training_smoke.facts import Smoke

NAME = "training"
RUNS, START_S = 7, 150
"""1, 2, 4, ... 64 GPUs; what the start of each run may take, as in train_smoke.py."""
MAKE = "invoke provision --playbook train"


class SmokeOptions(Struct, frozen=True):
    """`seconds`: of all trainings together. `python`: an interpreter on the host, "" for that of the training
    environment."""

    seconds: float
    python: str = ""


def refuse(run: HostRun, options: SmokeOptions, training: Training | None) -> None:
    """Raises HostError while processes use the GPUs, with MIG on, without a GPU, and without an environment."""
    if use := gpu_use(run, continues=NAME):
        fix = "wait for their end, or end them; then the same command again"
        raise HostError(run.host.name, f"{use}, and the training takes all GPUs", "idle GPUs", fix)
    if split := mig_use(run):
        found = f"{split}, and the training takes whole GPUs, with NCCL between them"
        raise HostError(run.host.name, found, "MIG off", stress.WITHOUT_MIG)
    if not _gpus(run):
        raise HostError(run.host.name, "no GPU has the nvidia driver", "a GPU with its driver", "invoke provision")
    if options.python:
        return
    if training is None:
        fix = "training: {path: /opt/train, owner: USER} in the inventory, then " + MAKE + "; or --python PATH"
        raise HostError(run.host.name, "the inventory has no `training`", "an environment with torch", fix)
    place = run.value(environment.place(training.path, training.owner, training.python or ""))
    if place.kind != "own" or not place.whole:
        found, fix = f"{training.path} is no whole environment", f"{MAKE}; or --python PATH"
        raise HostError(run.host.name, found, "an environment with torch", fix)


def trained(run: HostRun, options: SmokeOptions, training: Training | None) -> Smoke:
    """Trains; the document is also a fact of the run. A recorder runs meanwhile. Nothing stays on the host.

    Raises HostError, also where `refuse` does; Unreachable.
    """
    refuse(run, options, training)
    limit_s = round(options.seconds) + RUNS * START_S
    words = ["--gpus", str(_gpus(run)), "--seconds", f"{options.seconds:g}", "--timeout-s", str(limit_s)]
    if options.python:
        words += ["--python", options.python]
    elif training is not None:
        words += ["--python", f"{training.path}/bin/python", "--user", training.owner]
    with stress.recorded(run, limit_s + stress.RECORDED_LONGER_S) as folder:
        alive = ["--alive", f"{folder}/alive"] if folder else []
        program = OnhostProgram("train_smoke.py", words, limit_s, NAME, incidental=alive)
        onhost_program.run_and_read(run, program, training_smoke.trained)
    try:
        return run.store(training_smoke.trained)
    except (Unavailable, Unreadable) as error:
        fix = f"journalctl -u {onhost_program.UNIT}, on the host; then the same command again"
        raise HostError(run.host.name, f"the training has no result: {error}", "its document", fix) from None


def _gpus(run: HostRun) -> int:
    return sum(gpu.driver == "nvidia" for gpu in run.value(pci.gpus))
