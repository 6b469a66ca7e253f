"""The progress lines of many hosts: they fit the screen, and texts from hosts cannot break the display."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from rich.cells import cell_len
from rich.console import Console

from rigwright.engine import events
from rigwright.report.lazy_terminal import Output
from rigwright.report.live import Progress
from rigwright.report.terminal import Text
from tests.cli.run_command import run_command
from tests.fleet import fake_fleet

HOSTS = [f"gpu{number:02}" for number in range(1, 41)]


class Clock:
    """A clock that advances only when the test sets it."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def drawn(progress: Progress, width: int = 80, height: int = 24) -> list[str]:
    """Returns the lines on a screen of that size."""
    console = Console(width=width, height=height, file=io.StringIO(), force_terminal=True, color_system=None)
    console.print(progress)
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue().split("\n")[:-1]


def forty() -> tuple[Progress, Clock]:
    """Returns forty hosts: 25 run (three of them install a driver), one has failed, eight are done, six wait."""
    clock = Clock()
    progress = Progress(HOSTS, clock)
    for name in HOSTS[:34]:
        progress.event(events.ActivityStarted(name, "beginning"))
    clock.now += 5
    for name in HOSTS[20:23]:
        progress.event(events.StepStarted(name, "Driver installed", ()))
        progress.event(events.OutputLine(name, "Driver installed", "Unpacking libnvidia-compute-535 " + "x" * 200))
    for name in HOSTS[:8]:
        progress.event(events.HostFinished(name, "done"))
    progress.event(events.HostFinished(HOSTS[8], "failed"))
    clock.now += 78
    return progress, clock


def test_forty_hosts_on_a_small_screen() -> None:
    progress, _ = forty()
    lines = drawn(progress)
    assert len(lines) == 20
    assert max(map(cell_len, lines)) <= 80
    assert lines[0] == "• gpu10    1:23  beginning"
    assert lines[11].startswith("• gpu21    1:18  Driver installed  Unpacking libnvidia-compute-535 xxx")
    assert lines[-1] == "40 hosts: 25 running (6 not shown), 1 failed, 6 waiting, 8 done, 1:23"


def test_few_that_run_leave_room_for_the_others() -> None:
    progress, clock = forty()
    for name in HOSTS[9:34]:
        progress.event(events.HostFinished(name, "done"))
    clock.now += 3600
    lines = drawn(progress)
    assert lines[0] == "✗ gpu09  failed"
    assert [line.split()[-1] for line in lines[1:7]] == ["waiting"] * 6
    assert lines[7] == "✓ gpu01  done"
    assert lines[-1] == "40 hosts: 1 failed, 6 waiting, 33 done, 1:01:23"


def test_three_hosts_are_all_there() -> None:
    progress = Progress(["one", "two", "three"], Clock())
    progress.event(events.ActivityStarted("two", "planning"))
    progress.event(events.Note("two", "waiting for it to come back, 30 s so far"))
    progress.event(events.ActivityStarted("nobody", "planning"))
    assert drawn(progress, 60) == [
        "• two      0:00  planning  waiting for it to come back, 30 s",
        "· one    waiting",
        "· three  waiting",
        "3 hosts: 1 running, 2 waiting, 0:00",
    ]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=30), min_size=1, max_size=12, unique=True),
    st.text(max_size=100), st.integers(20, 200), st.integers(5, 16),
)  # fmt: skip
def test_whatever_hosts_say_it_fits(names: list[str], said: str, width: int, height: int) -> None:
    progress = Progress(names, Clock())
    for name in names:
        progress.event(events.ActivityStarted(name, "running it"))
        progress.event(events.OutputLine(name, "running it", said))
    lines = drawn(progress, width, height)
    assert len(lines) <= max(3, height - 1)
    assert all(cell_len(line) <= width for line in lines)
    assert "\x1b" not in "".join(lines)


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def on_screen(patch: pytest.MonkeyPatch, terminal: str = "xterm") -> tuple[Terminal, Text]:
    """Returns a writer on a terminal."""
    patch.setenv("TERM", terminal)
    patch.setenv("COLUMNS", "80")
    patch.setenv("LINES", "24")
    screen = Terminal()
    return screen, Text(screen, "hosts.yml", True)


def test_on_a_terminal_steps_are_drawn_and_results_written(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, text = on_screen(monkeypatch)
    with text.stage(["one", "two"]):
        text.event(events.StepStarted("one", "Driver installed", ()))
        text.event(events.OutputLine("one", "Driver installed", "Unpacking"))
        text.event(events.StepDone("one", "Driver installed", "changed", "", 1.5))
        with text.paused():
            before = len(screen.getvalue())
            text.event(events.StepStarted("two", "Driver held", ()))
            assert len(screen.getvalue()) == before
    told = screen.getvalue()
    assert "proved, 1.5 s" in told
    assert "2 hosts: " in told
    assert "\x1b[2K" in told, "what was drawn is taken away again"
    after = len(told)
    text.event(events.StepStarted("one", "Limits", ()))
    assert "• Limits" in screen.getvalue()[after:].replace("\x1b[1m", "").replace("\x1b[0m", "")


def test_many_headings_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, text = on_screen(monkeypatch)
    with text.stage(HOSTS):
        for number, name in enumerate(HOSTS):
            text.event(events.Connected(name, name, "a lab host" if number < 3 else ""))
    told = screen.getvalue()
    assert "gpu[01:40]" in told
    assert "40 hosts, inventory hosts.yml" in told
    assert "gpu[01:03]" in told
    assert told.count("inventory") == 1


@pytest.mark.parametrize("terminal", ["dumb", None])
def test_elsewhere_lines_are_plain(monkeypatch: pytest.MonkeyPatch, terminal: str | None) -> None:
    screen: io.StringIO = on_screen(monkeypatch, terminal)[0] if terminal else io.StringIO()
    text = Text(screen, "hosts.yml", True)
    with text.stage(["one", "two"]):
        text.event(events.StepStarted("one", "Driver installed", ()))
    assert "one • Driver installed" in re.sub(r"\x1b\[[012]m", "", screen.getvalue())


def test_a_provision_of_forty_hosts_on_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gpus = fake_fleet.fleet(tmp_path, monkeypatch, *HOSTS)
    screen, _ = on_screen(monkeypatch)
    monkeypatch.setattr("sys.stdout", screen)
    words: dict[str, Any] = {"host": "all", "inventory": gpus.inventory, "playbook": gpus.playbook, "yes": True}
    assert run_command("provision", **words) == 0
    told = screen.getvalue()
    assert sorted(gpus.made) == HOSTS
    assert "40 hosts: " in told
    assert told.count("proved, ") == 40
    capsys.readouterr()


def test_nothing_is_loaded_for_one_host_or_no_terminal() -> None:
    output = Output(io.StringIO())
    with output.stage(["one", "two"]):
        output.progress(events.ActivityStarted("one", "asking"))
    assert "text" not in vars(output)
