"""What follows from the recorded runs of a host: which are in force, where a rollback began, what did not end."""

from __future__ import annotations

from collections.abc import Sequence

from rigwright.facts.run_record import Run


def beginning(runs: Sequence[Run], run: Run) -> Run:
    """The run itself; for a rollback that continues rollbacks that did not end, the first of these."""
    for earlier in reversed([each for each in runs if run.to and each.number < run.number]):
        if earlier.done or earlier.to != run.to:
            break
        run = earlier
    return run


def in_force(runs: Sequence[Run]) -> tuple[str, ...]:
    """The ids of the runs whose changes are on the host, without rollbacks and the runs that they undid."""
    before: dict[str, tuple[str, ...]] = {}
    now: tuple[str, ...] = ()
    for run in runs:
        before[run.run] = now
        if not run.to:
            now = (*now, run.run)
        elif run.done:
            now = before.get(run.to, now)
    return now


def cut_try(runs: Sequence[Run]) -> Run | None:
    """The last run if it is a `try` that ended before a decision, also if a rollback of it has not ended; or None."""
    last = runs[-1] if runs else None
    if last and last.to and not last.done:
        last = next((run for run in runs if run.run == last.to), last)
    return last if last and last.tried else None


def standing(runs: Sequence[Run]) -> str:
    """Where the last run left the host, in words: `as before run X, since the rollback Y`."""
    if not runs:
        return "no run that changed it is on record"
    last = runs[-1]
    if last.to and last.done:
        return f"as before run {last.to}, since the rollback {beginning(runs, last).run}"
    if last.to:
        return f"in the middle of a rollback to before run {last.to}; the same command goes on"
    if cut := cut_try(runs):
        return f"the try of {cut.tried} (run {cut.run}) ended before anybody decided on it"
    return f"as run {last.run} left it{'' if last.done else ', which did not end'}"


def at(run: Run) -> str:
    """When a run began: `2026-11-22 10:00:05 UTC`."""
    return f"{run.time.replace('T', ' ').removesuffix('Z')} UTC"
