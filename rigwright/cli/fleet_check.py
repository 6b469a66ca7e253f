"""`invoke fleet.check`: compares every host with its playbook, its own past and its peers."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from rigwright.cli import runner
from rigwright.cli.options import FleetCheckOptions, FleetOptions
from rigwright.core.desired import GpuLimits
from rigwright.core.errors import HistoryError
from rigwright.core.host_result import HostResult
from rigwright.engine import identity, verify
from rigwright.engine.host_run import HostRun
from rigwright.engine.playbook import Step
from rigwright.engine.report import BAD, CheckResult
from rigwright.facts import Fact, driver, machine, pci, system
from rigwright.facts.gpu import gpus as gpu, health as gpu_health
from rigwright.facts.plain import plain
from rigwright.fleet import actions, drift, gpu_places, pool, shared_identity
from rigwright.fleet.drift import Machine
from rigwright.fleet.gpu_places import Place
from rigwright.history import History
from rigwright.history.machines import names_sharing
from rigwright.report.tables import fleet as table

T = TypeVar("T")

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
    """Shows the differences of every host; returns the exit code: 2 for a difference, 3 if a host does not answer."""

    def act(runs: list[HostRun], _text: Any) -> None:
        pool.run_hosts(runs, _look, last=True, reads=True)

    return runner.run(options, lambda _run_id: fleet_command(options, act, _check, tags=frozenset(options.tags)))


def fleet_command(
    options: FleetOptions,
    act: runner.Act,
    afterwards: Callable[[list[HostRun], Any, datetime.datetime | None], None],
    *,
    tags: frozenset[str] = frozenset(),
    checks_only: Callable[[Any], bool] = lambda _host: False,
) -> runner.HostCommand:
    """A command for all hosts that shows no events and continues past hosts with mistakes."""
    return runner.HostCommand(
        dataclasses.replace(options, host=options.host or "all"),
        act,
        runner.playbook(options.playbook, "provision"),
        tags,
        tolerant=True,
        quiet=True,
        checks_only=checks_only,
        afterwards=lambda runs, text: afterwards(runs, text, options.since),
    )


def _check(runs: list[HostRun], text: Any, since: datetime.datetime | None) -> None:
    compare([run for run in runs if run.report.error is None], since, text)
    table.check(text.console, [run.report for run in runs])


def _look(run: HostRun) -> Iterator[HostResult]:
    """Plans the steps, checks the health of the GPUs, and reads all facts that are compared."""
    checks = verify.answerable(run.bound.checks, run, tested=False)
    health = verify.CheckEvaluation(run, [check for check in checks if check.declared.gpu_health])
    run.prefetch((*FACTS, *health.evaluate()))
    planned = yield from actions.plan_host(run)
    bad = (finding for finding in health.findings() if finding.verdict in BAD)
    findings = (*identity.findings(run), *verify.drift(planned.steps), *bad, *planned.required_tests)
    yield CheckResult(findings, required_tests=planned.required_tests)


class RecordedIds:
    """The ids of hosts in the history; all machines of the history are read once, at the first use."""

    def __init__(self, runs: Sequence[HostRun]) -> None:
        self._jobs = runs
        self._ids: dict[str, int | None] | None = None

    def of(self, past: History) -> dict[str, int | None]:
        """By host name the id, as `machines_of`. Raises HistoryError."""
        if self._ids is None:
            self._ids = machines_of(past, self._jobs)
        return self._ids


def compare(
    runs: Sequence[HostRun], since: datetime.datetime | None, text: Any, ids: RecordedIds | None = None
) -> None:
    """Adds to every report the findings of what differs from its past (then, or when it was last as expected) and from
    its peers.

    Without a history a warning is written, and only peers are compared. `ids`: of these hosts, and others of the run.
    """
    before: dict[str, dict[str, Any]] = {}
    known: dict[str, Place] = {}
    try:
        before, known = _remembered(runs, since, ids or RecordedIds(runs))
    except HistoryError as error:
        text.warn(f"nothing is compared with its past: {error}")
    machines = [replace(machine_of(run, before.get(run.host.name, {})), held=held(run.bound.steps)) for run in runs]
    of_peers, of_gpus = drift.peers(machines), gpu_places.changes(machines, known)
    for run, machine_ in zip(runs, machines, strict=True):
        findings = (*drift.past(machine_), *of_gpus.get(machine_.name, ()), *of_peers[machine_.name])
        run.merge(CheckResult((*run.report.findings, *findings), required_tests=run.report.required_tests))


def _remembered(
    runs: Sequence[HostRun], at: datetime.datetime | None, ids: RecordedIds
) -> tuple[dict[str, dict[str, Any]], dict[str, Place]]:
    """By host its facts when it was last as expected (or at a given time), and by UUID the place of each GPU then.

    So a difference is reported until the host is verified or provisioned again, not only by the first run that sees it.
    """
    with History.open() as past:
        recorded = {run.host.name: ids.of(past)[run.host.name] for run in runs}
        before = {run.host.name: as_of(past, run, recorded[run.host.name], at) for run in runs}
        known = seen_last(past, besides={machine for machine in recorded.values() if machine is not None})
    then = {gpu["uuid"]: Place(name, gpu["bus_id"]) for name, facts in before.items() for gpu in _gpus(facts)}
    return before, {**known, **then}


def remembered(
    runs: Sequence[HostRun],
    text: Any,
    of_machine: Callable[[History, int | None], T],
    measurements: str,
    ids: RecordedIds | None = None,
) -> dict[str, T]:
    """By host what the history has of earlier measurements; {} and a warning if the history cannot be read. `ids`: of
    these hosts, if they are read already."""
    try:
        with History.open() as past:
            return {name: of_machine(past, id) for name, id in (ids or RecordedIds(runs)).of(past).items()}
    except HistoryError as error:
        text.warn(f"nothing is known of earlier {measurements}: {error}")
        return {}


def machines_of(past: History, runs: Sequence[HostRun]) -> dict[str, int | None]:
    """By host name the id of its machine in the history, as all hosts of the run answered; None for a new machine."""
    recorded = past.machines()
    identities = {run.host.name: shared_identity.identity_of(run) for run in runs}
    doubtful = names_sharing(identities)
    ids: dict[str, int | None] = {}
    for run in runs:
        name, simulated = run.host.name, bool(run.report.simulated)
        match = recorded.match(name, run.host.address, identities[name], simulated, own_only=name in doubtful)
        ids[name] = match.machine.id if match.machine else None
    return ids


def as_of(past: History, run: HostRun, machine: int | None, at: datetime.datetime | None) -> dict[str, Any]:
    """The recorded values of the facts that a host has now: those at a time, None for when it was last as expected."""
    then = at or past.last_good(machine)
    return past.values(machine, run.report.kept, then)


def seen_last(past: History, besides: Container[int] = ()) -> dict[str, Place]:
    """By UUID the place where a run saw each GPU last, without the machines of `besides`."""
    return {
        gpu["uuid"]: Place(host, gpu["bus_id"])
        for machine, (host, record) in past.everywhere("gpu.gpus").items()
        if machine not in besides
        for gpu in _gpus({"gpu.gpus": record.value})
    }


def _gpus(facts: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [gpu for gpu in facts.get("gpu.gpus") or () if gpu["uuid"]]


def machine_of(run: HostRun, before: dict[str, Any]) -> Machine:
    """A host that answered with its facts now and before, for the comparison."""
    return Machine(run.host.name, run.host.groups, plain(run.report.kept), before)


def held(steps: Sequence[Step]) -> frozenset[str]:
    """The limits that these steps set, by their names in gpu.gpus."""
    setting = [step for step in steps if step.declared.sets_limits and not step.skipped]
    limits = [
        part for step in setting for part in (step.parameters["limits"], *step.parameters["limits"].gpus.values())
    ]
    names = GpuLimits.__struct_fields__
    return frozenset(name for name in names if any(getattr(part, name) is not None for part in limits))
