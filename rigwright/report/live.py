"""Progress of many hosts at the foot of a terminal: a line for each host and a line that counts them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from rigwright.core.control_characters import one_line
from rigwright.engine import events

MAX_HEADINGS = 8
"""With more hosts than this, the headings of all hosts are folded into one line."""

NAME_COLUMNS = 24
RESERVED_LINES = 4
"""Lines of the screen that are left for the output above."""

_STATES = {
    "running": ("•", "bold"),
    "failed": ("✗", "bold red"),
    "waiting": ("·", ""),
    "not attempted": ("-", "yellow"),
    "done": ("✓", "green"),
}
"""The states of a host in the order of their lines, each with its mark and style."""


class _HostLine(Struct):
    """What a host does, since when (monotonic), the last output of that, and how the host ended ("" while it runs)."""

    activity: str = ""
    since: float = 0.0
    output: str = ""
    result: str = ""

    @property
    def state(self) -> str:
        return self.result or ("running" if self.activity else "waiting")


class Progress:
    """A renderable of the state of hosts, from events. Thread-safe if the events of a host come from one thread."""

    def __init__(self, hosts: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started = clock()
        self._hosts = {name: _HostLine() for name in hosts}

    def event(self, event: events.Event) -> None:
        """Updates the line of the event's host; events of other hosts are ignored."""
        line = self._hosts.get(event.host)
        if line is None:
            return
        match event:
            case events.ActivityStarted(activity=activity) | events.StepStarted(step=activity):
                line.activity, line.since, line.output, line.result = activity, self._clock(), "", ""
            case events.StepDone():
                line.activity, line.since, line.output = "between steps", self._clock(), ""
            case events.OutputLine():
                line.output = event.line.strip() or line.output
            case events.Note():
                line.output = event.text
            case events.HostFinished():
                line.result = event.outcome

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height = max(3, (options.height or console.height) - RESERVED_LINES)
        for line in self.lines(options.max_width, height):
            line.truncate(options.max_width, overflow="ellipsis")
            yield from line.render(console)
            yield Segment.line()

    def lines(self, width: int, max_lines: int) -> list[Text]:
        """At most `max_lines` lines: running hosts first, then failed, waiting and finished ones, then the counts."""
        by_state = {state: [name for name, line in self._hosts.items() if line.state == state] for state in _STATES}
        names = [name for state in _STATES for name in by_state[state]]
        name_width = min(NAME_COLUMNS, max((cell_len(one_line(name)) for name in names), default=0))
        hidden = max(0, len(by_state["running"]) - (max_lines - 1))
        shown = [self._host(name, name_width, width) for name in names[: max_lines - 1]]
        return [*shown, self._count(by_state, hidden)]

    def _host(self, name: str, name_width: int, width: int) -> Text:
        line = self._hosts[name]
        mark, style = _STATES[line.state]
        text = Text(no_wrap=True)
        text.append(f"{mark} ", style=style)
        text.append(set_cell_size(one_line(name), name_width), style="bold")
        if line.state != "running":
            text.append(f"  {line.state}", style=style or "dim")
            return text
        text.append(f" {_duration(self._clock() - line.since):>7}  ", style="cyan")
        text.append(one_line(line.activity))
        room = width - text.cell_len - 2
        if line.output and room > 8:
            text.append(f"  {one_line(line.output)[:room]}", style="dim")
        return text

    def _count(self, by_state: dict[str, list[str]], hidden: int) -> Text:
        parts = [f"{len(names)} {state}" for state, names in by_state.items() if names]
        if hidden:
            parts[0] += f" ({hidden} not shown)"
        elapsed = _duration(self._clock() - self._started)
        return Text(f"{len(self._hosts)} hosts: {', '.join(parts)}, {elapsed}", style="dim", no_wrap=True)


class Region:
    """The progress lines during one stage of a run. Output goes above them; they disappear when the stage ends."""

    def __init__(self, console: Console, hosts: Sequence[str]) -> None:
        self._progress = Progress(hosts)
        self._live = Live(self._progress, console=console, refresh_per_second=4, transient=True)
        self._folds_headings = len(hosts) > MAX_HEADINGS
        self.connected: list[events.Connected] = []
        """The connections whose headings were not printed."""

    def __enter__(self) -> Region:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def takes(self, event: events.Event) -> bool:
        """Shows the event; returns whether it needs no line of its own."""
        self._progress.event(event)
        if self._folds_headings and isinstance(event, events.Connected):
            self.connected.append(event)
            return True
        return isinstance(event, (events.StepStarted, events.OutputLine))

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Hides the lines while the terminal asks a question."""
        self._live.stop()
        try:
            yield
        finally:
            self._live.start()


def _duration(seconds: float) -> str:
    """`0:05`, `12:03`, `1:02:03`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
