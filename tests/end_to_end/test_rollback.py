"""`rollback` on a provisioned host: typed again it changes nothing, two at once do not meet, and its own run undoes
it."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path

import pytest

from tests.end_to_end.conftest import Ssh
from tests.end_to_end.rw import document, inventory, invoke, not_as_wanted, start, until
from tests.end_to_end.test_remove import STATE
from tests.end_to_end.test_rigs import server_with_driver

pytestmark = [pytest.mark.lab, pytest.mark.nightly, pytest.mark.timeout(1200)]
NAME, RIG = "t-rollback", "rig-3090"
OTHER_ID = "sudo sh -c 'echo 0123456789abcdef0123456789abcdef >/etc/machine-id'"


@pytest.fixture
def given(snapshots: Path, ssh: Ssh, tmp_path: Path) -> Iterator[tuple[str, ...]]:
    """Yields --host and --inventory of a host with an older release of its driver, without CUDA; its boots are not
    tried."""
    with server_with_driver(NAME, RIG, snapshots):
        ssh(NAME, "sudo LC_ALL=C update-grub")  # the image's grub.cfg was made without a locale
        wanted = {"cuda": None, "p2p_wheels": "none", "reboot": {"trial": False}}
        yield "--host", NAME, "--inventory", inventory(tmp_path / "x", **{NAME: wanted})


def state(ssh: Ssh) -> list[str]:
    """Returns what a rollback takes back."""
    return str(ssh(NAME, STATE).stdout).splitlines()


def test_the_same_rollback_again_changes_nothing_and_its_run_undoes_it(given: tuple[str, ...], ssh: Ssh) -> None:
    before = state(ssh)
    forward = document("provision", *given, "--yes")
    assert forward["exit_code"] == 0, not_as_wanted(forward)
    provisioned = state(ssh)
    back = document("rollback", *given, "--yes")
    assert (back["exit_code"], back["hosts"][NAME]["status"]) == (0, "changed"), not_as_wanted(back)
    assert list(unified_diff(before, state(ssh), n=0)) == []

    for words in ((), ("--to", forward["run"])):
        said = said_by(0, "rollback", *given, *words, "--yes")
        assert f"it is as before run {forward['run']} already" in said
        assert f"--to {back['run']}; to go further back: " in said
    listed = document("rollback", *given, "--list")["hosts"][NAME]["facts"]["run_record.runs"]
    assert [run["run"] for run in listed] == [forward["run"], back["run"]], "no run was added"
    stands = f"now: as before run {forward['run']}, since the rollback {back['run']}"
    assert stands in said_by(0, "rollback", *given, "--list")
    assert state(ssh) == before

    ssh(NAME, "sudo apt-get -qq -y --no-install-recommends install patch")  # by hand; the run had brought it, too
    assert "patch: " in said_by(2, "rollback", *given, "--yes")
    assert state(ssh) != before, "it stays"
    ssh(NAME, "sudo dpkg --purge patch")

    ssh(NAME, f"sudo cp -p /etc/machine-id /root/ && {OTHER_ID}")
    assert "rollback --host NAME --adopt" in said_by(1, "rollback", *given, "--yes")
    assert "they count now" in said_by(0, "rollback", *given, "--adopt", "--yes")
    assert "it is as before run" in said_by(0, "rollback", *given, "--yes")
    ssh(NAME, "sudo cp -p /root/machine-id /etc/ && sudo rm /root/machine-id")

    first = start("rollback", *given, "--to", back["run"], "--yes")
    until(lambda: ssh(NAME, "sudo test -e /var/lib/rigwright/lease").returncode == 0, "the lease of the first", 120)
    assert "is changing it" in said_by(1, "rollback", *given, "--to", back["run"], "--yes")
    said = first.communicate(timeout=400)[0]
    assert first.returncode == 0, said
    assert list(unified_diff(provisioned, state(ssh), n=0)) == []
    said_by(0, "plan", *given)


def said_by(code: int, task: str, *words: str) -> str:
    """Runs a command that ends with this code; returns what it says in one line."""
    done = invoke(task, *words)
    assert done.returncode == code, done.stdout + done.stderr
    return " ".join(done.stdout.split())
