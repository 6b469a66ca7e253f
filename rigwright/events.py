"""What happens in a run, as it happens; text and JSON are drawn from these."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rigwright.change import Change


@dataclass(frozen=True)
class Event:
    """Something about one host."""

    host: str

    @property
    def kind(self) -> str:
        """connected, step_started, output_line, step_done or note."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()


@dataclass(frozen=True)
class Connected(Event):
    """A verified session exists. `simulated` is what a lab host says of itself, else empty."""

    address: str
    simulated: str


@dataclass(frozen=True)
class Begun(Event):
    """Something is done with the host: connecting, planning, ... Only for who watches; it stands in no report."""

    doing: str


@dataclass(frozen=True)
class Ended(Event):
    """It has ended: done, failed or not attempted. Only for who watches."""

    how: str


@dataclass(frozen=True)
class StepStarted(Event):
    """The changes of a step are being made."""

    step: str
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class OutputLine(Event):
    """A line that a long command printed."""

    step: str
    line: str


@dataclass(frozen=True)
class StepDone(Event):
    """A step ended: ok, changed, failed. `seconds` it took."""

    step: str
    status: str
    reason: str
    seconds: float


@dataclass(frozen=True)
class Note(Event):
    """A sentence for the person who watches: waiting for a boot, for a lock, for a job of an earlier run."""

    text: str
