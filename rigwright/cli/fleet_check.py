"""`invoke fleet.check`: compares every host with its playbook, its own past and its peers."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rigwright.cli import runner
from rigwright.cli.history import parse_time
from rigwright.cli.options import FleetCheckOptions, FleetReportOptions
from rigwright.core.desired import GpuLimits
from rigwright.core.errors import HistoryError
from rigwright.engine import verify
from rigwright.engine.host_report import BAD, CheckResult, StageResult
from rigwright.engine.plan import PlannedStep
from rigwright.facts import Fact, driver, gpu, gpu_health, machine, pci, system
from rigwright.facts.plain import plain
from rigwright.fleet import actions, drift, pool
from rigwright.fleet.drift import Machine, Place
from rigwright.fleet.host_job import HostJob
from rigwright.history import History
from rigwright.report.tables import fleet as table

FACTS: tuple[Fact[Any], ...] = (
    system.os_release,
    system.architecture,
    system.running_kernel,
    system.board,
    system.firmware,
    system.cpu,
    machine.machine,
    driver.loaded_version,
    driver.library_version,
    driver.secure_boot,
    pci.gpus,
    gpu.gpus,
    gpu_health.cards,
)
"""The facts that are compared; they are read in the same round trip as the first facts of the plan."""


def fleet_check(options: FleetCheckOptions) -> int:
    """Prints a line for each host and its differences; returns the exit code: 2 for a difference, 3 when a host does not answer."""

    return runner.run(options, lambda _run_id: fleet_command(options, _check, tags=options.tag_names))


def fleet_command(
    options: FleetCheckOptions | FleetReportOptions,
    act: Callable[[list[HostJob], Any, datetime.datetime | None], None],
    *,
    tags: frozenset[str] = frozenset(),
    checks_only: Callable[[Any], bool] = lambda _host: False,
) -> runner.HostCommand:
    """A command for all hosts that shows no events and continues past hosts with mistakes. Raises UsageError for the time."""
    since = parse_time(options.since) if options.since else None
    return runner.HostCommand(
        replace(options, host=options.host or "all"),
        lambda work, text: act(work, text, since),
        runner.playbook(options.playbook, "provision"),
        tags,
        tolerant=True,
        quiet=True,
        checks_only=checks_only,
    )


def _check(work: list[HostJob], text: Any, since: datetime.datetime | None) -> None:
    pool.run_hosts(work, _look)
    compare([one for one in work if one.report.error is None], since, text)
    table.check(text.console, [one.report for one in work])


def _look(job: HostJob) -> Iterator[StageResult]:
    """Plans the steps and checks the health of the GPUs; reads all facts that are compared. Findings that pass are left out."""
    checks = verify.answerable(job.bound.checks, job.run, tested=False)
    health = verify.CheckEvaluation(job.run, [check for check in checks if check.declared.gpu_health])
    job.run.prefetch((*FACTS, *health.evaluate()))
    planned = yield from actions.plan_host(job)
    bad = (finding for finding in health.findings() if finding.verdict in BAD)
    yield CheckResult((*verify.drift(planned.steps), *bad))


def compare(work: Sequence[HostJob], since: datetime.datetime | None, text: Any) -> None:
    """The findings of every report end in what differs from its past (then, or when it was last as it should be) and from its peers.

    Without a history a line says so, and peers are compared all the same.
    """
    try:
        before, known = _remembered(work, since)
    except HistoryError as error:
        text.warn(f"nothing is compared with its past: {error}")
        before, known = {}, {}
    _judge(work, before, known)


def _remembered(
    work: Sequence[HostJob], at: datetime.datetime | None
) -> tuple[dict[str, dict[str, Any]], dict[str, Place]]:
    """By host what it said when it was last as it should be (or at a time, where one is given), and by UUID where each GPU was then.

    A difference is told until somebody proves or provisions the host again, and not only by the first run that sees it.
    """
    with History.open() as past:
        before = {}
        for one in work:
            name, address = one.host.name, one.host.address
            before[name] = as_of(past, one, at or past.last_good(name, address))
        known = seen_last(past, besides=before)
    then = {gpu["uuid"]: Place(name, gpu["bus_id"]) for name, facts in before.items() for gpu in _gpus(facts)}
    return before, {**known, **then}


def as_of(past: History, one: HostJob, at: datetime.datetime | None) -> dict[str, Any]:
    """The recorded values of the facts that a host has now: the last ones before a time, None for the newest."""
    host = one.host
    seen = {name: past.last(host.name, name, host.address, at) for name in one.report.kept}
    return {name: found.value for name, found in seen.items() if found is not None}


def seen_last(past: History, besides: Container[str] = ()) -> dict[str, Place]:
    """By UUID the place where a run saw each GPU last, without the hosts of `besides`."""
    seen = {host: {"gpu.gpus": one.value} for host, one in past.everywhere("gpu.gpus").items() if host not in besides}
    return {gpu["uuid"]: Place(host, gpu["bus_id"]) for host, facts in seen.items() for gpu in _gpus(facts)}


def _gpus(facts: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [gpu for gpu in facts.get("gpu.gpus") or () if gpu["uuid"]]


def _judge(work: Sequence[HostJob], before: dict[str, dict[str, Any]], known: dict[str, Place]) -> None:
    """Adds the differences from the past and from the peers to the findings of each report."""
    machines = [
        dataclasses.replace(machine_of(one, before.get(one.host.name, {})), held=held(one.report.planned))
        for one in work
    ]
    of_peers, of_gpus = drift.peers(machines), drift.placed(machines, known)
    for one, machine_ in zip(work, machines, strict=True):
        others = (*drift.past(machine_), *of_gpus.get(machine_.name, ()), *of_peers[machine_.name])
        one.merge(CheckResult((*one.report.findings, *others)))


def machine_of(one: HostJob, before: dict[str, Any]) -> Machine:
    """A host that answered with its facts now and before, for the comparison."""
    host, kept = one.host, plain(one.report.kept)
    return Machine(host.name, host.groups, kept, before)


def held(planned: Sequence[PlannedStep]) -> frozenset[str]:
    """The limits that the plan sets, by their names in gpu.gpus."""
    limits = [
        one.step.parameters["limits"] for one in planned if one.step.declared.sets_limits and not one.step.skipped
    ]
    each = [part for one in limits for part in (one, *one.gpus.values())]
    names = [field.name for field in dataclasses.fields(GpuLimits)]
    return frozenset(name for name in names if any(getattr(one, name) is not None for one in each))
