"""Merges the results of stages, errors and totals into the report of a host. No other module changes a report."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rigwright.core.errors import RigwrightError, Unreachable
from rigwright.engine.host_report import (
    FAILS,
    ApplyResult,
    AttemptResult,
    CheckResult,
    CommandResult,
    ConnectResult,
    FactsResult,
    HistoryResult,
    HostReport,
    IdentityResult,
    LimitsResult,
    MachineResult,
    MeasuredResult,
    NcclTestResult,
    NodesResult,
    PlanResult,
    SmokeResult,
    StageResult,
    StressResult,
    SweepResult,
)
from rigwright.history.machines import CHECK


def merge(report: HostReport, result: StageResult) -> HostReport:
    """The report with the result of a stage, and with the status that follows from it."""
    return replace(report, **_changed_fields(report, result))


def _changed_fields(report: HostReport, result: StageResult) -> dict[str, Any]:
    match result:
        case ConnectResult():
            return {"connecting_s": report.connecting_s + result.seconds}
        case PlanResult():
            status = "pending" if result.pending else "ok"
            planned = {"planned": result.steps, "simulated": result.simulated, "owed": result.owed, "gpus": result.gpus}
            return {**planned, "status": status}
        case ApplyResult():
            # Facts that were read before the changes are not kept for the history.
            return {"applied": result, "status": "changed", "kept": {} if result.done else report.kept}
        case NcclTestResult():
            return {"p2p": result.document or report.p2p}
        case CheckResult():
            wrong = any(finding.verdict in FAILS for finding in result.findings)
            status = "failed" if wrong else "changed" if report.status == "changed" else "ok"
            baseline = result.baseline or report.baseline
            return {"findings": result.findings, "owed": result.owed, "status": status, "baseline": baseline}
        case IdentityResult():
            others = tuple(finding for finding in report.findings if finding.check != CHECK)
            return {"findings": (*result.findings, *others)}
        case FactsResult():
            simulated = str(result.facts.get("system.simulated", ""))
            return {"facts": result.facts, "simulated": simulated, "status": "ok"}
        case (
            LimitsResult()
            | MachineResult()
            | HistoryResult()
            | AttemptResult()
            | StressResult()
            | SmokeResult()
            | NodesResult()
            | SweepResult()
        ):
            return vars(result)  # fields of the report
        case MeasuredResult():
            return {"measured": result.measured}
        case CommandResult():
            return {"ran": result, "status": "ok" if result.code == 0 else "failed"}


def with_error(report: HostReport, error: RigwrightError) -> HostReport:
    """The report of a host that an error stopped."""
    return replace(report, status="unreachable" if isinstance(error, Unreachable) else "failed", error=error)


def not_attempted(report: HostReport) -> HostReport:
    """The report of a host that the run did not get to; a host with an error keeps it."""
    return report if report.error is not None else replace(report, status="not_attempted")
