"""`invoke train.smoke`: trains a small model on the GPUs of a host, and judges what that shows."""

from __future__ import annotations

from functools import partial
from typing import Any

from rigwright.cli import fleet_check, runner
from rigwright.core import features
from rigwright.core.errors import UsageError
from rigwright.core.numbers import count
from rigwright.engine.host_run import HostRun
from rigwright.features.training_smoke import run as smoked
from rigwright.features.training_smoke.facts import Smoke
from rigwright.features.training_smoke.options import TrainSmokeOptions
from rigwright.features.training_smoke.run import SmokeOptions
from rigwright.fleet import pool
from rigwright.report.labels import as_is


def train_smoke(options: TrainSmokeOptions) -> int:
    """Trains on the GPUs of every host after a yes; prints the verdict and every finding. Returns the exit code."""

    def prepare(_run_id: str) -> runner.HostCommand:
        if options.executor:
            raise UsageError("--executor", "a training is watched from this machine", "train.smoke without --executor")
        if options.python and not options.python.startswith(("/", "~/")):
            problem = f"{options.python} does not say where on the host"
            raise UsageError("--python", problem, "a path that begins with / or ~/", "--python ~/venv/bin/python")
        asked = SmokeOptions(options.seconds, options.python)
        if (options.links or options.unlike) and not options.nodes:
            flag = "--links" if options.links else "--unlike"
            raise UsageError(flag, "is for several nodes", "--nodes", f"train.smoke --nodes {flag}")
        if options.nodes:
            train_nodes = features.part("nodes", "command")
            act = partial(train_nodes.act, options=options, asked=asked)
            return runner.HostCommand(options, act, runner.playbook(options.playbook, train_nodes.PLAYBOOK))
        act = partial(_train, options=options, asked=asked)
        return runner.HostCommand(options, act, runner.playbook(options.playbook, "train-smoke"))

    return runner.run(options, prepare)


def _train(runs: list[HostRun], text: Any, options: TrainSmokeOptions, asked: SmokeOptions) -> None:
    pool.run_hosts(runs, partial(smoked.look, options=asked), activity="looking at the GPUs")
    able = [run for run in runs if run.report.error is None]
    if not able:
        return
    for run in able:
        cards = run.report.facts.get("gpu.gpus")
        number = count(len(cards), "GPU") if isinstance(cards, tuple) else "the GPUs"
        words = f"trains a small model on {number} for about {asked.seconds:g} s"
        words += ", first on one, then on more and more together; each process has OMP_NUM_THREADS=1."
        text.line(f"[bold]{as_is(run.host.name)}[/]: {as_is(words)}")
    runner.consent(options.yes, "Train on these GPUs?")
    before = fleet_check.remembered(able, text, smoked.earlier_speeds, "trainings")
    pool.run_hosts(able, partial(smoked.train_and_check, options=asked, before=before), activity="training")
    for run in able:
        if run.report.get(Smoke) is not None and run.report.error is None:
            runner.show_result(run.report, text, findings=True)
