"""What a host still needs: every step planned against its facts, read in rounds. No side effects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from rigwright.change import Change, Note
from rigwright.errors import HostError
from rigwright.facts import Fact, FactStore, Missing, Unavailable, Unreadable
from rigwright.playbook import Step

Status = Literal["ok", "pending", "changed", "unknown", "failed", "skipped"]
Read = Callable[[Sequence[Fact[Any]]], None]
MAX_ROUNDS = 6


@dataclass(frozen=True)
class Planned:
    """A step, what it chose, and what it still wants: `pending` with changes, `unknown` with the reason, `failed` with the error."""

    step: Step
    status: Status
    changes: tuple[Change, ...] = ()
    reason: str = ""
    error: HostError | None = None
    notes: tuple[Note, ...] = ()


def make(steps: Sequence[Step], store: FactStore, read: Read) -> tuple[Planned, ...]:
    """The plan of all steps. A step that meets what is not there yet is unknown after a step that will change
    something, and failed otherwise. Raises RuntimeError when facts never settle (a bug of ours)."""
    asked: list[str] = []
    for _ in range(MAX_ROUNDS + 1):
        planned: list[Planned] = []
        missing: dict[Fact[Any], None] = {}
        for step in steps:
            try:
                planned.append(_one(step, store))
            except Missing as wanted:
                missing.update(dict.fromkeys(wanted.facts))
        if not missing:
            return _settled(planned)
        asked.append(", ".join(fact.name for fact in missing))
        read(tuple(missing))
    raise RuntimeError("facts that never settle: " + " | ".join(asked))


def _one(step: Step, store: FactStore) -> Planned:
    if step.skipped:
        return Planned(step, "skipped", reason=step.skipped)
    try:
        yielded = tuple(step.function(store, **step.parameters))
    except Unavailable as reason:
        return Planned(step, "unknown", reason=str(reason))
    except Unreadable as reason:
        return Planned(
            step,
            "failed",
            reason=str(reason),
            error=HostError(
                step.name,
                str(reason),
                "an answer that can be read",
                "mend what it says on the host, then run the same command again",
            ),
        )
    except HostError as error:
        error.where = error.where or step.name
        return Planned(step, "failed", reason=error.found, error=error)
    changes = tuple(one for one in yielded if isinstance(one, Change))
    notes = tuple(one for one in yielded if isinstance(one, Note))
    return Planned(step, "pending" if changes else "ok", changes, notes=notes)


def _settled(planned: Sequence[Planned]) -> tuple[Planned, ...]:
    result: list[Planned] = []
    moving = False
    for one in planned:
        if one.status == "unknown" and not moving:
            one = replace(one, status="failed", error=HostError(one.step.name, one.reason))
        moving = moving or one.status in ("pending", "unknown")
        result.append(one)
    return tuple(result)
