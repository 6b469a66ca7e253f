"""Copies of hosts: what one has installed, with identifiers of their own. `provision` of a copy of a provisioned host
changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.base.paths import FROZEN
from lab.cli import commands
from lab.faults import inject
from rigwright.core.errors import UsageError
from tests.end_to_end.conftest import Ssh
from tests.end_to_end.rw import document, invoke

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]
IDENTIFIERS = (
    "cat /etc/hostname",
    "cat /etc/machine-id",
    "cat /proc/sys/kernel/random/boot_id",
    "cat /etc/ssh/ssh_host_ed25519_key.pub",
)


def frozen(name: str) -> list[str]:
    return [path.name for path in FROZEN.glob(f"{name}-*")]


def distinct(ssh: Ssh, names: list[str], command: str) -> set[str]:
    """Runs a command on each host; returns the answers, which no two hosts may have in common."""
    answers = [ssh(name, command) for name in names]
    assert {answer.returncode for answer in answers} == {0}, answers
    lines = [line for answer in answers for line in answer.stdout.splitlines()]
    assert len(set(lines)) == len(lines), lines
    return set(lines)


@pytest.fixture
def source(spare_host: str) -> Iterator[str]:
    """Yields a host without GPUs; removes the copies that a test made."""
    yield spare_host
    for number in (1, 2):
        commands.down(name=f"{spare_host}-copy{number}", say=print)


def test_a_copy_has_the_files_and_identifiers_of_its_own(source: str, ssh: Ssh) -> None:
    assert (
        ssh(
            source, "echo installed | sudo tee /srv/it && sudo rm -r /usr/share/doc && sudo mkdir /usr/share/doc"
        ).returncode
        == 0
    )
    copies = [f"{source}-copy{number}" for number in (1, 2)]
    commands.up(name=f"{source}-copy", count=2, copy_of=source, say=print)
    for name in copies:
        assert ssh(name, "cat /srv/it; ls /usr/share/doc | wc -l; sudo ls /var/log/journal | wc -l").stdout.split() == [
            "installed",
            "0",
            "1",
        ]
    for command in IDENTIFIERS:
        assert len(distinct(ssh, [source, *copies], command)) == 3

    ssh(copies[0], "echo changed | sudo tee /srv/it; sync")
    assert [ssh(name, "cat /srv/it").stdout.strip() for name in (source, *copies)] == [
        "installed",
        "changed",
        "installed",
    ]
    commands.power_cut(copies[0])
    commands.up(name=copies[0], say=print)
    assert ssh(copies[0], "cat /srv/it").stdout == "changed\n"

    assert len(frozen(source)) == 1
    commands.down(name=copies[0], say=print)
    assert len(frozen(source)) == 1
    commands.down(name=copies[1], say=print)
    assert frozen(source) == []
    assert ssh(source, "cat /srv/it").stdout == "installed\n"


def test_what_is_no_host_and_another_rig_are_refused(source: str) -> None:
    with pytest.raises(UsageError, match="no host 't-nobody'"):
        commands.up(name="t-copy", copy_of="t-nobody", say=print)
    with pytest.raises(UsageError, match="rig none"):
        commands.up(name="t-copy", rig="servbadge", copy_of=source, say=print)


@pytest.mark.nightly
def test_provision_of_a_copy_of_a_provisioned_host_changes_nothing(ssh: Ssh, lab_root: None) -> None:  # noqa: ARG001
    original, copies = "t-original", ["t-original-copy1", "t-original-copy2"]
    try:
        commands.up(name=original, rig="servbadge", say=print)
        assert invoke("provision", "--host", original, "--yes").returncode == 0
        commands.up(name=f"{original}-copy", count=2, copy_of=original, say=print)
        found = document("provision", "--host", "t-original*", "--yes")
        assert (found["exit_code"], {name: one["status"] for name, one in found["hosts"].items()}) == (
            0, dict.fromkeys([original, *copies], "ok"),
        )  # fmt: skip
        assert [change for one in found["hosts"].values() for change in one["changes"]] == []
        assert len(distinct(ssh, [original, *copies], "nvidia-smi --query-gpu=uuid,serial --format=csv,noheader")) == 12
        inject.fault(original, "gpu-hot", "1", print)
        with pytest.raises(UsageError, match="it has the fault gpu-hot"):
            commands.up(name="t-original-copy3", copy_of=original, say=print)
        for name in copies:
            own = ssh(name, "nvidia-smi --query-gpu=uuid --format=csv,noheader").stdout.split()
            record = ssh(name, "sudo cat /var/lib/rigwright/p2p-test.passed").stdout
            assert len(own) == 4
            assert all(uuid in record for uuid in own)
    finally:
        for name in (original, *copies):
            commands.down(name=name, say=print)
    assert frozen(original) == []
