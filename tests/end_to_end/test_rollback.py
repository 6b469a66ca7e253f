"""`rollback` on a provisioned host: typed again it changes nothing, two at once do not meet, and its own run undoes it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path

import pytest

from lab.cli import commands
from lab.hardware.rigfile import describe
from tests.end_to_end.conftest import Ssh
from tests.end_to_end.rw import argv, document, inventory, invoke, not_as_wanted
from tests.end_to_end.test_remove import STATE
from tests.end_to_end.test_rigs import Server
from tests.paths import ROOT

pytestmark = [pytest.mark.lab, pytest.mark.nightly, pytest.mark.timeout(1200)]
NAME, RIG = "t-rollback", "rig-3090"
OTHER_ID = "sudo sh -c 'echo 0123456789abcdef0123456789abcdef >/etc/machine-id'"


@pytest.fixture
def given(snapshots: Path, ssh: Ssh, tmp_path: Path) -> Iterator[tuple[str, ...]]:
    """Yields --host and --inventory of a host with an older release of its driver, without CUDA; its boots are not tried."""
    server = Server(RIG, ssh)
    server.host, server.described = NAME, describe(RIG, NAME)
    server.boots(snapshots)
    ssh(NAME, "sudo LC_ALL=C update-grub")  # the image's grub.cfg was made without a locale
    yield "--host", NAME, "--inventory", inventory(tmp_path / "x", **{NAME: {"cuda": None, "reboot": {"trial": False}}})
    commands.down(name=NAME, say=print)


def state(ssh: Ssh) -> list[str]:
    """Returns what a rollback takes back."""
    return str(ssh(NAME, STATE).stdout).splitlines()


def test_the_same_rollback_again_changes_nothing_and_its_run_undoes_it(given: tuple[str, ...], ssh: Ssh) -> None:
    before = state(ssh)
    forward = document("provision", *given, "--yes", "--wheels", ".lab/cache/wheels")
    assert forward["exit_code"] == 0, not_as_wanted(forward)
    provisioned = state(ssh)
    back = document("rollback", *given, "--yes")
    assert (back["exit_code"], back["hosts"][NAME]["status"]) == (0, "changed"), not_as_wanted(back)
    assert list(unified_diff(before, state(ssh), n=0)) == []

    for words in ((), ("--to", forward["run"])):
        again = invoke("rollback", *given, *words, "--yes")
        said = " ".join(again.stdout.split())
        assert again.returncode == 0, again.stdout + again.stderr
        assert f"it is as before run {forward['run']} already" in said
        assert f"--to {back['run']}; to go further back: " in said
    listed = document("rollback", *given, "--list")["hosts"][NAME]["facts"]["run_record.runs"]
    assert [run["run"] for run in listed] == [forward["run"], back["run"]], "no run was added"
    assert (
        f"now: as before run {forward['run']}, since the rollback {back['run']}"
        in invoke("rollback", *given, "--list").stdout
    )
    assert state(ssh) == before

    ssh(NAME, "sudo nvidia-smi -i 0 -pl 250")  # by hand
    changed = invoke("rollback", *given, "--yes")
    assert changed.returncode == 2, changed.stdout
    assert "power limit: 250 W, not 350 W" in changed.stdout
    assert state(ssh) != before, "it stays"
    ssh(NAME, "sudo nvidia-smi -i 0 -pl 350")

    ssh(NAME, f"sudo cp -p /etc/machine-id /root/ && {OTHER_ID}")
    copied = invoke("rollback", *given, "--yes")
    assert (copied.returncode, "--adopt" in copied.stdout) == (1, True), copied.stdout
    adopted = invoke("rollback", *given, "--adopt", "--yes")
    assert adopted.returncode == 0, adopted.stdout
    assert "as before run" in invoke("rollback", *given, "--yes").stdout
    ssh(NAME, "sudo cp -p /root/machine-id /etc/ && sudo rm /root/machine-id")

    first = subprocess.Popen(
        argv("rollback", *given, "--to", back["run"], "--yes"), cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    until = time.monotonic() + 120
    while "t" not in ssh(NAME, "sudo test ! -e /var/lib/rigwright/lease || echo t").stdout:
        assert time.monotonic() < until
        assert first.poll() is None
    second = invoke("rollback", *given, "--to", back["run"], "--yes")
    assert (second.returncode, "is changing it" in second.stdout) == (1, True), second.stdout
    said = first.communicate(timeout=400)[0]
    assert first.returncode == 0, said
    assert list(unified_diff(provisioned, state(ssh), n=0)) == []
    assert invoke("plan", *given).returncode == 0
