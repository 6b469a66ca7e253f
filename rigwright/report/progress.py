"""What many hosts are doing right now, as lines that fit the screen."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.text import Text as Words

from rigwright import events
from rigwright.errors import printable

NAME_COLUMNS = 24
ROOM = 4
"""Lines of the screen that are left for what is written above."""


@dataclass
class _Line:
    """A host: what it does since when (monotonic), the last line of what that printed, and how it ended, "" while it runs."""

    doing: str = ""
    since: float = 0.0
    said: str = ""
    ended: str = ""


class Progress:
    """What becomes of hosts: told of events, drawn again and again; safe for many workers, for each host's events come from one at a time."""

    def __init__(self, hosts: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun = clock()
        self._lines = {name: _Line() for name in hosts}

    def event(self, event: events.Event) -> None:
        """Something happened on a host; hosts that are none of these are passed by."""
        line = self._lines.get(event.host)
        if line is None:
            return
        if isinstance(event, events.Begun):
            self._does(line, event.doing)
        elif isinstance(event, events.StepStarted):
            self._does(line, event.step)
        elif isinstance(event, events.OutputLine):
            line.said = event.line.strip() or line.said
        elif isinstance(event, events.Note):
            line.said = event.text
        elif isinstance(event, events.StepDone):
            self._does(line, "between steps")
        elif isinstance(event, events.Ended):
            line.ended = event.how

    def _does(self, line: _Line, doing: str) -> None:
        line.doing, line.since, line.said = doing, self._clock(), ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height = max(3, (options.height or console.height) - ROOM)
        for words in self.lines(options.max_width, height):
            words.truncate(options.max_width, overflow="ellipsis")
            yield from words.render(console)
            yield Segment.line()

    def lines(self, width: int, most: int) -> list[Words]:
        """At most so many lines: who runs first, then who failed, who waits and who is done; the last line counts."""
        by_state = {state: [name for name in self._lines if self._state(name) == state] for state in _ORDER}
        ordered = [name for state in _ORDER for name in by_state[state]]
        wide = min(NAME_COLUMNS, max((cell_len(_one_line(name)) for name in ordered), default=0))
        hidden = max(0, len(by_state["running"]) - (most - 1))
        return [*(self._host(name, wide, width) for name in ordered[: most - 1]), self._count(by_state, hidden)]

    def _state(self, name: str) -> str:
        line = self._lines[name]
        if line.ended:
            return line.ended
        return "running" if line.doing else "waiting"

    def _host(self, name: str, wide: int, width: int) -> Words:
        line, state = self._lines[name], self._state(name)
        words = Words(no_wrap=True)
        words.append(f"{_MARK[state]} ", style=_STYLE[state])
        words.append(set_cell_size(_one_line(name), wide), style="bold")
        if state != "running":
            words.append(f"  {state}", style=_STYLE[state] or "dim")
            return words
        words.append(f" {_span(self._clock() - line.since):>7}  ", style="cyan")
        words.append(_one_line(line.doing))
        room = width - words.cell_len - 2
        if line.said and room > 8:
            words.append(f"  {_one_line(line.said)[:room]}", style="dim")
        return words

    def _count(self, by_state: dict[str, list[str]], hidden: int) -> Words:
        parts = [f"{len(names)} {state}" for state, names in by_state.items() if names]
        if hidden:
            parts[0] += f" ({hidden} not shown)"
        total = f"{sum(map(len, by_state.values()))} hosts: {', '.join(parts)}"
        return Words(f"{total}, {_span(self._clock() - self._begun)}", style="dim", no_wrap=True)


_ORDER = ("running", "failed", "waiting", "not attempted", "done")
_MARK = {"running": "•", "failed": "✗", "waiting": "·", "not attempted": "-", "done": "✓"}
_STYLE = {"running": "bold", "failed": "bold red", "waiting": "", "not attempted": "yellow", "done": "green"}


def _one_line(text: str) -> str:
    return " ".join(printable(text).split())


def _span(seconds: float) -> str:
    """`0:05`, `12:03`, `1:02:03`."""
    whole = int(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
