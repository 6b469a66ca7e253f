"""Trains a small model on the GPUs of a host with host/train_smoke.py, then runs the checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from rigwright.core.errors import HostError
from rigwright.core.host_result import HostResult
from rigwright.engine import onhost_program
from rigwright.engine.events import ActivityStarted
from rigwright.engine.gpu_use import gpu_use, mig_use
from rigwright.engine.host_run import HostRun
from rigwright.engine.onhost_program import OnhostProgram
from rigwright.facts import pci, system
from rigwright.facts.gpu import gpus as gpu
from rigwright.features.stress import run as stress
from rigwright.features.training import facts as environment
from rigwright.features.training.variables import Training
from rigwright.features.training_smoke import facts as training_smoke
from rigwright.features.training_smoke.facts import DatedFigures, Smoke, SmokeFigures
from rigwright.fleet import actions
from rigwright.history import History

NAME = "training"
RUNS, START_S = 8, 150
"""1, 2, 3, 4, 8, ... 64 GPUs; what the start of each run may take, as in train_smoke.py."""
MAKE = "invoke provision --playbook train"
_LOOKED_AT = (system.simulated, gpu.gpus)


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
        problem = f"{split}, and the training takes whole GPUs, with NCCL between them"
        raise HostError(run.host.name, problem, "MIG off", stress.WITHOUT_MIG)
    if not _gpus(run):
        raise HostError(run.host.name, "no GPU has the nvidia driver", "a GPU with its driver", "invoke provision")
    if options.python:
        return
    if training is None:
        fix = "training: {path: /opt/train, owner: USER} in the inventory, then " + MAKE + "; or --python PATH"
        raise HostError(run.host.name, "the inventory has no `training`", "an environment with torch", fix)
    place = run.value(environment.place(training.path, training.owner, training.python or ""))
    if place.kind != "own" or not place.whole:
        problem, fix = f"{training.path} is no whole environment", f"{MAKE}; or --python PATH"
        raise HostError(run.host.name, problem, "an environment with torch", fix)


def earlier_speeds(past: History, machine: int | None) -> tuple[DatedFigures, ...]:
    """The speeds of earlier trainings of a machine, oldest first. Raises HistoryError."""
    every = past.figures(machine, training_smoke.trained.name, SmokeFigures)
    return tuple(DatedFigures(*dated) for dated in every)


def look(run: HostRun, options: SmokeOptions) -> Iterator[HostResult]:
    """Reads what is in force. Raises HostError where the host may not or cannot train now."""
    refuse(run, options, run.bound.desired.of_features.get("training"))
    run.read_unknown(_LOOKED_AT)
    yield actions.known_facts(run, _LOOKED_AT)


def train_and_check(
    run: HostRun, options: SmokeOptions, before: Mapping[str, tuple[DatedFigures, ...]]
) -> Iterator[HostResult]:
    """Trains, then runs the checks of the playbook. `before`: by host the speeds of earlier trainings. Raises
    HostError, Unreachable."""
    run.tell(ActivityStarted(run.host.name, "training"))
    run.store.forget()
    training = run.bound.desired.of_features.get("training")
    refuse(run, options, training)
    yield _train(run, options, training)
    yield from actions.check_measured(run, smoke_before=before.get(run.host.name, ()))


def _train(run: HostRun, options: SmokeOptions, training: Training | None) -> Smoke:
    """Trains; the document is also a fact of the run. A recorder runs meanwhile. Nothing stays on the host."""
    limit_s = round(options.seconds) + RUNS * START_S
    words = ["--gpus", str(_gpus(run)), "--seconds", f"{options.seconds:g}", "--timeout-s", str(limit_s)]
    if options.python:
        words += ["--python", options.python]
    elif training is not None:
        words += ["--python", f"{training.path}/bin/python", "--user", training.owner]
    with stress.recorded(run, limit_s + stress.RECORDED_LONGER_S) as folder:
        alive = ["--alive", f"{folder}/alive"] if folder else []
        program = OnhostProgram("train_smoke.py", words, limit_s, NAME, incidental=alive)
        return onhost_program.result(run, program, training_smoke.trained)


def _gpus(run: HostRun) -> int:
    return sum(gpu.driver == "nvidia" for gpu in run.value(pci.gpus))
