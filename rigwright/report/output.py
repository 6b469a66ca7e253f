"""Where a run's text goes; what draws it is loaded late, so that a command starts at once."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import IO, TYPE_CHECKING

from rigwright.events import Begun, Ended, Event

if TYPE_CHECKING:
    from rigwright.report.text import Text


class Output:
    """Where a run's text goes; what draws it is loaded when the first line is due, or while the hosts answer."""

    def __init__(self, stream: IO[str]) -> None:
        self.stream = stream
        self.inventory = ""
        self.many = False

    @functools.cached_property
    def text(self) -> Text:
        """The writer."""
        from rigwright.report.text import Text

        return Text(self.stream, self.inventory, self.many)

    def stage(self, hosts: Sequence[str]) -> AbstractContextManager[object]:
        """Shows several hosts at work, on a terminal; elsewhere it does not even load what would draw them."""
        return self.text.stage(hosts) if len(hosts) > 1 and self.stream.isatty() else contextlib.nullcontext()

    def event(self, event: Event) -> None:
        """Something happened on a host. What only a stage shows does not load what would draw it."""
        if "text" in vars(self) or not isinstance(event, (Begun, Ended)):
            self.text.event(event)

    def unsaid(self, event: Event) -> None:
        """An event that only who watches is told of."""
        if "text" in vars(self):
            self.text.unsaid(event)
