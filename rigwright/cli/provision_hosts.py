"""What `invoke provision` does with its hosts: shows the plans, asks, and provisions them at once or in batches."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from rigwright.cli import runner
from rigwright.cli.options import ProvisionOptions
from rigwright.core import host_ranges
from rigwright.core.errors import UsageError
from rigwright.core.numbers import count
from rigwright.core.process.program_name import program_name
from rigwright.engine.report import HostReport, NcclTestResult
from rigwright.fleet import actions, journal, pool, rollout
from rigwright.fleet.host_job import HostAction, HostJob
from rigwright.fleet.rollout import Rolling
from rigwright.report.labels import as_is, checks_in_words

if TYPE_CHECKING:
    from rigwright.cli.on_workers import Slices

MANY = 4
"""With more hosts than this, findings that pass are counted and not shown one by one."""


def provision(jobs: list[HostJob], text: Any, options: ProvisionOptions, rolling: Rolling | None) -> None:
    """Shows the plans, asks, and provisions the hosts; when a rollout stops, the rest is not attempted."""
    if rolling:
        show_resumed(rolling, text)
    describe = bool(options.json or options.html)
    many = len(jobs) > pool.MOST_OPEN  # then the checks would need a connection of their own
    plan = partial(actions.plan_or_fail, describe=describe, checks=True, unproved=many)
    pool.run_hosts(jobs, plan, activity="planning", reads=True)
    alive = [job for job in jobs if job.report.error is None]
    text.plans([job.report for job in alive])
    pending = any(job.report.status == "pending" for job in alive)
    runner.consent(options.yes or not pending, "Make these changes?")
    action = partial(actions.provision_host, wheels=options.wheels, describe=describe)
    batch = partial(_batch, text=text, action=action, short=len(jobs) > MANY, findings=options.findings)
    if rolling is None:
        batch(alive)
    else:
        roll(jobs, text, batch, rolling)


def by_workers(jobs: list[HostJob], text: Any, slices: Slices, rolling: Rolling) -> None:
    """As `provision`, by workers of --executor: their plans are in the text of their commands."""
    show_resumed(rolling, text)
    slices.give_out(jobs, yes=False)
    if slices.question:
        runner.consent(slices.yes, slices.question)
    roll(jobs, text, slices.give_out, rolling, slices.finished)


def show_resumed(rolling: Rolling, text: Any) -> None:
    """Says which rollout is continued; nothing of a new one."""
    if not rolling.going_on:
        return
    state = rolling.state
    done = f"{len(state.hosts) - len(state.left)} of {count(len(state.hosts), 'host')} done"
    text.line(f"Going on with the rollout of run [bold]{state.run}[/]: {done}")
    given = "".join(f", {name} {value}" for name, value in (("--host", state.host), ("--tags", state.tags)) if value)
    text.plain(f"  inventory {state.inventory}, playbook {state.playbook}{given}")
    if state.begun:
        text.plain(f"  at work when it stopped: {host_ranges.folded(state.begun)}")


def roll(
    jobs: list[HostJob], text: Any, batch: Callable[..., object], rolling: Rolling, finished: Collection[str] = ()
) -> None:
    """Provisions batch after batch until all are done or too many have failed; the journal has what `--resume` needs.

    `batch` provisions jobs; its other arguments are `on_end`, called when a host has ended, and `too_many`: whether so
    many failed hosts are too many. `finished`: the hosts of which nothing is left to do.
    """
    pending = {job.host.name: job for job in jobs if job.report.error or job.report.status == "pending"}
    ready = [job for job in jobs if job.host.name not in pending]
    batches = _batches(rolling, [job.host.name for job in jobs], list(pending))
    (journal.resume if rolling.going_on else journal.begin)(rolling.state)
    record = _Record(rolling, text)
    try:
        pool.tidy(list(pending.values()))
        for job in pending.values():
            job.run.transport.close()  # its turn may come in an hour; it is connected to again then
        record.begun(ready)
        for job in ready:
            if job.host.name in finished:
                record.ended(job)
        batch([job for job in ready if job.host.name not in finished], on_end=record.ended)
        failed = _roll_batches(pending, batches, text, batch, rolling, record)
        _close(rolling, failed, list(pending.values()), text)
    finally:
        record.close()


def _roll_batches(
    pending: Mapping[str, HostJob],
    batches: Sequence[Sequence[str]],
    text: Any,
    batch: Callable[..., object],
    rolling: Rolling,
    record: _Record,
) -> list[str]:
    """Provisions the pending hosts batch after batch; returns those that have failed."""
    failed: dict[str, None] = {}
    for number, names in enumerate(batches, 1):
        members = [pending[name] for name in names]
        hosts = f"{count(len(names), 'host')}, {host_ranges.folded(names)}"
        text.line(f"\n[bold]Batch {number} of {len(batches)}[/]: {hosts}")
        failed |= {job.host.name: None for job in members if job.report.error}
        before = len(failed)
        if not rolling.must_stop(before):
            record.begun(members)
            batch(members, on_end=record.ended, too_many=lambda more, before=before: rolling.must_stop(before + more))
            # Hosts that were running when there were too many have ended since.
            failed |= {job.host.name: None for job in members if job.report.bad}
        if rolling.must_stop(len(failed)):
            rolling.stopped = f"more than --max-fail {rolling.state.max_fail}"
            break
    return list(failed)


def _batches(rolling: Rolling, hosts: Sequence[str], todo: Sequence[str]) -> list[list[str]]:
    """The batches of this run: those of a new rollout, or the remaining ones of a resumed rollout."""
    if not rolling.going_on:
        batches_of_all = rollout.batches(todo, rolling.sizes)
        rolling.state = replace(rolling.state, hosts=tuple(hosts), batches=batches_of_all)
    known = {name for batch in rolling.state.batches for name in batch}
    batches = [[name for name in batch if name in todo] for batch in rolling.state.batches]
    return [batch for batch in (*batches, [name for name in todo if name not in known]) if batch]


RETRY_S = 30.0
"""So long the journal is not written again after it could not be: each try may wait for another process."""


class _Record:
    """Writes to the journal and to the state of a rollout which hosts are begun and done.

    A journal that cannot be written while hosts are being changed is a warning, once, and what was to be written is
    written later.
    """

    def __init__(self, rolling: Rolling, text: Any) -> None:
        self._rolling, self._text = rolling, text
        self._unwritten: list[Callable[[], None]] = []
        self._not_before = 0.0
        self._warned = False

    def begun(self, jobs: Sequence[HostJob]) -> None:
        """Writes that these hosts are given out now."""
        plans = {job.host.name: self._rolling.digests[job.host.name] for job in jobs if job.report.error is None}
        self._write(partial(journal.begun, self._rolling.state.run, plans))

    def ended(self, job: HostJob) -> None:
        """Writes how a host has ended, unless the run did not get to it."""
        report, state = job.report, self._rolling.state
        if report.status == "not_attempted":
            return
        name, plan = job.host.name, self._rolling.digests[job.host.name]
        if not report.bad:
            self._rolling.state = replace(state, done={**state.done, name: plan})
        self._write(partial(journal.ended, state.run, name, plan, not report.bad))

    def close(self) -> None:
        """Writes what is left, and that this process no longer works on the rollout; deletes one whose hosts are all
        done."""
        state = self._rolling.state
        self._not_before = 0.0
        self._write(partial(journal.leave if state.left else journal.end, state.run))

    def _write(self, write: Callable[[], None]) -> None:
        self._unwritten.append(write)
        if time.monotonic() < self._not_before:
            return
        try:
            while self._unwritten:
                self._unwritten[0]()
                del self._unwritten[0]
        except UsageError as error:
            self._not_before = time.monotonic() + RETRY_S
            if not self._warned:
                found = f"{error.where}: {error.found}; --resume would plan hosts again that are done"
                self._text.warn(f"{found} ({error.fix})")
            self._warned = True


def _close(rolling: Rolling, failed: Sequence[str], todo: Sequence[HostJob], text: Any) -> None:
    """Writes the result of the rollout, and the next command when it is not finished."""
    state = rolling.state
    if not state.left:
        text.line(f"\n[bold green]Rollout done[/]: {count(len(state.hosts), 'host')}.")
        return
    pool.leave_out([job for job in todo if job.report.status == "pending"])
    left = [job.host.name for job in todo if job.host.name in {*state.left} - {*failed}]
    bad = f"{len(failed)} of {count(len(state.hosts), 'host')} failed ({host_ranges.folded(failed)})"
    if rolling.stopped:
        rolling.stopped = f"{bad}, {rolling.stopped}"
        rest = f"; not attempted: {host_ranges.folded(left)}" if left else ""
        text.line(f"\n[bold red]Stopped[/]: {as_is(rolling.stopped + rest)}")
    else:
        text.line(f"\n[bold]Rollout[/]: {as_is(bad)}, the others are done")
    text.line(f"  fix:      correct the cause, then {program_name()} provision --resume")


def _batch(
    members: Sequence[HostJob],
    text: Any,
    action: HostAction,
    short: bool,
    findings: bool,
    on_end: Callable[[HostJob], object] = pool.do_nothing,
    too_many: Callable[[int], bool] = pool.never,
) -> None:
    """Provisions these hosts and writes their results; with `short` findings that pass are only counted. The other
    arguments are those of the `batch` of `roll`."""
    failed = 0

    def enough(job: HostJob) -> bool:
        nonlocal failed
        failed += job.report.bad
        return too_many(failed)

    pool.run_hosts(members, action, activity="beginning", enough=enough, on_end=on_end, last=True)
    done = [job.report for job in members if job.report.error is None and job.report.status != "not_attempted"]
    for reports in _with_one_result(done) if short and not findings else [[report] for report in done]:
        names = host_ranges.folded(report.host.name for report in reports)
        runner.show_result(_named(reports[0], names), text, findings, only_bad=short)
        text.line(closing(reports, names))
    for job in members:
        if job.report.error is not None and len(members) > 1:
            text.line(f"[bold]{as_is(job.host.name)}[/]: [bold red]failed[/], {as_is(job.report.error.found)}")


ALIKE = 3
"""So many hosts with the same result are shown as one."""


def _with_one_result(reports: Sequence[HostReport]) -> list[list[HostReport]]:
    """The reports in groups that are shown as one: those of ALIKE or more hosts with the same problems; the others
    alone."""
    groups: dict[object, list[HostReport]] = {}
    for report in reports:
        counts = (report.changes, report.passed, report.failed, report.unanswered, report.required_tests)
        same = (
            (report.verdict, report.problems, counts)
            if report.last(NcclTestResult).document is None
            else report.host.name
        )
        groups.setdefault(same, []).append(report)
    return [
        part for group in groups.values() for part in ([group] if len(group) >= ALIKE else [[one] for one in group])
    ]


def _named(report: HostReport, name: str) -> HostReport:
    return report if report.host.name == name else replace(report, host=dataclasses.replace(report.host, name=name))


def closing(reports: Sequence[HostReport], name: str) -> str:
    """The last line that is written about a host, or about hosts with the same result."""
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
