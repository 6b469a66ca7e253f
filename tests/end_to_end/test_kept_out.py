"""A new boot that is well, and lets nobody in: the controller says what it sees, and the reason is what it has seen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.bench import trials
from lab.cli import commands
from lab.faults import inject
from lab.host import login
from lab.power import switch
from tests.end_to_end.conftest import Ssh

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]
NAME = "t-kept-out"


@pytest.fixture(scope="module")
def folder(lab_root: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:  # noqa: ARG001
    """Yields a folder with a playbook for a host without GPUs that runs."""
    commands.down(name=NAME, say=print)
    commands.up(name=NAME, say=print)
    login.ssh(switch.get(NAME), "sudo LC_ALL=C update-grub", 60)  # the image's grub.cfg was made without a locale
    made = tmp_path_factory.mktemp("kept-out")
    (made / "play.yml").write_text(trials.VM_PLAY)
    yield made
    commands.down(name=NAME, say=print)


def provision(folder: Path, word: str, confirm_within_s: int, fault: str = "") -> dict[str, Any]:
    """Provisions the host with one kernel parameter, and a fault of its new boot; returns the host's part of the
    document."""
    given = {"kernel_cmdline": [word], "reboot": {"trial": True, "confirm_within_s": confirm_within_s}}
    inventory = trials.variables(folder / "inventory", NAME, with_rig=False, **given)
    if fault:
        inject.fault(NAME, fault, "", print)
    try:
        document = trials.provision(NAME, inventory, "--playbook", str(folder / "play.yml"))
    finally:
        if fault:
            inject.heal(NAME, fault, print)
    found: dict[str, Any] = document["hosts"][NAME]
    return found


def notes(done: dict[str, Any]) -> list[str]:
    """Returns the texts of the notes."""
    return [event["text"] for event in done["events"] if event["event"] == "note"]


def test_a_rule_of_sudo_that_comes_late(folder: Path) -> None:
    """The fault "new-late-sudo": 25 seconds after the start of a healthy boot, as from LDAP."""
    done = provision(folder, "pcie_aspm=off", 120, "new-late-sudo")
    assert done["error"] is None, done["error"]
    said = notes(done)
    assert any("s so far: the new boot runs, and sudo wants a password for ubuntu; unless" in note for note in said), (
        said
    )
    assert "the new boot is healthy; it is permanent now" in said
    assert "pcie_aspm=off" in trials.command_line(NAME)


@pytest.mark.trials
@pytest.mark.parametrize(
    ("kind", "seen"),
    [
        ("no sudo", "the new boot runs, and sudo wants a password for ubuntu"),
        ("key revoked", "ssh refused the key of ubuntu"),
        ("other address", "no answer"),
    ],
)
def test_nobody_gets_in(folder: Path, ssh: Ssh, kind: str, seen: str) -> None:
    """The faults "new-no-sudo", "new-no-key" and "new-other-address"; each takes about a minute."""
    before = ssh(NAME, "cat /proc/cmdline; sudo sha256sum /boot/grub/grub.cfg").stdout
    done = provision(folder, trials.WORD, 30, trials.KEPT_OUT[kind].fault)
    assert trials.KEPT_OUT[kind].says in done["error"]["found"], done["error"]
    assert done["error"]["fix"].startswith("correct kernel_cmdline in the inventory")
    said = notes(done)
    note = next((note for note in said if f"s so far: {seen}" in note), "")
    assert "the host goes back by itself" in note, said
    assert trials.WORD not in trials.command_line(NAME)
    after = ssh(NAME, "cat /proc/cmdline; sudo sha256sum /boot/grub/grub.cfg").stdout
    assert after.splitlines()[-1] == before.splitlines()[-1]
