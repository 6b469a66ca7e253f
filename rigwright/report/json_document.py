"""The JSON document of a run (schema 2)."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Sequence
from typing import Any, get_args

from msgspec import Struct, field
from msgspec.structs import asdict

from rigwright.checks import VERDICTS, Finding, problems
from rigwright.core import features, secrets
from rigwright.core.change import Change
from rigwright.core.control_characters import escaped
from rigwright.core.errors import ConsentError, HostError, Interrupted, RigwrightError, Unreachable
from rigwright.core.host_result import HostResult, HostStatus
from rigwright.core.machine_identity import MachineIdentity
from rigwright.core.process.program_name import as_typed
from rigwright.engine.events import Event
from rigwright.engine.machine import MachineResult
from rigwright.engine.plan import PlannedStep
from rigwright.engine.report import CheckResult, ConnectResult, FactsResult, HostReport, PlanResult
from rigwright.facts import READINGS, system
from rigwright.facts.plain import plain
from rigwright.inventory.model import Host

SCHEMA = 2


class RunMetadata(Struct, frozen=True):
    """When a run began (UTC), and the paths of its playbook and inventory, "" where there is none."""

    started: datetime.datetime = field(default_factory=lambda: datetime.datetime.now(datetime.timezone.utc))
    playbook: str = ""
    inventory: str = ""


def document(
    command: str,
    run_id: str,
    exit_code: int,
    error: RigwrightError | None,
    reports: Sequence[HostReport],
    metadata: RunMetadata | None = None,
) -> dict[str, Any]:
    """The document of a run that ends now, without known secrets; docs/reference/json.md describes its keys."""
    metadata = metadata or RunMetadata()
    whole = {
        "schema": SCHEMA,
        "command": command,
        "run": run_id,
        "started": metadata.started.isoformat(timespec="milliseconds"),
        "ended": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds"),
        "playbook": metadata.playbook,
        "inventory": metadata.inventory,
        "exit_code": exit_code,
        "error": _error(error),
        "hosts": {report.host.name: _host(report) for report in reports},
    }
    return redacted(whole)


def _error(error: RigwrightError | None) -> dict[str, str] | None:
    if error is None:
        return None
    return {"where": error.where, "found": error.found, "expected": error.expected, "fix": as_typed(error.fix)}


def _findings(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    return [{"check": finding.check, **plain(finding), "fix": as_typed(finding.fix)} for finding in findings]


_COMPARED = ("status", "error", "verdict", "problems", "owed", "findings", "fleet", "measured")
"""The keys that depend on other hosts and on the history, which a host of a worker has from the controller."""


def _host(report: HostReport) -> dict[str, Any]:
    here = _of_report(report)
    return here if report.written is None else {**report.written, **{key: here[key] for key in _COMPARED}}


def _of_report(report: HostReport) -> dict[str, Any]:
    steps: Sequence[PlannedStep] = report.applied.steps if report.applied else report.planned
    done = report.applied.done if report.applied else {}
    return {
        "address": report.host.address,
        "status": report.status,
        "error": _error(report.error),
        "steps": [
            {"name": planned.step.name, "status": planned.status, "reason": planned.reason,
             "notes": [note.text for note in planned.notes]}
            for planned in steps
        ],
        "changes": [
            _change(planned.step.name, change, change in done.get(planned.step.key, ()))
            for planned in steps
            for change in planned.changes
        ],
        "verdict": plain(report.verdict),
        "problems": [problems.as_json(problem) for problem in report.problems],
        "owed": _findings(report.required_tests),
        "findings": _findings(report.findings),
        "facts": {},
        "kept": plain({name: value for name, value in report.kept.items() if name != READINGS}),
        "readings": plain(report.kept.get(READINGS, ())),
        "identity": plain(report.kept.get(system.identity.name)),
        "baseline": None,
        "gpus": [],
        "machine": None,
        "fleet": None,
        "events": [_event(at_s, event) for at_s, event in report.events],
        "p2p": None,
        **dict.fromkeys(features.result_keys()),
        "measured": None,
        "simulated": report.simulated,
        "rebooted": bool(report.applied and report.applied.rebooted),
        "round_trips": report.round_trips,
        "seconds": round(report.seconds, 3),
        "connecting_s": round(report.last(ConnectResult).seconds, 3),
        "asking_s": round(report.asking_s, 3),
        **{result.KEY: plain(result.as_json(report)) for result in report.results.values() if result.KEY},
    }  # fmt: skip


ERRORS = {error.exit_code: error for error in (HostError, ConsentError, Unreachable, Interrupted)}


def read_host(host: Host, written: object, exit_code: int) -> HostReport:
    """The report of a host from its part of the document that a worker wrote, as far as the controller uses it.

    `exit_code`: that of its error, or 0. Raises ValueError, TypeError or KeyError for a document of another form.
    """
    like = _of_report(HostReport(host))
    if not isinstance(written, dict) or written.keys() != like.keys():
        raise ValueError("no host of a document")
    for key, value in written.items():
        kinds = (type(like[key]), int) if isinstance(like[key], float) else (type(like[key]),)
        if not isinstance(value, kinds if like[key] is not None else (dict, list, type(None))):
            raise ValueError(f"{key} is {type(value).__name__}")
    for key, kind in (("steps", _STEP), ("changes", _CHANGE), ("owed", _FINDING), ("findings", _FINDING)):
        for row in written[key]:
            if not isinstance(row, dict) or {name: type(value) for name, value in row.items()} != kind:
                raise ValueError(f"{key} with another row")
    findings, required = (tuple(Finding(**row) for row in written[key]) for key in ("findings", "owed"))
    if written["status"] not in get_args(HostStatus) or {one.verdict for one in (*findings, *required)} - {*VERDICTS}:
        raise ValueError("an unknown status or verdict")
    error = written["error"]
    if error is not None and ({type(text) for text in error.values()} != {str} or exit_code not in ERRORS):
        raise ValueError("an unknown error")
    identity = {system.identity.name: MachineIdentity.of(written["identity"])} if written["identity"] else {}
    results: list[HostResult] = [PlanResult((), written["simulated"], required)]
    results += [FactsResult(written["facts"])] if written["facts"] else []
    results += [CheckResult(findings, required_tests=required)] if findings else []
    results += [MachineResult(written["machine"])] if written["machine"] is not None else []
    results += [result for each in features.parts("result") if (result := each.read(written)) is not None]
    return HostReport(
        host,
        status=written["status"],
        error=None if error is None else ERRORS[exit_code](**error),
        results={type(result): result for result in results},
        kept={**written["kept"], **identity},
        written=written,
        seconds=written["seconds"],
    )


_STEP = {"name": str, "status": str, "reason": str, "notes": list}
_CHANGE = {
    **dict.fromkeys(("step", "action", "subject", "before", "after", "leads_to"), str), "disruptive": bool, "done": bool
}  # fmt: skip
_FINDING = dict.fromkeys(Finding.__struct_fields__, str)
"""The types of the values of a row."""


def over_time() -> dict[str, Any]:
    """The key `fleet` of a host without a past in the history."""
    return {
        "groups": [], "answered": None, "since": None, "run": "", "was": "", "became": [], "new": [], "gone": [],
        "ends": [], "readings": {},
    }  # fmt: skip


def _event(at_s: float, event: Event) -> dict[str, Any]:
    values = {key: plain(value) for key, value in asdict(event).items() if key not in ("host", "changes")}
    rounded = {key: round(value, 3) if isinstance(value, float) else value for key, value in values.items()}
    return {"at_s": round(at_s, 3), "event": event.kind, **rounded}


def _change(step: str, change: Change, done: bool) -> dict[str, Any]:
    keys = ("action", "subject", "before", "after", "disruptive", "leads_to")
    return {"step": step, **{key: getattr(change, key) for key in keys}, "done": done}


def redacted(document: dict[str, Any]) -> dict[str, Any]:
    """The document with `(secret)` in place of every known secret."""
    result: dict[str, Any] = secrets.redacted_document(document)
    return result


MANY = 8
"""With more hosts than this, each is one line of the JSON text: a line for each value takes ten times as long."""


def dumps(document: dict[str, Any]) -> str:
    """The document as JSON text with control characters as \\u escapes."""
    return "".join(lines(document))


def lines(document: dict[str, Any]) -> Iterator[str]:
    """The parts of the text of `dumps`: one part, or for many hosts a part for each."""
    hosts = document.get("hosts", {})
    if len(hosts) <= MANY:
        yield escaped(json.dumps(document, indent=2, ensure_ascii=False))
        return
    before = "{"
    for key, value in document.items():
        yield f"{before}\n  {_compact(key)}: "
        before = ","
        if key != "hosts":
            yield escaped(json.dumps(value, indent=2, ensure_ascii=False)).replace("\n", "\n  ")
            continue
        for number, (name, host) in enumerate(hosts.items()):
            yield f"{',' if number else '{'}\n    {_compact(name)}: {_compact(host)}"
        yield "\n  }"
    yield "\n}"


def _compact(value: Any) -> str:
    return escaped(json.dumps(value, ensure_ascii=False))
