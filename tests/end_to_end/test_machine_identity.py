"""Two simulated hosts under one name: the past belongs to the machine, which the firmware tells."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.cli import commands
from lab.power import switch
from tests.end_to_end.rw import document, invoke, login_variables

pytestmark = [pytest.mark.lab, pytest.mark.nightly, pytest.mark.timeout(300)]
PLAY = "- name: A play\n  hosts: all\n  checks:\n    - name: Machine\n      machine.unchanged:\n"


@pytest.fixture
def machines(lab_root: None) -> Iterator[tuple[str, str]]:  # noqa: ARG001
    """Starts a host with three GPUs and one with two; neither has a driver."""
    names = ("t-was", "t-is")
    for name, rig in zip(names, ("rig-3090", "rtx-4090"), strict=True):
        commands.down(name=name, say=print)
        commands.up(name=name, rig=rig, say=print)
    yield names
    for name in names:
        commands.down(name=name, say=print)


class Named:
    """The inventory of one run: by name the simulated host that answers there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "play.yml").write_text(PLAY)
        self.history = {"RIGWRIGHT_HISTORY": str(folder / "history.sqlite")}

    def words(self, **hosts: str) -> tuple[str, ...]:
        """The options of a command for these hosts."""
        given = {name: login_variables(host, ansible_become_password="hunter2") for name, host in hosts.items()}
        (self.folder / "hosts.yml").write_text(yaml.safe_dump({"rack": {"hosts": given}}))
        return "--inventory", f"{self.folder}/hosts.yml", "--playbook", str(self.folder / "play.yml"), "--host", "all"

    def run(self, command: str, **hosts: str) -> dict[str, Any]:
        """The reports of the hosts."""
        options = self.words(**hosts)
        extra = ("--quick",) if command == "verify" else ()
        reports: dict[str, Any] = document(command, *options, *extra, **self.history)["hosts"]
        assert {report["round_trips"] for report in reports.values()} == {1}, "the identity costs no round trip"
        return reports


def identity(report: dict[str, Any]) -> list[str]:
    """What the findings about the identity see; no other finding may fail."""
    assert [each for each in report["findings"] if each["verdict"] in ("fail", "unknown")] == []
    return [each["seen"].partition(" until ")[0] for each in report["findings"] if each["check"] == "history.machine"]


def test_a_machine_takes_the_name_of_another(machines: tuple[str, str], tmp_path: Path) -> None:
    named, (was, now) = Named(tmp_path), machines
    first = named.run("verify", gpu1=was)["gpu1"]
    assert (identity(first), len(first["baseline"]["gpus"])) == ([], 3)
    assert first["identity"]["board_serial"]
    second = named.run("verify", gpu1=now)["gpu1"]
    assert identity(second) == ["another machine than the one that was gpu1"]
    assert (second["status"], len(second["baseline"]["gpus"])) == ("ok", 2), "the GPUs of the other one are not missing"
    assert identity(named.run("fleet.check", gpu1=now)["gpu1"]) == [], "told once"
    moved = named.run("fleet.check", gpu1=now, gpu9=was)
    assert identity(moved["gpu1"]) == []
    assert identity(named.run("verify", gpu9=was)["gpu9"]) == ["the machine that was gpu1"]
    changed = json.loads(invoke("history.diff", "gpu9", "--json", "-", **named.history).stdout)["changed"]
    assert changed == [], "the past of gpu9 has only its own runs"


def test_a_machine_that_is_installed_again(machines: tuple[str, str], tmp_path: Path) -> None:
    named, (was, _) = Named(tmp_path), machines
    named.run("verify", gpu1=was)
    (switch.get(was).root / "etc/machine-id").write_text("1234567890abcdef1234567890abcdef\n")
    assert identity(named.run("verify", gpu1=was)["gpu1"]) == []
    diff = invoke("history.diff", "gpu1", **named.history).stdout
    assert "system.identity.machine_id_hash" in diff


def test_two_names_of_one_machine(machines: tuple[str, str], tmp_path: Path) -> None:
    named, (was, _) = Named(tmp_path), machines
    reports = named.run("verify", gpu1=was, gpu2=was)
    assert [identity(reports[name]) for name in ("gpu1", "gpu2")] == [["gpu2 has the same"], ["gpu1 has the same"]]
    text = invoke("verify", *named.words(gpu1=was, gpu2=was), "--quick", **named.history)
    assert "gpu1, gpu2 have the same identity (board serial " in text.stdout
    assert "hunter2" not in text.stdout
