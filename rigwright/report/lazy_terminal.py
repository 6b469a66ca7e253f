"""The text output of a run. It imports rich when the first line is written, so that a command starts at once."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import IO, TYPE_CHECKING

from rigwright.engine.events import ActivityStarted, Event, HostFinished

if TYPE_CHECKING:
    from rigwright.report.terminal import Text


class Output:
    """The text output of a run, made on first use."""

    def __init__(self, stream: IO[str]) -> None:
        self.stream = stream
        self.inventory = ""
        self.many = False

    @functools.cached_property
    def text(self) -> Text:
        """The writer."""
        from rigwright.report.terminal import Text

        return Text(self.stream, self.inventory, self.many)

    def stage(self, hosts: Sequence[str]) -> AbstractContextManager[object]:
        """As `Text.stage`."""
        return self.text.stage(hosts) if len(hosts) > 1 and self.stream.isatty() else contextlib.nullcontext()

    def event(self, event: Event) -> None:
        """Shows an event. One that only progress lines show does not import the writer."""
        if "text" in vars(self) or not isinstance(event, (ActivityStarted, HostFinished)):
            self.text.event(event)

    def progress(self, event: Event) -> None:
        """Passes an event to the progress lines only."""
        if "text" in vars(self):
            self.text.progress(event)
