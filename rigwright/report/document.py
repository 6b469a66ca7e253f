"""The JSON document of a run (schema 1)."""

from __future__ import annotations

import dataclasses
import datetime
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rigwright.change import Change
from rigwright.errors import RigwrightError
from rigwright.events import Event
from rigwright.facts import Unavailable, Unreadable
from rigwright.fleet import HostReport
from rigwright.plan import Planned
from rigwright.shell import Secret

SCHEMA = 1


@dataclass(frozen=True)
class Asked:
    """When a run began (UTC), and what of: the files of its playbook and inventory, "" where there is none."""

    started: datetime.datetime = field(default_factory=lambda: datetime.datetime.now(datetime.timezone.utc))
    playbook: str = ""
    inventory: str = ""


def document(
    command: str,
    run_id: str,
    exit_code: int,
    error: RigwrightError | None,
    reports: Sequence[HostReport],
    asked: Asked | None = None,
) -> dict[str, Any]:
    """The whole run, which ends now; see the README's page on JSON for its keys."""
    asked = asked or Asked()
    return {
        "schema": SCHEMA,
        "command": command,
        "run": run_id,
        "started": asked.started.isoformat(timespec="milliseconds"),
        "ended": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds"),
        "playbook": asked.playbook,
        "inventory": asked.inventory,
        "exit_code": exit_code,
        "error": _error(error),
        "hosts": {report.host.name: _host(report) for report in reports},
    }


def _error(error: RigwrightError | None) -> dict[str, str] | None:
    if error is None:
        return None
    return {"where": error.where, "found": error.found, "wanted": error.wanted, "todo": error.todo}


def _host(report: HostReport) -> dict[str, Any]:
    steps: Sequence[Planned] = report.outcome.steps if report.outcome else report.planned
    done = report.outcome.done if report.outcome else {}
    return {
        "address": report.host.address,
        "status": report.status,
        "error": _error(report.error),
        "steps": [
            {
                "name": one.step.name,
                "status": one.status,
                "reason": one.reason,
                "notes": [note.text for note in one.notes],
            }
            for one in steps
        ],
        "changes": [
            _change(one.step.name, change, change in done.get(one.step.key, ()))
            for one in steps
            for change in one.changes
        ],
        "findings": [dataclasses.asdict(finding) for finding in report.findings],
        "facts": {name: plain(value) for name, value in report.facts.items()},
        "kept": {name: plain(value) for name, value in report.kept.items()},
        "gpus": [plain(row) for row in report.rows],
        "machine": report.machine,
        "fleet": report.fleet,
        "events": [_event(at, event) for at, event in report.events],
        "p2p": p2p(report),
        "ran": plain(report.ran),
        "simulated": report.simulated,
        "rebooted": bool(report.outcome and report.outcome.rebooted),
        "round_trips": report.round_trips,
        "seconds": round(report.seconds, 3),
        "connecting_s": round(report.connecting_s, 3),
        "asking_s": round(report.asking_s, 3),
    }


def over_time() -> dict[str, Any]:
    """The key `fleet` of a host of whose past nothing is known."""
    return {
        "groups": [], "answered": None, "since": None, "run": "", "was": "", "became": [], "new": [], "gone": [], "ends": [],
        "readings": {},
    }  # fmt: skip


def p2p(report: HostReport) -> dict[str, Any] | None:
    """The document of the peer-to-peer test as the program has it, and `judged`: the findings that rest on it."""
    if report.p2p is None:
        return None
    made: dict[str, Any] = plain(report.p2p)
    for pair in made["pairs"]:
        pair["from"], pair["to"] = pair.pop("start"), pair.pop("end")
    made["judged"] = [dataclasses.asdict(one) for one in report.findings if one.check.startswith("p2p.")]
    return made


def _event(at_s: float, event: Event) -> dict[str, Any]:
    told = {key: _rounded(plain(value)) for key, value in vars(event).items() if key not in ("host", "changes")}
    return {"at_s": round(at_s, 3), "event": event.kind, **told}


def _rounded(value: Any) -> Any:
    return round(value, 3) if isinstance(value, float) else value


def _change(step: str, change: Change, done: bool) -> dict[str, Any]:
    return {
        "step": step,
        "action": change.action,
        "subject": change.subject,
        "before": change.before,
        "after": change.after,
        "disruptive": change.disruptive,
        "leads_to": change.leads_to,
        "done": done,
    }


def plain(value: Any) -> Any:
    """A fact's value as JSON types; a secret as `(secret)`."""
    if isinstance(value, (Unavailable, Unreadable)):
        return {"unavailable": str(value)}
    if isinstance(value, Secret):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {key.name: plain(getattr(value, key.name)) for key in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(plain(item) for item in value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, datetime.date):
        return value.isoformat()
    return value


STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What steers a terminal or a browser, turns the direction of writing, or is half a character."""


def dumps(text: dict[str, Any]) -> str:
    """The document as JSON text; what would steer a terminal that shows it stands as its number."""
    return STEERING.sub(lambda one: f"\\u{ord(one[0]):04x}", json.dumps(text, indent=2, ensure_ascii=False))
