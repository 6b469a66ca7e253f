"""`invoke fleet.report`: what fleet.check and verify find, how every machine is and was, and how long its parts last."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rigwright import commands, drift, fleet, lifecycle, survey, verify
from rigwright.checks import Finding
from rigwright.drift import Machine, Place
from rigwright.errors import HistoryError
from rigwright.facts import os as system
from rigwright.history import History
from rigwright.hostreport import BAD
from rigwright.past import moment
from rigwright.report import document, machine
from rigwright.report.document import plain
from rigwright.showing import Said

COMMAND = "fleet.report"
PAGE = "fleet.html"
DAYS, SPANS = 7, 56
"""The plots show so many days at most, in so many spans: three hours each."""

_TOLD_ANYWAY = ("fleet.past", "fleet.gpus")
"""Findings that say what became different, which a report says of itself."""


def report(said: Said) -> int:
    """Writes the report of a fleet, and prints a line for each host; returns the exit code, 2 for drift, 3 where one did not answer."""

    def act(work: list[fleet.Work], text: Any, _said: Said) -> None:
        begin = moment(said.since) if said.since else None
        fleet.run_hosts(work, _look, doing="looking")
        answered = [one for one in work if one.report.error is None]
        survey.compare(answered, begin, text)
        machine.describe(work)
        _over_time(work, text)
        from rigwright.report import fleet as told

        reports = [one.report for one in work]
        told.check(text.console, reports)
        told.over_time(text.console, reports)

    html = said.html or ("" if said.json or said.prometheus else PAGE)
    return commands.run(replace(said, html=html), act=act, before=lambda: said.since and moment(said.since))


def _look(one: fleet.Work) -> None:
    """The report holds the plan, the findings of the checks that only read, and all facts that are compared or shown."""
    also = (*survey.FACTS, *machine.FACTS, *verify.wanted(one.run, one.checks))
    one.run.along(also)
    fleet.look(one)
    fleet.check_all(one)
    fleet.keep(one)


def _over_time(work: Sequence[fleet.Work], text: Any) -> None:
    """Every report holds what changed since the report before, what ends when, and how warm its GPUs were."""
    today = datetime.date.today()
    for one in work:
        ends = lifecycle.ends(plain(one.report.kept), today) if one.report.error is None else ()
        told = {"groups": list(one.bound.host.groups), "ends": [plain(end) for end in ends]}
        one.report.fleet = {**document.over_time(), **told}
    try:
        with History.open() as past:
            _remember(work, past)
    except HistoryError as error:
        text.warn(f"nothing is known of the reports before: {error}")
    for one in work:
        _now(one)


def _remember(work: Sequence[fleet.Work], past: History) -> None:
    """What the history has of the report before this one, and of the time between."""
    readings = past.readings(DAYS, SPANS)
    before = {
        one.bound.host.name: found
        for one in work
        if (found := past.previous(COMMAND, one.bound.host.name, one.bound.host.address))
    }
    machines = {}
    for one in work:
        name, address = one.bound.host.name, one.bound.host.address
        made = one.report.fleet or {}
        made["readings"] = {uuid: list(map(list, rows)) for uuid, rows in readings.get((name, address), {}).items()}
        if seen := past.last(name, system.running_kernel.name, address):
            made["answered"] = seen.last_seen.isoformat()
        if found := before.get(name):
            made |= {"since": found["ended"].isoformat(), "run": found["run"], "was": found["status"]}
        if found and one.report.error is None:
            machines[name] = survey.machine_of(one, survey.as_of(past, one, found["ended"]))
            made |= turned(found["findings"], one.report.findings)
            made["became"] = list(_made(past, name, address, found["ended"]))
    known = survey.seen_last(past)
    for one in work:
        if one.report.fleet and (now := machines.get(one.bound.host.name)):
            one.report.fleet["became"] += became(now, list(machines.values()), known)


def _made(past: History, name: str, address: str, since: datetime.datetime) -> Iterator[dict[str, str]]:
    """What runs of rigwright changed since then."""
    for one in past.diff(name, since, address):
        if one.kind == "change":
            yield {"subject": one.subject, "before": one.before, "after": one.after, "run": one.run}


def became(now: Machine, others: Sequence[Machine], known: Mapping[str, Place]) -> list[dict[str, str]]:
    """What a machine says of itself that it did not say at the time of the report before, GPUs that came and went among it."""
    found = (*drift.past(now), *drift.placed(others, known).get(now.name, ()))
    return [{"subject": one.subject, "before": one.wanted, "after": one.seen, "run": ""} for one in found]


def turned(before: Sequence[Mapping[str, str]], now: Sequence[Finding]) -> dict[str, list[dict[str, str]]]:
    """`new`: findings that were none in the report before; `gone`: those of it that are none any more. Figures may differ."""

    def bad(check: str, verdict: str) -> bool:
        return verdict in BAD and check not in _TOLD_ANYWAY

    was = {(one["check"], one["subject"]): one for one in before if bad(one["check"], one["verdict"])}
    is_now = {(one.check, one.subject): plain(one) for one in now if bad(one.check, one.verdict)}
    keys = ("check", "subject", "verdict", "seen")
    return {
        "new": [{key: one[key] for key in keys} for name, one in is_now.items() if name not in was],
        "gone": [{key: one[key] for key in keys} for name, one in was.items() if name not in is_now],
    }


def _now(one: fleet.Work) -> None:
    """The readings end in those of this run."""
    readings = (one.report.fleet or {})["readings"]
    for gpu in (one.report.machine or {}).get("gpus", ()):
        if gpu["uuid"] and (gpu["temperature_c"], gpu["power_w"]) != (None, None):
            readings.setdefault(gpu["uuid"], []).append([round(time.time(), 3), gpu["temperature_c"], gpu["power_w"]])
