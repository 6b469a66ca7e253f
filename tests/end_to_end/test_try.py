"""`try` on a rig-3090: a driver that hangs is measured, refused and taken back; a kernel command line that is faster is
kept."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.faults import inject
from tests.end_to_end import way_back
from tests.end_to_end.conftest import Ssh
from tests.end_to_end.plugs import state as state_of_host
from tests.end_to_end.plugs.machine import Nspawn
from tests.end_to_end.rw import inventory, invoke, read_until, start
from tests.end_to_end.test_rigs import server_with_driver

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]
NAME, RIG = "t-try", "rig-3090"
PACKAGES = "dpkg-query -W 'nvidia-*' 'libnvidia-*' | sort; apt-mark showhold"
STATE = f"cat /sys/module/nvidia/version; {PACKAGES}; sed 's/ panic=60 rigwright.trial=.*//' /proc/cmdline"
"""What runs; the words of a boot that was tried once stay on the command line until the next one."""


@pytest.fixture
def folder(snapshots: Path, tmp_path: Path) -> Iterator[Path]:
    """Yields the inventory of a provisioned host without CUDA and without words for its kernel.

    Its limit is above what the products draw: below it, they would slow down where a faster all-reduce leaves the GPUs
    busier.
    """
    with server_with_driver(NAME, RIG, snapshots):
        wanted: dict[str, Any] = {
            "cuda": None,
            "kernel_cmdline": [],
            "limits": {"persistence": True, "power_limit_w": 350},
        }
        made = Path(inventory(tmp_path / "inventory", **{NAME: wanted}))
        done = invoke("provision", "--host", NAME, "--inventory", str(made), "--yes")
        assert "proved by" in done.stdout, done.stdout + done.stderr
        yield made


def tried(folder: Path, code: int, *words: str) -> tuple[dict[str, Any], str]:
    """Runs `try` on the host; returns the document's part about the host, and the text."""
    file = folder.parent / "try.json"
    options = ("--host", NAME, "--inventory", str(folder), "--rounds", "2", "--yes", "--json", str(file))
    done = invoke("try", *options, *words, deadline=600)
    assert done.returncode == code, done.stdout + done.stderr
    host = json.loads(file.read_text())["hosts"][NAME]
    assert isinstance(host, dict)
    return host, done.stdout


def state(ssh: Ssh) -> str:
    return str(ssh(NAME, STATE).stdout)


@pytest.mark.nightly
def test_a_driver_that_hangs_and_words_that_are_faster(folder: Path, ssh: Ssh) -> None:
    inject.fault(NAME, "new-driver-hangs", "", print)
    before = state(ssh)
    host, text = tried(folder, 2, "--driver", "580", "--keep-if", "no-slower")
    found = host["try"]
    assert (found["decision"], found["comparison"]["verdict"]) == ("back", "refused"), text
    assert "peer-to-peer test: hang: GPU 0 to " in found["comparison"]["broken"][0]
    versions = [found[when]["conditions"]["driver"] for when in ("before", "after")]
    assert [version.partition(".")[0] for version in versions] == ["535", "580"]
    assert found["before"]["failures"] == {}
    assert "products" in found["after"]["rounds"], "what does not hang is measured"
    assert "back as it was" in text
    assert state(ssh) == before
    again = invoke("plan", "--host", NAME, "--inventory", str(folder))
    assert again.returncode == 0, again.stdout

    inject.heal(NAME, "", print)
    inject.fault(NAME, "iommu-slow", "", print)
    host, text = tried(folder, 0, "--kernel-cmdline", "iommu=pt", "--keep-if", "faster", "--write")
    found = host["try"]
    assert (found["decision"], found["comparison"]["verdict"]) == ("kept", "faster"), text
    rows = {row["quantity"]: row for row in found["comparison"]["rows"]}
    assert rows["copies"]["percent"] == pytest.approx(200, abs=10)
    assert (rows["copies"]["judgement"], rows["products"]["judgement"]) == ("better", "noise")
    assert [one["name"] for one in found["comparison"]["differs"]] == ["kernel command line"]
    written = yaml.safe_load((folder / "host_vars" / f"{NAME}.yml").read_text())
    assert written == {"kernel_cmdline": ["iommu=pt"]}
    again = invoke("plan", "--host", NAME, "--inventory", str(folder))
    assert again.returncode == 0, again.stdout
    shown = invoke("history.show", "last").stdout
    assert shown


@pytest.mark.ways
def test_a_try_that_is_taken_back_or_rolled_back_leaves_the_host_as_before(folder: Path) -> None:
    machine = Nspawn(NAME, RIG)
    before, began, ends = state_of_host.read(machine.root), time.monotonic(), "failed"
    try:
        words = ("--limits", "power_limit_w: 300")
        tried(folder, 2, *words, "--keep-if", "never")
        assert not _differences(machine, before)
        tried(folder, 0, *words, "--keep-if", "no-slower")
        again = invoke("rollback", "--host", NAME, "--inventory", str(folder), "--yes", deadline=600)
        assert again.returncode == 0, again.stdout
        assert not _differences(machine, before)
        ends = "same"
    finally:
        way_back.write("driver, Ubuntu 22.04", "try, taken back and kept", time.monotonic() - began, ends)


def _differences(machine: Nspawn, before: state_of_host.State) -> list[str]:
    now = state_of_host.differences(state_of_host.read(machine.root), before)
    return [str(each) for each in now if not way_back.STAYS.search(each.line)]


PLACES = {"while it is measured": "✓ Limits", "before the way back": "going back,", "in the way back": "• Files"}
"""The text in the output after which the try is killed."""


@pytest.mark.nightly
def test_a_try_that_is_killed_is_taken_back_by_the_same_command(folder: Path, ssh: Ssh) -> None:
    watts = "nvidia-smi --query-gpu=power.limit --format=csv,noheader; cat /etc/rigwright/limits.json"
    before = ssh(NAME, watts).stdout
    words = ("--host", NAME, "--inventory", str(folder), "--rounds", "2", "--limits", "power_limit_w: 250", "--yes")
    for place, text in PLACES.items():
        killed_at(text, "try", *words, "--keep-if", "never")
        planned = invoke("plan", "--host", NAME, "--inventory", str(folder))
        told = "ended before anybody decided on it" in " ".join(planned.stdout.split())
        assert told == (planned.returncode != 0), f"{place}: {planned.stdout}"
        again = invoke("try", *words, "--keep-if", "never", deadline=600)
        said = " ".join(again.stdout.split())
        assert again.returncode == 2, f"{place}: {again.stdout}{again.stderr}"
        assert "ended before anybody decided on it" in said, place
        assert "back as it was before limits: " in said, place
        assert "the same command now tries limits: " in said, place
        assert ssh(NAME, watts).stdout == before, place
        assert invoke("plan", "--host", NAME, "--inventory", str(folder)).returncode == 0, place
    listed = invoke("rollback", "--host", NAME, "--inventory", str(folder), "--list").stdout
    assert "not decided" not in listed


def killed_at(text: str, task: str, *words: str) -> None:
    """Runs a command and kills it when its output has a text."""
    command = start(task, *words)
    output = read_until(command, text)
    command.kill()
    assert command.wait(30) == -signal.SIGKILL, output
