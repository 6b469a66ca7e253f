"""`invoke fleet.check`: every host asked once, then compared with its playbook, its own past and its peers."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Container, Mapping, Sequence
from typing import Any

from rigwright import commands, drift, fleet, verify
from rigwright.drift import Machine, Place
from rigwright.errors import HistoryError
from rigwright.facts import Fact, card, driver, gpu, machine, pci
from rigwright.facts import os as system
from rigwright.history import History
from rigwright.hostreport import BAD
from rigwright.past import moment
from rigwright.plan import Planned
from rigwright.report import document
from rigwright.showing import Said
from rigwright.wanted import GpuLimits

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
    card.cards,
)
"""What is asked of every host, in the same round trip as the first facts of its plan."""
HEALTH = "health."
"""Checks of the playbook that say how the GPUs are now: heat, what slows them, their memory, Xids."""


def check(said: Said) -> int:
    """Prints a line for each host and what differs on it; returns the exit code, 2 for drift, 3 where one did not answer."""

    def act(work: list[fleet.Work], text: Any, _said: Said) -> None:
        begin = moment(said.since) if said.since else None
        fleet.run_hosts(work, _look)
        answered = [one for one in work if one.report.error is None]
        compare(answered, begin, text)
        from rigwright.report import fleet as report

        report.check(text.console, [one.report for one in work])

    return commands.run(said, act=act, before=lambda: said.since and moment(said.since))


def _look(one: fleet.Work) -> None:
    """The report holds the plan, what it wants as findings, what ails its GPUs now, and all facts that are compared."""
    health = [check for check in one.checks if check.check.startswith(HEALTH)]
    one.run.along((*FACTS, *verify.wanted(one.run, health)))
    fleet.look(one)
    ill = verify.findings(one.run, health)
    fleet.keep(one)
    one.report.findings = (*verify.drift(one.report.planned), *(found for found in ill if found.verdict in BAD))


def compare(work: Sequence[fleet.Work], since: datetime.datetime | None, text: Any) -> None:
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
    work: Sequence[fleet.Work], at: datetime.datetime | None
) -> tuple[dict[str, dict[str, Any]], dict[str, Place]]:
    """By host what it said when it was last as it should be (or at a time, where one is given), and by UUID where each GPU was then.

    A difference is told until somebody proves or provisions the host again, and not only by the first run that sees it.
    """
    with History.open() as past:
        before = {}
        for one in work:
            name, address = one.bound.host.name, one.bound.host.address
            before[name] = as_of(past, one, at or past.sound(name, address))
        known = seen_last(past, besides=before)
    then = {gpu["uuid"]: Place(name, gpu["bus_id"]) for name, facts in before.items() for gpu in _gpus(facts)}
    return before, {**known, **then}


def as_of(past: History, one: fleet.Work, at: datetime.datetime | None) -> dict[str, Any]:
    """What a host said by a time, None for its last word, of the facts that it has told now."""
    host = one.bound.host
    seen = {name: past.last(host.name, name, host.address, at) for name in one.report.kept}
    return {name: found.value for name, found in seen.items() if found is not None}


def seen_last(past: History, besides: Container[str] = ()) -> dict[str, Place]:
    """By UUID where any run saw a GPU last, on another host than those of `besides`."""
    seen = {host: {"gpu.gpus": one.value} for host, one in past.everywhere("gpu.gpus").items() if host not in besides}
    return {gpu["uuid"]: Place(host, gpu["bus_id"]) for host, facts in seen.items() for gpu in _gpus(facts)}


def _gpus(facts: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [gpu for gpu in facts.get("gpu.gpus") or () if gpu["uuid"]]


def _judge(work: Sequence[fleet.Work], before: dict[str, dict[str, Any]], known: dict[str, Place]) -> None:
    """Every report holds its findings and what they make of its status."""
    machines = [
        dataclasses.replace(machine_of(one, before.get(one.bound.host.name, {})), held=held(one.report.planned))
        for one in work
    ]
    of_peers, of_gpus = drift.peers(machines), drift.placed(machines, known)
    for one, machine_ in zip(work, machines, strict=True):
        others = (*drift.past(machine_), *of_gpus.get(machine_.name, ()), *of_peers[machine_.name])
        one.report.findings = (*one.report.findings, *others)
        one.report.status = "failed" if one.report.wrong else "ok"


def machine_of(one: fleet.Work, before: dict[str, Any]) -> Machine:
    """What is compared of a host that answered, with what it said before."""
    host, kept = one.bound.host, document.plain(one.report.kept)
    return Machine(host.name, host.groups, kept, before)


def held(planned: Sequence[Planned]) -> frozenset[str]:
    """What the plan holds GPUs to, as gpu.gpus names it."""
    limits = [one.step.parameters["limits"] for one in planned if one.step.operation == "limits.applied"]
    each = [part for one in limits for part in (one, *one.gpus.values())]
    names = [field.name for field in dataclasses.fields(GpuLimits)]
    return frozenset(name for name in names if any(getattr(one, name) is not None for one in each))
