"""The events of a run, in the order in which they happen. The text output and the JSON document are made from them."""

from __future__ import annotations

import re

from msgspec import Struct
from msgspec.structs import asdict, replace

from rigwright.core import secrets
from rigwright.core.change import Change


class Event(Struct, frozen=True):
    """An event of one host."""

    host: str

    @property
    def kind(self) -> str:
        """connected, step_started, output_line, step_done or note."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()


def redacted(event: Event) -> Event:
    """The event with `(secret)` in place of every known secret in its texts."""
    texts = {key: text for key, text in asdict(event).items() if key != "host" and isinstance(text, str)}
    hidden = {key: secrets.redacted(text) for key, text in texts.items()}
    return event if hidden == texts else replace(event, **hidden)


class Connected(Event, frozen=True):
    """The host is connected and has answered. `simulated`: the lab's description of a simulated host, "" for a real
    one."""

    address: str
    simulated: str


class ActivityStarted(Event, frozen=True):
    """An activity on the host began: connecting, planning, ... Shown as progress only; not part of a report."""

    activity: str


class HostFinished(Event, frozen=True):
    """Work on the host ended: done, failed or not attempted. Shown as progress only; not part of a report."""

    outcome: str


class StepStarted(Event, frozen=True):
    """The changes of a step begin."""

    step: str
    changes: tuple[Change, ...]


class OutputLine(Event, frozen=True):
    """A line of output of a long command."""

    step: str
    line: str


class StepDone(Event, frozen=True):
    """A step ended with a status: ok, changed or failed. `seconds`: how long it took."""

    step: str
    status: str
    reason: str
    seconds: float


class Note(Event, frozen=True):
    """A message for the user, such as that the run waits for a boot, a lock or a job of an earlier run."""

    text: str
