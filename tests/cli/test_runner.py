"""The playbook that is meant; the hints in the error of a host that does not answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from rigwright import inventory
from rigwright.cli import runner
from rigwright.core.errors import HostError, RigwrightError, Unreachable
from tests.paths import ROOT

HOSTS = "all:\n  hosts:\n    servbadge: {{ansible_host: {address}}}\n"


def hinted(folder: Path, address: str, error: RigwrightError) -> str:
    """Returns the fix at the end of the message."""
    path = folder / "hosts.yml"
    path.write_text(HOSTS.format(address=address))
    return runner.with_hint(error, inventory.read(path).hosts["servbadge"], folder / "lab").fix


@pytest.mark.parametrize("address", ["192.0.2.10", "198.51.100.1", "203.0.113.9", "'2001:db8::5'"])
def test_an_address_out_of_a_book(tmp_path: Path, address: str) -> None:
    todo = hinted(tmp_path, address, Unreachable("servbadge", "no login within 20 s", "", "ssh there"))
    assert "an address for examples" in todo
    assert "invoke init" in todo
    assert "hosts.yml" in todo


@pytest.mark.parametrize("address", ["192.0.3.10", "10.0.0.4", "gpu1.example.org", "fe80::1%eth0"])
def test_another_address(tmp_path: Path, address: str) -> None:
    assert hinted(tmp_path, address, Unreachable("servbadge", "refused", "", "ssh there")) == "ssh there"


def test_a_host_that_answered(tmp_path: Path) -> None:
    assert hinted(tmp_path, "192.0.2.10", HostError("servbadge", "no room", "", "df -h")) == "df -h"


def test_the_lab_has_one_too(tmp_path: Path) -> None:
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "hosts.yml").write_text(HOSTS.format(address="10.99.1.10"))
    todo = hinted(tmp_path, "10.0.0.4", Unreachable("servbadge", "refused", "", "ssh there"))
    assert todo.startswith("ssh there; the lab has a host of that name: add --inventory ")


def test_the_host_is_the_one_of_the_lab(tmp_path: Path) -> None:
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "hosts.yml").write_text(HOSTS.format(address="10.99.1.10"))
    assert hinted(tmp_path, "10.99.1.10", Unreachable("servbadge", "refused", "", "ssh there")) == "ssh there"


def test_the_lab_has_none_of_that_name(tmp_path: Path) -> None:
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "hosts.yml").write_text("all:\n  hosts:\n    another: {ansible_host: 10.99.1.10}\n")
    assert hinted(tmp_path, "10.0.0.4", Unreachable("servbadge", "refused", "", "ssh there")) == "ssh there"


def test_a_playbook_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shipped = ROOT / "playbooks"
    assert runner.playbook("", "provision") == shipped / "provision.yml"
    assert runner.playbook("train", "provision") == shipped / "train.yml"
    assert runner.playbook("mine.yml", "provision") == Path("mine.yml")
    (tmp_path / "train").touch()
    assert runner.playbook("train", "provision") == Path("train")
