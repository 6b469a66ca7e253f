"""Where a run's text goes; what draws it is loaded late, so that a command starts at once."""

from __future__ import annotations

import functools
from typing import IO, TYPE_CHECKING

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
