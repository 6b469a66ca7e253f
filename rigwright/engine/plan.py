"""The plan of a host: what each step still has to change, computed from facts that are read in rounds. Nothing is
changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from rigwright.core.change import Change, Note
from rigwright.core.errors import HostError
from rigwright.engine.playbook import Step
from rigwright.engine.shared_results import SharedResults
from rigwright.facts import Fact, Facts, FactStore, Missing, Unavailable, Unreadable
from rigwright.facts.boot import next_boot

Status = Literal["ok", "pending", "changed", "unknown", "failed", "skipped"]
Read = Callable[[Sequence[Fact[Any]]], None]
MAX_ROUNDS = 6


class PlannedStep(Struct, frozen=True):
    """A step with its status: `pending` with changes, `unknown` with the reason, `failed` with the error.

    `notes`: what the operation chose, for the person who reads the plan. `fix`: what a person does about an unknown
    step, if known.
    """

    step: Step
    status: Status
    changes: tuple[Change, ...] = ()
    reason: str = ""
    error: HostError | None = None
    notes: tuple[Note, ...] = ()
    fix: str = ""


def plan_steps(
    steps: Sequence[Step], store: FactStore, read: Read, shared: SharedResults | None = None
) -> tuple[PlannedStep, ...]:
    """The plan of all steps. `read` adds the facts that the store lacks; it changes none that is known, so a step is
    planned once.

    A step whose facts are unavailable is `unknown` when an earlier step will change something, and `failed` otherwise.
    The first step that reboots the host is `failed`, also for a reboot that other changes lead to, if the host could
    not be reached after it. Raises RuntimeError when an operation asks for new facts in every round, which is a bug of
    the operation.
    """
    asked: list[str] = []
    shared = shared or SharedResults()
    planned: dict[int, PlannedStep] = {}
    for _ in range(MAX_ROUNDS + 1):
        missing: dict[Fact[Any], None] = {}
        for number, step in enumerate(steps):
            if number in planned:
                continue
            try:
                planned[number] = shared.of(step, store, partial(_plan_step, step), _may_be_shared)
            except Missing as error:
                missing.update(dict.fromkeys(error.facts))
        if not missing:
            return _with_reboot_check(
                _unknown_or_failed([planned[number] for number in range(len(steps))]), store, read
            )
        asked.append(", ".join(fact.name for fact in missing))
        read(tuple(missing))
    raise RuntimeError("facts that never settle: " + " | ".join(asked))


def _with_reboot_check(planned: tuple[PlannedStep, ...], store: FactStore, read: Read) -> tuple[PlannedStep, ...]:
    """The steps; a reboot after which the host could not be reached has failed, and if that is not known it has a
    warning."""
    at = _reboot_in(planned)
    if at is None:
        return planned
    if next_boot.conditions not in store.known:
        read((next_boot.conditions,))
    step, conditions = planned[at], store.known[next_boot.conditions]
    known = conditions if isinstance(conditions, tuple) else ()
    faults = [condition for condition in known if condition.state == "fault"][:4]
    unknown = [f"{condition.subject} ({condition.found})" for condition in known if condition.state == "unknown"]
    if faults:
        problem = "; ".join(f"{fault.subject}: {fault.found}" for fault in faults)
        problem = f"the host could not be reached after a boot: {problem}"
        fix = "; ".join(dict.fromkeys(fault.fix for fault in faults))
        error = HostError(step.step.name, problem, faults[0].expected, f"{fix}; then run the same command again")
        step = replace(step, status="failed", changes=(), reason=problem, error=error, fix=fix)
    elif unknown or conditions is not known:
        text = f"not known whether the host can be reached after a boot: {'; '.join(unknown) or conditions}"
        step = replace(step, notes=(*step.notes, Note(text, warn=True)))
    return (*planned[:at], step, *planned[at + 1 :])


def _reboot_in(planned: Sequence[PlannedStep]) -> int | None:
    """The number of the first step that reboots the host, also because of earlier changes; None without one."""
    leads = False
    for number, step in enumerate(planned):
        if any(change.reboot for change in step.changes) or (
            leads and step.step.declared.reboots and not step.step.skipped
        ):
            return number
        leads = leads or any(change.leads_to == "reboot" for change in step.changes)
    return None


def _plan_step(step: Step, store: Facts) -> PlannedStep:
    if step.skipped:
        return PlannedStep(step, "skipped", reason=step.skipped)
    try:
        yielded = tuple(step.function(store, **step.parameters))
    except Unavailable as reason:
        return PlannedStep(step, "unknown", reason=str(reason), fix=reason.fix)
    except Unreadable as reason:
        fix = f"{reason.fix or 'correct the cause on the host'}; then run the same command again"
        error = HostError(step.name, str(reason), "an answer that can be read", fix)
        return PlannedStep(step, "failed", reason=str(reason), error=error)
    except HostError as error:
        error.where = error.where or step.name
        return PlannedStep(step, "failed", reason=error.found, error=error)
    changes = tuple(item for item in yielded if isinstance(item, Change))
    notes = tuple(item for item in yielded if isinstance(item, Note))
    return PlannedStep(step, "pending" if changes else "ok", changes, notes=notes)


def _may_be_shared(planned: PlannedStep) -> bool:
    """Whether hosts may share a plan: not with an error, which names its host, and not if it depends on the time."""
    return planned.status in ("ok", "pending") and planned.error is None and not planned.step.declared.momentary


def _unknown_or_failed(planned: Sequence[PlannedStep]) -> tuple[PlannedStep, ...]:
    """The steps; an unknown step fails where no earlier step will change something."""
    result: list[PlannedStep] = []
    changing = False
    for step in planned:
        if step.status == "unknown" and not changing:
            step = replace(step, status="failed", error=HostError(step.step.name, step.reason, fix=step.fix))
        changing = changing or step.status in ("pending", "unknown")
        result.append(step)
    return tuple(result)
