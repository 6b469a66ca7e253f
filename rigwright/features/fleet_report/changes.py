"""What changed since the last report of a fleet (`fleet.report`): the result of each host, and the text."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

from msgspec import field
from rich.console import Console

from rigwright.core import numbers
from rigwright.core.host_result import HostResult
from rigwright.engine.report import HostReport
from rigwright.report.labels import as_is, local_time
from rigwright.report.wrapping import hanging


class ComparisonResult(HostResult, frozen=True):
    """What changed on a host since an earlier report of the fleet: the key `fleet` in docs/reference/json.md."""

    KEY = FIELD = "fleet"
    fleet: dict[str, Any] = field(default_factory=dict)


def over_time(console: Console, reports: Sequence[HostReport]) -> None:
    """Writes a line with the number of changes since the last report, and one for each past or near end of life."""
    known = [past for report in reports if (past := report.last(ComparisonResult).fleet) and past["since"]]
    if known:
        became, new, gone = (sum(len(host[key]) for host in known) for key in ("became", "new", "gone"))
        oldest = min(datetime.datetime.fromisoformat(host["since"]) for host in known)
        words = f"{numbers.count(became, 'change')}, {numbers.count(new, 'new finding')}, {gone} gone"
        hanging(console, f"since the report of {local_time(oldest)}: {words}")
    hosts: dict[tuple[str, str, str, str], list[str]] = {}
    for report in reports:
        for end in report.last(ComparisonResult).fleet.get("ends", ()):
            if end["state"] in ("ended", "soon"):
                key = (end["date"], end["name"], end["state"], end["words"])
                hosts.setdefault(key, []).append(report.host.name)
    for (date, name, state, words), names in sorted(hosts.items()):
        mark = "[yellow]ended[/] on" if state == "ended" else "[yellow]ends[/] on"
        on = f"{len(names)} hosts" if len(names) > 1 else names[0]
        hanging(console, f"{as_is(name)} {mark} {date} ({as_is(on)}): {as_is(words)}")
