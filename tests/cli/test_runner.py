"""The playbook that is meant; the hints in the error of a host that does not answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from rigwright import inventory
from rigwright.cli import runner
from rigwright.core.command import Command, Result
from rigwright.core.errors import HostError, RigwrightError, Unreachable
from rigwright.facts import system
from tests.cli.run_command import run_command
from tests.fleet import fake_fleet
from tests.paths import ROOT

HOSTS = "all:\n  hosts:\n    {name}: {{ansible_host: {address}}}\n"
EXAMPLE = "{address} is an address for examples ({folder}/hosts.yml:3); invoke init describes a machine of yours"
IN_LAB = "ssh there; the lab has a host of that name: add --inventory {folder}/lab"


@pytest.mark.parametrize(
    ("address", "in_lab", "error", "fix"),
    [
        *(
            (address, "", Unreachable, EXAMPLE)
            for address in ("192.0.2.10", "198.51.100.1", "203.0.113.9", "2001:db8::5")
        ),
        *(
            (address, "", Unreachable, "ssh there")
            for address in ("192.0.3.10", "10.0.0.4", "gpu1.example.org", "fe80::1%eth0")
        ),
        ("192.0.2.10", "", HostError, "ssh there"),
        ("10.0.0.4", "servbadge", Unreachable, IN_LAB),
        ("10.99.1.10", "servbadge", Unreachable, "ssh there"),
        ("10.0.0.4", "another", Unreachable, "ssh there"),
    ],
)
def test_the_hint_of_a_host_that_does_not_answer(
    address: str, in_lab: str, error: type[RigwrightError], fix: str, tmp_path: Path
) -> None:
    (tmp_path / "lab").mkdir()
    (tmp_path / "hosts.yml").write_text(HOSTS.format(name="servbadge", address=f"'{address}'"))
    if in_lab:
        (tmp_path / "lab" / "hosts.yml").write_text(HOSTS.format(name=in_lab, address="10.99.1.10"))
    host = inventory.read(tmp_path / "hosts.yml").hosts["servbadge"]
    found = runner.with_hint(error("servbadge", "refused", "", "ssh there"), host, tmp_path / "lab").fix
    wanted = fix.format(address=address, folder=tmp_path)
    assert found.startswith(wanted) if "invoke init" in fix else found == wanted


def test_a_playbook_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shipped = ROOT / "playbooks"
    assert runner.playbook("", "provision") == shipped / "provision.yml"
    assert runner.playbook("train", "provision") == shipped / "train.yml"
    assert runner.playbook("mine.yml", "provision") == Path("mine.yml")
    (tmp_path / "train").touch()
    assert runner.playbook("train", "provision") == Path("train")


def test_a_fact_that_cannot_be_read_is_shown_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Control sequences and markup of a host are escaped."""
    monkeypatch.setenv("RIGWRIGHT_HISTORY", str(tmp_path / "history.sqlite"))
    gpu = fake_fleet.fleet(tmp_path, monkeypatch, "gpu01")
    usual = gpu.answer

    def answer(name: str, cmd: Command) -> Result:
        return Result(0, b"[/bold]\x1b[2J") if cmd == system.free_mib.command else usual(name, cmd)

    monkeypatch.setattr(gpu, "answer", answer)
    assert run_command("facts", host="gpu", inventory=gpu.inventory) == 0
    out = capsys.readouterr().out
    assert "system.free_mib unavailable: system.free_mib: cannot read '[/bold]" in out
    assert "\x1b" not in out
