"""Lines for terminals of 40, 80 and 120 columns: hanging indentation, whole words."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from rigwright.core.change import Change
from rigwright.report import terminal, wrapping
from tests.report.test_live import Terminal

PACKAGES = [f"libnvidia-compute-{number}-server" for number in range(12)]
COMMAND = ".venv/bin/invoke provision --host servbadge --tags packages,driver,boot"


def _shown(line: str, indent: int, columns: int) -> list[str]:
    stream = io.StringIO()
    console = Console(file=stream, width=columns, force_terminal=True, no_color=True, highlight=False)
    wrapping.hanging(console, line, indent)
    return stream.getvalue().splitlines()


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_a_line_hangs_under_its_beginning(columns: int) -> None:
    words = " ".join(f"word{number}" for number in range(60))
    lines = _shown(f"    + {words}", 8, columns)
    assert all(len(line) <= columns for line in lines)
    assert lines[0].startswith("    + word0 ")
    assert all(line.startswith(" " * 8 + "word") for line in lines[1:])
    assert " ".join(" ".join(line.split()) for line in lines) == f"+ {words}"


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_a_word_longer_than_the_line_stays_whole(columns: int) -> None:
    word = "/var/lib/rigwright/" + "x" * 140
    lines = _shown(f"    + before {word} after", 8, columns)
    assert [line.strip() for line in lines] == ["+ before", word, "after"]


def test_a_pipe_gets_one_line() -> None:
    stream = io.StringIO()
    wrapping.hanging(Console(file=stream, width=40), "    + " + "word " * 30, 8)
    assert stream.getvalue().count("\n") == 1


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_an_error_on_a_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = (
        f"error servbadge: the driver is of another version than the kernel module\n  fix:      {COMMAND}, then again"
    )
    lines = wrapping.message(text, Terminal()).splitlines()
    assert all(len(line) <= columns or " " not in line.strip() for line in lines)
    words = [word for line in lines for word in line.split()]
    assert words == text.split()
    assert "\n".join(lines).count("\n" + " " * 12) >= (columns < 120)
    assert wrapping.message(text, io.StringIO()) == text


def test_the_holds_of_a_plan_are_whole_names() -> None:
    line = terminal._change(Change("add", "apt-mark hold", "", ", ".join(PACKAGES)))
    names = line.partition("hold  ")[2].partition(" and ")[0].split(", ")
    assert names == PACKAGES[: len(names)]
    assert line.endswith(f" and {len(PACKAGES) - len(names)} more")
