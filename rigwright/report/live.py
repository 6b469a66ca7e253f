"""The lines at the foot of a terminal that say what many hosts are doing, as long as they do it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.live import Live

from rigwright import events
from rigwright.report.progress import Progress

HEADINGS = 8
"""With more hosts than this each one's heading is not a line of its own."""


class Region:
    """The hosts of one stage of a run. What is written meanwhile goes above it; nothing of it is left afterwards."""

    def __init__(self, console: Console, hosts: Sequence[str]) -> None:
        self._progress = Progress(hosts)
        self._live = Live(self._progress, console=console, refresh_per_second=4, transient=True)
        self._many = len(hosts) > HEADINGS
        self.connected: list[events.Connected] = []

    def __enter__(self) -> Region:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def takes(self, event: events.Event) -> bool:
        """The event is shown here; whether that is all that there is to show of it."""
        self._progress.event(event)
        if self._many and isinstance(event, events.Connected):
            self.connected.append(event)
            return True
        return isinstance(event, (events.StepStarted, events.OutputLine))

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing is drawn: somebody is asked something."""
        self._live.stop()
        try:
            yield
        finally:
            self._live.start()
