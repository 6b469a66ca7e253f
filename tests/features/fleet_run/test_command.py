"""`fleet.run`: one command on many hosts, all of them this machine; answers are grouped, limited and escaped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rigwright.features.fleet_run import command as fleet_run, table as report
from rigwright.features.fleet_run.result import CommandResult
from tests.cli.run_command import run_command

INVENTORY = """all:
  hosts: {{a01: , a02: , a03: , away: {{ansible_connection: ssh, ansible_host: 127.0.0.1, ansible_port: 9}}}}
  vars: {{ansible_connection: local, ansible_python_interpreter: "{folder}"}}
"""


@pytest.fixture
def inventory(tmp_path: Path) -> str:
    """Returns an inventory that lists this machine three times, and a host that does not answer."""
    (tmp_path / "hosts.yml").write_text(INVENTORY.format(folder=tmp_path))
    return str(tmp_path / "hosts.yml")


def run(
    inventory: str, capsys: pytest.CaptureFixture[str], cmd: str, host: str = "a*", timeout_s: str = "20"
) -> tuple[int, str, dict[str, Any]]:
    """Returns the exit code, the text and the JSON document."""
    file = Path(inventory).parent / "out.json"
    code = run_command(
        "fleet.run", cmd=cmd, host=host or None, inventory=inventory, timeout_s=timeout_s, json=str(file)
    )
    return code, "".join(capsys.readouterr()), json.loads(file.read_text())


def test_equal_answers_are_shown_once(inventory: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, made = run(inventory, capsys, "echo one; echo two >&2", "a0*")
    assert code == 0
    assert text == "a[01:03] (3 hosts): exit 0\n  one\n  two\n\n3 of 3 hosts: exit 0\n"
    assert made["hosts"]["a02"]["ran"] == {"code": 0, "output": "one\ntwo\n", "cut": False}
    assert made["hosts"]["a02"]["status"] == "ok"


def test_different_answers_stand_each_under_its_hosts(inventory: str, capsys: pytest.CaptureFixture[str]) -> None:
    mark = Path(inventory).parent / "mark"
    code, text, made = run(inventory, capsys, f"mkdir {mark} 2>/dev/null || {{ echo not first; exit 4; }}", "a0*")
    assert code == 1
    assert text.count("exit 4") == 1
    assert text.endswith("1 of 3 hosts: exit 0, 2 with another exit\n")
    assert sorted(host["ran"]["code"] for host in made["hosts"].values()) == [0, 4, 4]


def test_a_host_that_is_away_takes_nothing_from_the_others(inventory: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, made = run(inventory, capsys, "echo here", "all")
    assert code == 3
    assert "a[01:03] (3 hosts): exit 0\n  here\n" in text
    assert "error away (127.0.0.1:9): the connection was refused" in text
    assert made["hosts"]["away"]["ran"] is None


def test_a_flood_is_cut_and_ended(inventory: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, made = run(inventory, capsys, "yes floodfloodflood", "a01")
    assert code == 1
    assert made["hosts"]["a01"]["ran"]["cut"] is True
    assert len(made["hosts"]["a01"]["ran"]["output"]) == fleet_run.KEPT_BYTES
    assert made["hosts"]["a01"]["ran"]["code"] == 141
    assert "  ... and more: the output was cut here" in text
    assert len(text) < 2 * fleet_run.KEPT_BYTES


def test_one_that_does_not_end_is_ended(inventory: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, made = run(inventory, capsys, "echo begun; sleep 60", "a01,a02", "1")
    assert code == 1
    assert "a01, a02: not done within 1 s\n  begun\n" in text
    assert text.endswith("0 of 2 hosts: exit 0, 2 did not end in time\n")
    assert made["hosts"]["a01"]["ran"] == {"code": None, "output": "begun\n", "cut": False}


def test_what_steers_a_terminal_does_not(inventory: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, text, made = run(inventory, capsys, r"printf '\033[31mred\033]0;title\007 [bold]b[/] \200\n'", "a01")
    assert "\x1b" not in text
    assert "[bold]b[/]" in text
    assert "\x1b" not in made["hosts"]["a01"]["ran"]["output"]


def test_its_stdin_is_empty_and_its_words_are_the_hosts(inventory: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = run(inventory, capsys, "cat; for i in 1 2; do echo \"$i '$HOME'\"; done # it's", "a01")
    assert code == 0
    assert "  1 '/" in text


@pytest.mark.parametrize(
    ("cmd", "timeout_s", "where", "found"),
    [
        ("", "60", "--cmd", "no command"),
        ("  ", "60", "--cmd", "no command"),
        ("true", "0", "--timeout-s", "'0' is no duration in seconds"),
        ("true", "soon", "--timeout-s", "'soon' is no duration in seconds"),
        ("true", "99999", "--timeout-s", "'99999' is no duration in seconds"),
    ],
)
def test_a_bad_word_is_named_before_any_host(
    inventory: str, capsys: pytest.CaptureFixture[str], cmd: str, timeout_s: str, where: str, found: str
) -> None:
    code, text, made = run(inventory, capsys, cmd, "all", timeout_s)
    assert code == 1
    assert (made["error"]["where"], made["error"]["found"]) == (where, found)
    assert made["hosts"] == {}
    assert text.count("error") == 1


def test_groups_that_ended_well_come_first() -> None:
    said = [(1, "no"), (0, "yes\n"), (0, "other"), (0, "yes"), (None, "")]
    answers = {name: CommandResult(*each) for name, each in zip("abcde", said, strict=True)}
    assert [names for _, names in report.group_answers(answers)] == [["b", "d"], ["c"], ["a"], ["e"]]


def test_forty_hosts_fit_a_screen() -> None:
    console = Console(width=80, height=24, record=True, color_system=None)
    report.show(console, {f"gpu{number:02}": CommandResult(0, "580.95.05") for number in range(1, 41)}, 60)
    assert console.export_text() == "gpu[01:40] (40 hosts): exit 0\n  580.95.05\n\n40 of 40 hosts: exit 0\n"
