"""Tables on terminals of 40, 80 and 120 columns: columns where they have room, else a block of lines for each row."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from rigwright.checks import Finding
from rigwright.history.machines import CHECK
from rigwright.inventory.model import Host
from rigwright.report import tables
from rigwright.report.tables import fleet
from tests import reports

ADDRESS = "a-user-with-a-long-name@192.168.100.200:2222"


def _shown(columns: int, terminal: bool = True) -> list[str]:
    table = tables.with_columns("host", "address", "groups", "rig", wrap=("address", "groups"))
    table.add_row("h" * 60, ADDRESS, "gpu, old, second-hand", "servbadge")
    table.add_row("short", "10.0.0.1", "", "[bold]rig[/]")
    stream = io.StringIO()
    tables.write(Console(file=stream, width=columns, force_terminal=terminal, no_color=True), table)
    return stream.getvalue().replace("\x1b[1m", "").replace("\x1b[2m", "").replace("\x1b[0m", "").splitlines()


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_a_host_name_of_60_characters(columns: int) -> None:
    """No value is broken within a word, whatever the terminal's width."""
    words = " ".join(_shown(columns)).split()
    assert {"h" * 60, ADDRESS, "second-hand", "servbadge", "short", "10.0.0.1", "rig"} <= set(words)


def test_blocks_where_there_is_no_room_else_a_table() -> None:
    lines = _shown(80)
    assert lines[0] == "h" * 60
    assert lines[1] == f"  address  {ADDRESS}"
    assert lines[lines.index("short") :] == ["short", "  address  10.0.0.1", "  rig      rig"]
    for lines in (_shown(150), _shown(150, terminal=False)):
        assert lines[0].split() == ["host", "address", "groups", "rig"]
        assert len(lines) == 3


def test_a_terminal_shows_no_empty_column() -> None:
    def shown(terminal: bool) -> list[str]:
        table = tables.with_columns("host", "rig", "serial", "driver")
        table.add_row("a", "", "-", "535")
        table.add_row("b", "", "-", "")
        stream = io.StringIO()
        tables.write(Console(file=stream, width=80, force_terminal=terminal, color_system=None), table)
        return [" ".join(line.split()) for line in stream.getvalue().splitlines()]

    assert shown(True) == ["host driver", "a 535", "b"]
    assert shown(False)[0] == "host rig serial driver"


def test_another_machine_comes_before_what_differs_from_the_playbook() -> None:
    drift = Finding("driver", "fail", "580", expected="535", check="plan")
    other = Finding("identity", "warn", "another machine", "", "serial 7", "correct ansible_host", check=CHECK)
    stream = io.StringIO()
    report = reports.report(Host("box", (), {}), status="failed", findings=(drift, other))
    fleet.check(Console(file=stream, width=100), [report])
    shown = [line.split()[0] for line in stream.getvalue().splitlines()[1:4]]
    assert shown == ["machine", "fix", "playbook"]
