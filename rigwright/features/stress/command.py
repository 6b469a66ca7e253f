"""`invoke stress`: loads all GPUs of a host, and judges what that shows."""

from __future__ import annotations

from functools import partial
from typing import Any

from rigwright.cli import runner
from rigwright.core.errors import UsageError
from rigwright.core.numbers import count
from rigwright.engine.host_run import HostRun
from rigwright.features.stress import action, earlier_figures, table
from rigwright.features.stress.facts import Stress
from rigwright.features.stress.options import StressOptions
from rigwright.fleet import pool
from rigwright.report.labels import as_is


def stress(options: StressOptions) -> int:
    """Loads the GPUs of every host after a confirmation; prints the verdict, the problems and a table for each. Returns
    the exit code."""

    def prepare(_run_id: str) -> runner.HostCommand:
        if options.executor:
            raise UsageError("--executor", "a stress is watched from this machine", "stress without --executor")
        act = partial(_stress, options=options)
        return runner.HostCommand(options, act, runner.playbook(options.playbook, "stress"))

    return runner.run(options, prepare)


def _stress(runs: list[HostRun], text: Any, options: StressOptions) -> None:
    pool.run_hosts(runs, action.look, activity="looking at the GPUs")
    able = [run for run in runs if run.report.error is None]
    if not able:
        return
    for run in able:
        text.line(f"[bold]{as_is(run.host.name)}[/]: {as_is(_announcement(run, 60 * options.minutes))}")
    runner.consent(options.yes, "Load these GPUs with all that they can do?")
    before = earlier_figures.read(able, text)
    act = partial(action.stress_host, seconds=60 * options.minutes, wheels=options.wheels, before=before)
    pool.run_hosts(able, act, activity="loading the GPUs")
    for run in able:
        measured = run.report.get(Stress)
        if measured is None:
            continue
        if run.report.error is None:
            runner.show_result(run.report, text, options.findings)
        table.show(text.console, measured, run.bound.desired.slots)
        table.show_other_settings(text.console, run.report.findings)


def _announcement(run: HostRun, seconds: float) -> str:
    cards = run.report.facts.get("gpu.gpus")
    number = count(len(cards), "GPU") if isinstance(cards, tuple) else "the GPUs"
    duration = f"{seconds / 60:g} min" if seconds >= 60 else f"{seconds:g} s"
    return (
        f"{number} at full load for about {duration}: each alone, then more and more together, then in the pattern of"
        " training, then all for the rest. A weak supply or a poor contact may lose GPUs, or reset the machine."
    )
