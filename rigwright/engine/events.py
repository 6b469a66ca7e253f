"""The events of a run, in the order in which they happen. The text output and the JSON document are made from them."""

from __future__ import annotations

import re
from dataclasses import replace

from rigwright.core import secrets
from rigwright.core.change import Change
from rigwright.core.lazy_dataclasses import dataclass


@dataclass(frozen=True)
class Event:
    """An event of one host."""

    host: str

    @property
    def kind(self) -> str:
        """connected, step_started, output_line, step_done or note."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()


def redacted(event: Event) -> Event:
    """The event with `(secret)` in place of every known secret in its texts."""
    texts = {key: text for key, text in vars(event).items() if key != "host" and isinstance(text, str)}
    hidden = {key: secrets.redacted(text) for key, text in texts.items()}
    return event if hidden == texts else replace(event, **hidden)


@dataclass(frozen=True)
class Connected(Event):
    """The host is connected and has answered. `simulated`: the lab's description of a simulated host, "" for a real one."""

    address: str
    simulated: str


@dataclass(frozen=True)
class ActivityStarted(Event):
    """An activity on the host began: connecting, planning, ... Shown as progress only; not part of a report."""

    activity: str


@dataclass(frozen=True)
class HostFinished(Event):
    """Work on the host ended: done, failed or not attempted. Shown as progress only; not part of a report."""

    outcome: str


@dataclass(frozen=True)
class StepStarted(Event):
    """The changes of a step begin."""

    step: str
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class OutputLine(Event):
    """A line of output of a long command."""

    step: str
    line: str


@dataclass(frozen=True)
class StepDone(Event):
    """A step ended with a status: ok, changed or failed. `seconds`: how long it took."""

    step: str
    status: str
    reason: str
    seconds: float


@dataclass(frozen=True)
class Note(Event):
    """A message for the user, such as that the run waits for a boot, a lock or a job of an earlier run."""

    text: str
