"""`invoke fleet.report`: writes a page of the state, the differences and the end-of-life dates of all hosts."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from rigwright.catalogue import lifecycle
from rigwright.checks import Finding
from rigwright.cli import fleet_check, runner
from rigwright.cli.fleet_check import RecordedIds
from rigwright.cli.verify import never_provisioned
from rigwright.core.errors import HistoryError
from rigwright.core.host_result import HostResult
from rigwright.engine.host_run import HostRun
from rigwright.engine.machine import MachineResult, MeasuredGpus
from rigwright.engine.report import BAD
from rigwright.facts import system
from rigwright.facts.plain import plain
from rigwright.features.fleet_report import speed_table as fleet_speed
from rigwright.features.fleet_report.changes import ComparisonResult, over_time
from rigwright.features.fleet_report.options import FleetReportOptions
from rigwright.features.stress import earlier_figures, measured_before
from rigwright.fleet import actions, drift, gpu_places, pool
from rigwright.fleet.drift import Machine
from rigwright.history import History
from rigwright.report import json_document
from rigwright.report.output_files import Files
from rigwright.report.tables import fleet as table

PAGE = "fleet.html"
DAYS, SPANS = 7, 56
"""The plots show at most DAYS days, in SPANS spans of three hours."""

_COMPARISONS = ("fleet.past", "fleet.gpus")
"""Checks whose findings are differences; the report shows these elsewhere."""


def fleet_report(options: FleetReportOptions) -> int:
    """Writes the report of a fleet, prints a line for each host; returns the exit code: 2 for a difference, 3 when one
    does not answer."""

    def prepare(_run_id: str) -> runner.HostCommand:
        only = partial(never_provisioned, playbook=options.playbook)
        return fleet_check.fleet_command(options, _report, compare_and_show, checks_only=only)

    html = options.html or ("" if options.json or options.prometheus else PAGE)
    return runner.run(options, prepare, replace(Files.of(options), html=html))


def _report(runs: list[HostRun], _text: Any) -> None:
    pool.run_hosts(runs, _look, activity="looking", last=True, reads=True)


def compare_and_show(runs: list[HostRun], text: Any, since: datetime.datetime | None = None) -> None:
    """Compares hosts with their past and with each other, completes their reports, and writes the text."""
    ids = RecordedIds(runs)
    fleet_check.compare([run for run in runs if run.report.error is None], since, text, ids)
    _over_time(runs, text, ids)
    earlier = earlier_figures.read(runs, text, ids)
    for run in runs:
        if described := run.report.get(MachineResult):
            figures = earlier.get(run.host.name, {})
            run.merge(MeasuredGpus(measured_before.of_machine(described.machine, figures)))
    reports = [run.report for run in runs]
    table.check(text.console, reports)
    over_time(text.console, reports)
    fleet_speed.show(text.console, reports)


def _look(run: HostRun) -> Iterator[HostResult]:
    """Plans the steps, runs the checks that need no test, and reads all compared and shown facts in one round trip."""
    run.prefetch(fleet_check.FACTS)
    yield from actions.verify_host(run, describe=True)


def _over_time(runs: Sequence[HostRun], text: Any, ids: RecordedIds) -> None:
    """Merges into every report the changes since the report before, the ends of life, and earlier readings."""
    today = datetime.date.today()
    comparisons: dict[str, dict[str, Any]] = {}
    for run in runs:
        ends = lifecycle.ends(plain(run.report.kept), today) if run.report.error is None else ()
        known = {"groups": list(run.host.groups), "ends": [plain(end) for end in ends]}
        comparisons[run.host.name] = {**json_document.over_time(), **known}
    try:
        with History.open() as past:
            _add_past(runs, past, comparisons, ids.of(past))
    except HistoryError as error:
        text.warn(f"nothing is known of the reports before: {error}")
    for run in runs:
        comparison = comparisons[run.host.name]
        _add_present(run, comparison["readings"])
        run.merge(ComparisonResult(comparison))


def _add_past(
    runs: Sequence[HostRun],
    past: History,
    comparisons: Mapping[str, dict[str, Any]],
    recorded: Mapping[str, int | None],
) -> None:
    """Adds the report before this one, and the changes and readings since then, to the comparison of each host."""
    readings = past.readings(DAYS, SPANS)
    machines = {}
    for run in runs:
        name, id = run.host.name, recorded[run.host.name]
        comparison, before = comparisons[name], past.previous(FleetReportOptions.command, id)
        comparison["readings"] = {uuid: list(map(list, rows)) for uuid, rows in readings.get(id or 0, {}).items()}
        if seen := past.last(id, system.running_kernel.name):
            comparison["answered"] = seen.last_seen.isoformat()
        if before:
            comparison |= {"since": before["ended"].isoformat(), "run": before["run"], "was": before["status"]}
        if id and before and run.report.error is None:
            machines[name] = fleet_check.machine_of(run, fleet_check.as_of(past, run, id, before["ended"]))
            comparison |= finding_changes(before["findings"], run.report.findings)
            comparison["became"] = [
                {"subject": change.subject, "before": change.before, "after": change.after, "run": change.run}
                for change in past.made(id, before["ended"])
            ]
    of_gpus = gpu_places.changes(list(machines.values()), fleet_check.seen_last(past))
    for name, machine in machines.items():
        comparisons[name]["became"] += fact_changes(machine, of_gpus.get(name, ()))


def fact_changes(now: Machine, of_gpus: Sequence[Finding]) -> list[dict[str, str]]:
    """The facts of a machine that differ from the last report, and the findings about GPUs that came or went."""
    findings = (*drift.past(now), *of_gpus)
    return [{"subject": each.subject, "before": each.expected, "after": each.seen, "run": ""} for each in findings]


def finding_changes(before: Sequence[Mapping[str, str]], now: Sequence[Finding]) -> dict[str, list[dict[str, str]]]:
    """`new`: findings that the last report did not have; `gone`: those that only it had. Values are ignored."""

    def bad(findings: Sequence[Mapping[str, str]]) -> dict[tuple[str, str], dict[str, str]]:
        return {
            (finding["check"], finding["subject"]): {
                key: finding[key] for key in ("check", "subject", "verdict", "seen")
            }
            for finding in findings
            if finding["verdict"] in BAD and finding["check"] not in _COMPARISONS
        }

    old, new = bad(before), bad([plain(finding) for finding in now])
    return {
        "new": [finding for name, finding in new.items() if name not in old],
        "gone": [finding for name, finding in old.items() if name not in new],
    }


def _add_present(run: HostRun, readings: dict[str, list[list[Any]]]) -> None:
    """Adds the readings of this run at the end of the readings."""
    for gpu in run.report.last(MachineResult).machine.get("gpus", ()):
        if gpu["uuid"] and (gpu["temperature_c"], gpu["power_w"]) != (None, None):
            readings.setdefault(gpu["uuid"], []).append([round(time.time(), 3), gpu["temperature_c"], gpu["power_w"]])
