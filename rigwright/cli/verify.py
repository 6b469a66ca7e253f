"""`invoke verify`: proves that a host is still as provisioned."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from rigwright.cli import runner
from rigwright.cli.options import VerifyOptions
from rigwright.core.errors import UsageError
from rigwright.core.numbers import count
from rigwright.core.process.program_name import program_name

if TYPE_CHECKING:
    from rigwright.engine.host_run import HostRun
    from rigwright.engine.report import HostReport
    from rigwright.inventory.model import Host


def verify(options: VerifyOptions) -> int:
    """Prints the findings of every host; returns the exit code, 2 when something is not as expected."""

    def prepare(_run_id: str) -> runner.HostCommand:
        _require_sense(options)
        return runner.HostCommand(
            options,
            partial(_verify, options=options),
            runner.playbook(options.playbook, "provision"),
            frozenset(options.tags),
            watch=options.watch,
            checks_only=lambda host: options.watch or never_provisioned(host, options.playbook),
            afterwards=lambda _jobs, text: runner.warn_of_age(text),
        )

    return runner.run(options, prepare)


def never_provisioned(host: Host, playbook: str) -> bool:
    """Whether a host has no `driver`, so that our own playbook cannot provision it: only its checks can be done."""
    return not playbook and "driver" not in host.variables


def _require_sense(options: VerifyOptions) -> None:
    """Raises UsageError for options that contradict each other."""
    full = "p2p" in options.tags
    for wrong, flag, found, expected, fix in (
        (options.watch and (options.json or options.html), "--watch",
         "a watch has no end, so --json and --html are never written", "--watch alone", "leave --json and --html out"),
        (options.watch and options.executor, "--watch", "connects from this machine, and --executor from others",
         "--watch or --executor", "leave --executor out"),
        (options.quick and full, "--quick", "skips the peer-to-peer test, and --tags p2p runs it",
         "--quick or --tags p2p", "leave --quick out"),
        (options.nccl_tests and not full, "--nccl-tests", "belongs to the peer-to-peer test in full",
         "--tags p2p --nccl-tests", "add --tags p2p"),
        (options.nccl_tests and options.watch, "--watch", "only reads, and --nccl-tests runs programs",
         "--watch or --nccl-tests", "leave --watch out"),
    ):  # fmt: skip
        if wrong:
            raise UsageError(flag, found, expected, fix)


def _verify(runs: list[HostRun], text: Any, options: VerifyOptions) -> None:
    from rigwright.checks.accepted import acceptable
    from rigwright.engine.p2p.nccl_test import AS_THE_INVENTORY_SAYS, NcclTestOptions
    from rigwright.engine.p2p.nccl_tests import Programs
    from rigwright.fleet import actions, pool

    if options.watch:
        from rigwright.cli import watch

        watch.watch(runs, text)
    programs = Programs(options.nccl_tests, options.busy) if options.nccl_tests else None
    test = None
    if not options.quick:
        full = "p2p" in options.tags
        wheels = options.wheels or (AS_THE_INVENTORY_SAYS if full and not programs else "")
        test = NcclTestOptions(not full, options.busy, wheels, bool(programs))
    action = partial(actions.verify_host, test=test, programs=programs, describe=bool(options.json or options.html))
    pool.run_hosts(runs, action, activity="looking at the steps")
    for run in runs:
        if run.report.error is None:
            runner.show_result(run.report, text, options.findings)
            text.line(summary(run.report, options.findings))
            names = ", ".join(dict.fromkeys(each.check for each in run.report.findings if acceptable(each)))
            if names and run.report.verdict and run.report.verdict.level == "warn":
                hint = f"to accept a warning ({names}), name it under `accepted` in the inventory: verify --help"
                text.line(f"  [dim]{hint}[/]")


def summary(report: HostReport, findings: bool) -> str:
    """How many steps are as planned, how many checks hold, failed or could not be answered, and how they are shown."""
    from rigwright.report.labels import checks_in_words

    steps = sum(step.status == "ok" for step in report.planned)
    notes = sum(finding.verdict == "info" for finding in report.findings)
    also = f" and {count(notes, 'note')}" if notes else ""
    more = "" if findings else f"; {program_name()} verify --findings shows them{also}"
    return f"  [dim]{count(steps, 'step')} as planned, {checks_in_words(report)}{more}[/]"
