"""`invoke provision`: plans all hosts, asks, and provisions them at once or in batches."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from rigwright.cli import runner
from rigwright.cli.given_inventory import inventory_path
from rigwright.cli.options import ProvisionOptions
from rigwright.cli.plan import hint_at_training
from rigwright.core import host_ranges
from rigwright.core.errors import UsageError
from rigwright.core.numbers import count
from rigwright.core.process.program_name import program_name
from rigwright.engine.report import HostReport, NcclTestResult

if TYPE_CHECKING:
    from rigwright.cli.on_workers import Slices
    from rigwright.engine.host_run import HostRun
    from rigwright.fleet.host_runs import HostAction
    from rigwright.fleet.rollout import Rolling

MANY = 4
"""With more hosts than this, findings that pass are only counted."""
ALIKE = 3
"""This many hosts with the same result, or more, are shown as one."""


def provision(options: ProvisionOptions) -> int:
    """Provisions the hosts, at once or in batches; returns the exit code."""

    def prepare(run_id: str) -> runner.HostCommand:
        counted, rolling = _rollout(options, run_id)
        return runner.HostCommand(
            counted,
            partial(_provision, options=counted, rolling=rolling),
            runner.playbook(counted.playbook, "provision"),
            frozenset(counted.tags),
            options.disrupt,
            rolling.state.reboots if rolling else options.reboots or 1,
            restart=restart_words(options.command, options.yes),
            rollout=rolling,
            by_workers=partial(_provision_by_workers, rolling=rolling),
            afterwards=partial(_hint, playbook=counted.playbook),
            exit_code=exit_code,
        )

    return runner.run(options, prepare)


def _hint(runs: list[HostRun], text: Any, playbook: str) -> None:
    """Says what `train` would add to hosts that this run has proved with the playbook of the command."""
    if not playbook:
        proved = (run.host for run in runs if not run.report.bad and run.report.status != "not_attempted")
        hint_at_training(proved, text, "provision")


def _rollout(options: ProvisionOptions, run_id: str) -> tuple[ProvisionOptions, Rolling | None]:
    """The options that count, and their rollout, or None for all hosts at once. Raises UsageError."""
    if options.resume:
        return _rollout_to_resume(options, run_id)
    if not options.serial and options.max_fail is None and not options.executor:
        return options, None
    from rigwright.fleet.journal import Rollout
    from rigwright.fleet.rollout import Rolling

    inventory = str(inventory_path(options.inventory).resolve())
    playbook = str(runner.playbook(options.playbook, "provision").resolve())
    most = 0 if options.max_fail is None and options.serial else options.max_fail
    subject = (inventory, playbook, options.host or "", ",".join(options.tags))
    state = Rollout(run_id, *subject, most, options.reboots or 1, (), runs=(run_id,))
    return options, Rolling(state, options.serial or ("100%",))


def _rollout_to_resume(options: ProvisionOptions, run_id: str) -> tuple[ProvisionOptions, Rolling]:
    """The options of the rollout that stopped last. Raises UsageError when other options contradict them."""
    from rigwright.fleet import journal
    from rigwright.fleet.rollout import Rolling

    if options.serial:
        problem, expected = "keeps the batches of the rollout that stopped", "--resume without --serial"
        raise UsageError(
            "--resume", problem, expected, "leave --serial out; or leave --resume out to begin a new rollout"
        )
    state = journal.last_stopped()
    playbook = options.playbook and str(runner.playbook(options.playbook, "provision").resolve())
    for option, typed, old in (
        ("--inventory", options.inventory and str(Path(options.inventory).resolve()), state.inventory),
        ("--playbook", playbook, state.playbook),
        ("--host", options.host, state.host),
        ("--tags", ",".join(options.tags), state.tags),
    ):
        if typed and typed != old:
            problem = f"the rollout that stopped (run {state.run}) was of {option} {old or 'without'}, not {typed}"
            todo = f"leave {option} out; or begin a new rollout: --serial in place of --resume"
            raise UsageError("--resume", problem, "the options of the same rollout", todo)
    state = replace(
        state,
        runs=(*state.runs, run_id),
        max_fail=state.max_fail if options.max_fail is None else options.max_fail,
        reboots=options.reboots or state.reboots,
    )
    hosts = ",".join(state.hosts)
    tags = tuple(filter(None, state.tags.split(",")))
    same = dataclasses.replace(options, inventory=state.inventory, playbook=state.playbook, host=hosts, tags=tags)
    return same, Rolling(state)


def restart_words(command: str, yes: bool) -> tuple[str, ...]:
    """The words that start this process again: those that were typed, with --yes, because nobody answers after the
    reboot.

    () where the process was not started with the command.
    """
    words = list(sys.orig_argv)
    if command not in words:
        return ()
    words[0] = sys.executable
    if not yes:
        words.insert(words.index(command) + 1, "--yes")
    return tuple(words)


def exit_code(report: HostReport) -> int:
    """What a host makes the exit code: 2 also when it still needs a test, because it is not proved then.

    If the inventory itself says `p2p_wheels: none`, or splits GPUs with `mig`, its owner has decided against the test:
    the report says that it is required, and the code is 0.
    """
    mig = report.host.variables.get("mig")
    decided = report.host.variables.get("p2p_wheels") == "none" or (isinstance(mig, Mapping) and any(mig.values()))
    return report.exit_code or (2 if report.required_tests and not decided else 0)


def _provision(runs: list[HostRun], text: Any, options: ProvisionOptions, rolling: Rolling | None) -> None:
    """Shows the plans, asks, and provisions the hosts; when a rollout stops, the rest is not attempted."""
    from rigwright.fleet import actions, pool, rollout

    if rolling:
        _show_resumed(rolling, text)
    describe = bool(options.json or options.html)
    many = len(runs) > pool.MOST_OPEN  # then the checks would need a connection of their own
    plan = partial(actions.plan_or_fail, describe=describe, checks=True, unproved=many)
    pool.run_hosts(runs, plan, activity="planning", reads=True)
    alive = [run for run in runs if run.report.error is None]
    text.plans([run.report for run in alive])
    pending = any(run.report.status == "pending" for run in alive)
    runner.consent(options.yes or not pending, "Make these changes?")
    action = partial(actions.provision_host, wheels=options.wheels, describe=describe)
    batch = partial(_batch, text=text, action=action, short=len(runs) > MANY, findings=options.findings)
    if rolling is None:
        batch(alive)
    else:
        _show_end(rolling, runs, rollout.roll(runs, text, batch, rolling), text)


def _provision_by_workers(runs: list[HostRun], text: Any, slices: Slices, rolling: Rolling | None) -> None:
    """As `_provision`, by workers of --executor: their plans are in the text of their commands."""
    from rigwright.fleet import rollout

    assert rolling, "with --executor there is always a rollout"
    _show_resumed(rolling, text)
    slices.give_out(runs, yes=False)
    if slices.question:
        runner.consent(slices.yes, slices.question)
    _show_end(rolling, runs, rollout.roll(runs, text, slices.give_out, rolling, slices.finished), text)


def _show_resumed(rolling: Rolling, text: Any) -> None:
    """Shows the rollout that is continued; writes nothing for a new rollout."""
    if not rolling.going_on:
        return
    state = rolling.state
    done = f"{len(state.hosts) - len(state.pending)} of {count(len(state.hosts), 'host')} done"
    text.line(f"Going on with the rollout of run [bold]{state.run}[/]: {done}")
    limits = "".join(f", {name} {value}" for name, value in (("--host", state.host), ("--tags", state.tags)) if value)
    text.plain(f"  inventory {state.inventory}, playbook {state.playbook}{limits}")
    if state.begun:
        text.plain(f"  at work when it stopped: {host_ranges.folded(state.begun)}")


def _show_end(rolling: Rolling, runs: Sequence[HostRun], failed: Sequence[str], text: Any) -> None:
    """Writes the result of the rollout, and the next command when it is not finished."""
    from rigwright.report.labels import as_is

    state = rolling.state
    if not state.pending:
        text.line(f"\n[bold green]Rollout done[/]: {count(len(state.hosts), 'host')}.")
        return
    rest_of_hosts = [run.host.name for run in runs if run.host.name in {*state.pending} - {*failed}]
    bad = f"{len(failed)} of {count(len(state.hosts), 'host')} failed ({host_ranges.folded(failed)})"
    if rolling.stopped:
        rolling.stopped = f"{bad}, {rolling.stopped}"
        rest = f"; not attempted: {host_ranges.folded(rest_of_hosts)}" if rest_of_hosts else ""
        text.line(f"\n[bold red]Stopped[/]: {as_is(rolling.stopped + rest)}")
    else:
        text.line(f"\n[bold]Rollout[/]: {as_is(bad)}, the others are done")
    text.line(f"  fix:      correct the cause, then {program_name()} provision --resume")


def _batch(
    members: Sequence[HostRun],
    text: Any,
    action: HostAction,
    short: bool,
    findings: bool,
    on_end: Callable[[HostRun], object] = lambda _job: None,
    too_many: Callable[[int], bool] = lambda _failed: False,
) -> None:
    """Provisions these hosts and writes their results, with `short` without findings that pass; see `rollout.roll`."""
    from rigwright.fleet import pool
    from rigwright.report.labels import as_is

    failed = 0

    def enough(run: HostRun) -> bool:
        nonlocal failed
        failed += run.report.bad
        return too_many(failed)

    pool.run_hosts(members, action, activity="beginning", enough=enough, on_end=on_end, last=True)
    done = [run.report for run in members if run.report.error is None and run.report.status != "not_attempted"]
    for reports in _with_one_result(done) if short and not findings else [[report] for report in done]:
        names = host_ranges.folded(report.host.name for report in reports)
        named = replace(reports[0], host=dataclasses.replace(reports[0].host, name=names))
        runner.show_result(named, text, findings, only_bad=short)
        text.line(closing(reports, names))
    for run in members:
        if run.report.error is not None and len(members) > 1:
            text.line(f"[bold]{as_is(run.host.name)}[/]: [bold red]failed[/], {as_is(run.report.error.found)}")


def _with_one_result(reports: Sequence[HostReport]) -> list[list[HostReport]]:
    """The reports in groups: ALIKE or more hosts with the same problems are one group, the others are alone."""
    groups: dict[object, list[HostReport]] = {}
    for report in reports:
        counts = (report.changes, report.passed, report.failed, report.unanswered, report.required_tests)
        tested = report.last(NcclTestResult).document is not None
        same = report.host.name if tested else (report.verdict, report.problems, counts)
        groups.setdefault(same, []).append(report)
    parts: list[list[HostReport]] = []
    for group in groups.values():
        parts += [group] if len(group) >= ALIKE else [[report] for report in group]
    return parts


def closing(reports: Sequence[HostReport], name: str) -> str:
    """The last line that is written about a host, or about hosts with the same result."""
    from rigwright.report.labels import as_is, checks_in_words

    report = reports[0]
    if report.failed or report.unanswered or report.required_tests:
        colour = "bold red" if report.failed else "bold yellow"
        mark = f"[{colour}]{checks_in_words(report)}[/]"
    elif report.passed:
        mark = f"[bold green]proved by {count(report.passed, 'check')}[/]"
    else:
        mark = "[bold]no check was made[/]"
    each = " each" if len(reports) > 1 else ""
    seconds = max(report.seconds for report in reports)
    return f"[bold]{as_is(name)}[/]: {count(report.changes, 'change')}{each}, {mark}, {seconds:.1f} s"
