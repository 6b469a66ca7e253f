"""`invoke accept`: checks second-hand hardware."""

from __future__ import annotations

from functools import partial
from typing import Any

from rigwright.checks import ranked
from rigwright.cli import runner
from rigwright.engine.host_run import HostRun
from rigwright.engine.machine import MachineResult, MeasuredGpus
from rigwright.engine.p2p.nccl_test import NcclTestOptions
from rigwright.engine.report import CheckResult
from rigwright.features.accept import table
from rigwright.features.accept.options import AcceptOptions
from rigwright.features.stress import earlier_figures, measured_before, speed_rank
from rigwright.fleet import actions, pool


def accept(options: AcceptOptions) -> int:
    """Prints the findings of every host and the table of its GPUs; returns the exit code, 2 when there is a flaw."""

    def prepare(_run_id: str) -> runner.HostCommand:
        playbook = runner.playbook(options.playbook, "accept")
        after = partial(_judge, options=options)
        return runner.HostCommand(options, partial(_accept, options=options), playbook, afterwards=after)

    return runner.run(options, prepare)


def _accept(runs: list[HostRun], _text: Any, options: AcceptOptions) -> None:
    test = None if options.quick else NcclTestOptions(False, options.busy, options.wheels)
    pool.run_hosts(runs, partial(actions.verify_host, test=test, describe=True), activity="looking at the steps")


def _judge(runs: list[HostRun], text: Any, options: AcceptOptions) -> None:
    """Adds what earlier stresses measured, and writes the findings and the table."""
    earlier = earlier_figures.read(runs, text)
    for run in runs:
        measured = measured_before.of_machine(run.report.last(MachineResult).machine, earlier.get(run.host.name, {}))
        run.merge(MeasuredGpus(measured))
        slow = speed_rank.findings(run.host.name, measured)
        if slow and run.report.error is None:
            run.merge(CheckResult(ranked((*run.report.findings, *slow)), required_tests=run.report.required_tests))
        if run.report.error is None:
            text.verdict(run.report)
            text.findings(run.report) if options.findings else text.problems(run.report)
    table.show(text.console, [run.report for run in runs])
