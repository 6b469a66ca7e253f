"""`invoke rollback`: makes a host what it was before a run, lists the runs, adopts those of before a disk was
copied."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from rigwright.cli import runner
from rigwright.cli.remove import take_back
from rigwright.core.errors import ConsentError, UsageError
from rigwright.core.host_result import HostResult
from rigwright.core.numbers import count
from rigwright.core.process.program_name import program_name
from rigwright.engine import run_record as recorder
from rigwright.engine.host_run import HostRun
from rigwright.engine.report import FactsResult, PlanResult
from rigwright.facts import past_runs, run_record
from rigwright.facts.plain import plain
from rigwright.facts.run_record import Run
from rigwright.features.rollback import adoption
from rigwright.features.rollback.options import RollbackOptions
from rigwright.fleet import actions, pool
from rigwright.report.labels import as_is


def rollback(options: RollbackOptions) -> int:
    """Plans, asks, and goes back; returns the exit code. Raises UsageError unless --host names a host."""
    from rigwright.engine import rollback as engine

    if not options.host:
        name = f"{program_name()} rollback --host NAME"
        raise UsageError("--host", "it is not given", "the hosts that are to go back", name)
    engine.require_run(options.to, options.host)
    if options.list and options.adopt:
        fix = f"{program_name()} rollback --host {shlex.quote(options.host)} --list, then with --adopt"
        raise UsageError("--list --adopt", "both are given", "--list or --adopt", fix)
    inventory = f" --inventory {shlex.quote(str(options.inventory))}" if options.inventory else ""
    if options.list or options.adopt:
        act = _list if options.list else partial(_adopt, yes=options.yes, inventory=inventory)
        return runner.run(options, lambda _run_id: runner.HostCommand(options, act, quiet=True))
    playbook = runner.playbook(options.playbook, "rollback")
    act = partial(_rollback, options=options, inventory=inventory)
    command = runner.HostCommand(options, act, playbook, frozenset(options.tags), options.disrupt)
    return runner.run(options, lambda _run_id: command)


def _rollback(runs: list[HostRun], text: Any, options: RollbackOptions, inventory: str) -> None:
    from rigwright.engine.rollback import with_aim

    for run in runs:
        run.bound = with_aim(run.bound, options.to)
    nothing = partial(_nothing, to=options.to, inventory=inventory)
    plan = partial(_plan, to=options.to, inventory=inventory)
    words = {"question": "Go back?", "activity": "going back"}
    take_back(runs, text, **words, nothing=nothing, yes=options.yes, plan=plan)
    if not options.tags:
        ended = [run for run in runs if run.report.error is None and run.report.status == "ok"]
        pool.run_hosts(ended, partial(_end, to=options.to), activity="recording")


def _end(run: HostRun, to: str) -> Iterator[HostResult]:
    """Records that a rollback ended which was cut after its last change: nothing is left to take back."""
    for last in _runs(run)[-1:]:
        if _aims(last, to) and not last.done:
            run.transport.run([recorder.done(last.run)])
    yield from ()


def _runs(run: HostRun) -> tuple[Run, ...]:
    return run_record.from_plain(run.report.facts[run_record.runs.name])


def _plan(run: HostRun, to: str, inventory: str) -> Iterator[HostResult]:
    """Plans the way back.

    Raises ConsentError where the last run is a rollback that ended and the host is not as before its aim, unless `to`
    is given: the same command again takes nothing back that somebody else did.
    """
    past = run.value(run_record.runs)
    yield FactsResult({run_record.runs.name: plain(past)})
    result = PlanResult(())
    for stage in actions.plan_or_fail(run):
        yield stage
        result = stage if isinstance(stage, PlanResult) else result
    if to or not result.pending or not any(record.to and record.done for record in past[-1:]):
        return
    changes = [change for step in result.steps for change in step.changes]
    differs = [f"{change.subject}: {change.before or 'nothing'}, not {change.after or 'nothing'}" for change in changes]
    differs += [f"{step.step.name}: {step.reason}" for step in result.steps if step.status == "unknown"]
    more = f"; and {len(differs) - 6} more" if len(differs) > 6 else ""
    rollback = past_runs.beginning(past, past[-1])
    problem = f"it went back before run {rollback.to} already (rollback {rollback.run} of {past_runs.at(rollback)})"
    problem += f"; changed since, or left out by --tags: {'; '.join(differs[:6])}{more}"
    fix = f"{_command(run, inventory)} --to {rollback.to} changes that too; {_onward(run, rollback, inventory)}"
    raise ConsentError(run.host.name, problem, "a host as that rollback left it", fix)


def _nothing(run: HostRun, to: str, inventory: str) -> str:
    """What is said of a host on which nothing is left to take back."""
    past = _runs(run)
    if not past or not _aims(past[-1], to):
        return "nothing to take back"
    last = past_runs.beginning(past, past[-1])
    when = f"rollback of {past_runs.at(last)}"
    return as_is(f"it is as before run {last.to} already ({when}); {_onward(run, last, inventory)}")


def _aims(last: Run, to: str) -> bool:
    """Whether the last run is a rollback to before the run that --to names; "" names that of the last rollback."""
    return bool(last.to) and last.to.startswith(to)


def _onward(run: HostRun, rollback: Run, inventory: str) -> str:
    typed = _command(run, inventory)
    back = f"to bring back what that rollback took away: {typed} --to {rollback.run}"
    return f"{back}; to go further back: {typed} --list"


def _command(run: HostRun, inventory: str) -> str:
    return f"{program_name()} rollback --host {shlex.quote(run.host.name)}{inventory}"


def _read(run: HostRun) -> Iterator[FactsResult]:
    yield FactsResult({run_record.runs.name: plain(run.value(run_record.runs))})


def _list(runs: list[HostRun], text: Any) -> None:
    """The runs that each host remembers, the last one first, and where they left it."""
    pool.run_hosts(runs, _read, activity="reading")
    for run in runs:
        if run.report.error is not None:
            continue
        past = _runs(run)
        text.line(f"[bold]{as_is(run.host.name)}[/]: {count(len(past), 'run')} to go back before")
        in_force = past_runs.in_force(past)
        for record in reversed(past):
            text.plain(f"  {record.run}  {past_runs.at(record)}{_description(record, past, record.run in in_force)}")
        text.plain(f"  now: {past_runs.standing(past)}")


def _description(run: Run, runs: Sequence[Run], in_force: bool) -> str:
    """The description of a run in the list."""
    first = past_runs.beginning(runs, run)
    parts = (
        (f"a rollback to before {run.to}", bool(run.to)),
        (f"which went on with {first.run}", first is not run),
        ("taken back", not run.to and not in_force),
        ("did not end", not run.done),
        (f"a try of {run.tried}, not decided", bool(run.tried)),
        ("of another machine-id", not run.here),
        ("damaged", not run.sound),
    )
    return "".join(f", {words}" for words, true in parts if true)


def _adopt(runs: list[HostRun], text: Any, yes: bool, inventory: str) -> None:
    """Records that the runs under another machine-id are of this disk, after a yes."""
    pool.run_hosts(runs, adoption.examine, activity="reading")
    alive = [run for run in runs if run.report.error is None]
    for run in alive:
        for line in adoption.in_words(run.report.facts):
            text.line(f"[bold]{as_is(run.host.name)}[/]: {as_is(line)}")
    strange = [run for run in alive if adoption.strangers(run.report.facts)]
    if not strange:
        return
    runner.consent(yes, "Was this disk changed by these runs?")
    pool.run_hosts(strange, adoption.adopt, activity="adopting")
    for run in strange:
        if run.report.error is None:
            text.line(f"[bold]{as_is(run.host.name)}[/]: they count now; {as_is(_command(run, inventory))} goes back")
