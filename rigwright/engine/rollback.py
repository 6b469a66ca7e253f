"""The way back to what a host was before a run: the steps of playbooks/rollback.yml with their aim, for `rollback` and
`try`."""

from __future__ import annotations

import inspect
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from rigwright.core import run_ids
from rigwright.core.errors import UsageError
from rigwright.core.files import shipped_files
from rigwright.engine import run_owner
from rigwright.engine.playbook import BoundPlaybook, Step
from rigwright.facts import past_runs, run_record
from rigwright.facts.run_record import run_id

if TYPE_CHECKING:
    from rigwright.engine.host_run import HostRun


def path() -> Path:
    """The playbook that rigwright brings."""
    return shipped_files.folder("playbooks") / "rollback.yml"


def require_run(to: str, host: str) -> None:
    """Raises UsageError for a text that is neither the id of a run nor its beginning; "" is the last run. `host`: for
    the fix."""
    if to and not run_ids.is_beginning(to):
        fix = f"invoke rollback --host {shlex.quote(host)} --list shows the runs that it remembers"
        raise UsageError("--to", f"{to!r} is no id of a run", f"an id such as {run_ids.EXAMPLE}, or its beginning", fix)


def with_aim(bound: BoundPlaybook, to: str) -> BoundPlaybook:
    """The playbook with the run before which its steps go back; "" is the last run of each host.

    The run that goes back may be that run itself. Raises UsageError for a text that names no folder of a run.
    """
    if to and not run_id(to):
        fix = "invoke rollback --host NAME --list"
        raise UsageError("--to", f"{to!r} is no id of a run", f"an id such as {run_ids.EXAMPLE}", fix)

    def step_with_aim(step: Step) -> Step:
        takes_it = "to" in inspect.signature(step.function).parameters
        return replace(step, parameters={**step.parameters, "to": to}) if takes_it else step

    return replace(bound, steps=tuple(map(step_with_aim, bound.steps)))


def at_work(tried: run_record.Run) -> str:
    """The message about a try whose process may still run, here or on another machine."""
    match = run_owner.OWNER.fullmatch(tried.tried_by)
    who = f" by {match['user'].partition('.')[0]} (process {match['pid']})" if match else ""
    return f"run {tried.run} tries {tried.tried} on it{who}, and has not decided yet"


def unfinished_note(run: HostRun) -> str:
    """Which rollback or `try` an earlier command began on the host and did not end, and the command that continues it;
    "" without one, and for a playbook that goes back itself: its first step says before which run."""
    if any(step.operation == "rollback.possible" for step in run.bound.steps):
        return ""
    run.read_unknown((run_record.runs,))
    runs = run.store.known[run_record.runs]
    if not isinstance(runs, tuple) or not runs:
        return ""
    back = f"invoke rollback --host {shlex.quote(run.host.name)}"
    if tried := past_runs.cut_try(runs):
        if not run_owner.has_ended(tried.tried_by):
            return f"{at_work(tried)}; if it was cut there: {back} --to {tried.run} takes it back"
        problem = f"run {tried.run} tried {tried.tried} and ended before anybody decided on it"
        return f"{problem}: {back} --to {tried.run} takes it back; provision makes the host what the inventory says"
    last = runs[-1]
    if last.to and not last.done:
        return f"the rollback {last.run} to before run {last.to} did not end: {back} goes on with it"
    return ""
