"""The message after Ctrl-C: which hosts are done, and how the run is continued."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rigwright.core import host_ranges
from rigwright.core.program_name import program_name
from rigwright.fleet import pool
from rigwright.fleet.rollout import Rolling


def show(changes_hosts: bool, jobs: Sequence[Any], rollout: Rolling | None, text: Any) -> None:
    """Shows which hosts are done, not done and not attempted, and how the run is continued."""
    if not changes_hosts or not jobs:
        text.line(f"\n[bold]interrupted[/]: {'nothing was changed' if jobs else 'nothing was connected to'}")
        return
    pool.leave_out([job for job in jobs if job.report.status == "pending"])
    reports = [job.report for job in jobs]
    half = [(one.host.name, one.error) for one in reports if one.error is not None]
    kinds = {
        "done": [one.host.name for one in reports if one.error is None and one.status in ("ok", "changed", "failed")],
        "not done": [name for name, _ in half],
        "not attempted": [one.host.name for one in reports if one.error is None and one.status == "not_attempted"],
    }
    text.errors(half)
    told = [f"{kind}: {host_ranges.folded(names)}" for kind, names in kinds.items() if names]
    text.line("\n[bold]interrupted[/]")
    for words in told:
        text.plain(f"  {words}")
    resumable = rollout is not None and rollout.state.batches
    text.line(
        f"  fix: {program_name() + ' provision --resume' if resumable else 'run the same command again; it continues from there'}"
    )
