"""`invoke history.diff` as text: one heading for the changes of a run, one for what it saw on the host."""

from __future__ import annotations

import datetime
import io

from rich.console import Console

from rigwright.history import Changed
from rigwright.report.tables import history

NOON = datetime.datetime(2026, 11, 22, 12, tzinfo=datetime.timezone.utc)


def _changed(run: str, kind: str, subject: str) -> Changed:
    return Changed(NOON, kind, subject, "", "present", run)


def test_the_changes_of_a_run_are_one_group() -> None:
    made = [_changed("r1", "change", f"package-{number}") for number in range(37)]
    changes = [_changed("r1", "fact", "kernel"), *made, _changed("r2", "change", "/etc/a")]
    stream = io.StringIO()
    history.diff(Console(file=stream, width=80), "servbadge", NOON, changes)
    lines = stream.getvalue().splitlines()
    heads = [line.partition("run ")[2] for line in lines if not line.startswith(" ")]
    assert heads == ["r1  seen on the host", "r1  made by rigwright: 37 changes", "r2  made by rigwright: 1 change"]
    assert len(lines) == len(heads) + len(changes)
    assert lines[3].split() == ["package-0", "present"]
