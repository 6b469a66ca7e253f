"""Three T181 as the nodes of one training: the slow one, the one that is away and the one with another driver are named; nothing stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.cli import commands
from lab.faults import inject
from lab.power import switch
from tests.end_to_end.conftest import ssh
from tests.end_to_end.rw import argv, document, inventory, invoke
from tests.paths import ROOT

pytestmark = [pytest.mark.lab, pytest.mark.nightly, pytest.mark.timeout(900)]

NAMES = ("t-node1", "t-node2", "t-node3")
VERSION = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Thu Jan 1 00:00:00 UTC 2026\n"


@pytest.fixture(scope="module")
def nodes(lab_root: None) -> Iterator[tuple[str, ...]]:  # noqa: ARG001
    """Yields the names of three hosts that reach each other through the bridge of the lab."""
    try:
        for name in NAMES:
            commands.down(name=name, say=print)
            commands.up(name=name, rig="t181", say=print)
        yield NAMES
    finally:
        for name in NAMES:
            commands.down(name=name, say=print)


def given(folder: Path, **keys: Any) -> list[str]:
    """The words of a measurement of the links between the three."""
    hosts = {name: dict(keys) for name in NAMES}
    return ["--nodes", "--links", "--host", "gpu", "--inventory", inventory(folder, **hosts), "--yes"]


def found_on(result: dict[str, Any], host: str, check: str) -> list[tuple[str, str]]:
    """The verdict and what was seen of each finding of a check on a host."""
    return [(one["verdict"], one["seen"]) for one in result["hosts"][host]["findings"] if one["check"] == check]


def at_work(name: str) -> str:
    """The programs of a measurement that run on a host."""
    return ssh(name, "pgrep -af '[n]ode_(link|train)|[d]dp_smoke|[n]ccl_nodes' || :").stdout.strip()


def test_well_then_a_slow_node_and_adapters(nodes: tuple[str, ...], tmp_path: Path) -> None:
    one, two, three = nodes
    well = document("train.smoke", *given(tmp_path / "well"))
    assert well["exit_code"] == 0, [host["findings"] for host in well["hosts"].values()]
    for name in nodes:
        assert [verdict for verdict, _ in found_on(well, name, "nodes.links")] == ["pass", "pass"]
        assert found_on(well, name, "nodes.adapters") == [
            ("pass", "mlx5_0:1: InfiniBand: the fastest ports with a link (100 Gb/s)")
        ]
    assert [node["hcas"] for node in well["hosts"][one]["nodes"]["nodes"]] == [["mlx5_0:1"]] * 3

    for host, fault in ((two, "slow-network"), (two, "ib-slow")):
        inject.fault(host, fault, "", print)
    slow = document("train.smoke", *given(tmp_path / "slow"))
    assert slow["exit_code"] == 2
    verdict, seen = found_on(slow, two, "nodes.links")[0]
    assert (verdict, seen.startswith("this node is slow: it sends at most 0.2")) == ("fail", True), seen
    assert [verdict for verdict, _ in found_on(slow, one, "nodes.links")] == ["info", "pass"]
    assert any(f"slow because {two} is" in seen for _, seen in found_on(slow, three, "nodes.links"))
    assert found_on(slow, two, "nodes.adapters")[0][1].endswith("(25 Gb/s); mlx5_0:1 1X EDR")
    for columns in ("80", "120"):
        shown = invoke("train.smoke", *given(tmp_path / "shown"), COLUMNS=columns)
        assert shown.returncode == 2
        assert any(line.startswith(two) and line.endswith("slow") for line in shown.stdout.splitlines()), shown.stdout

    inject.heal(two, "", print)
    inject.fault(three, "ib-down", "", print)
    down = document("train.smoke", *given(tmp_path / "down"))
    assert found_on(down, one, "nodes.adapters") == [("info", f"TCP: {three}: mlx5_0:1 is DOWN (Polling)")]
    assert found_on(down, three, "nodes.adapters")[0][0] == "warn"
    inject.heal(three, "", print)
    assert [at_work(name) for name in nodes] == ["", "", ""]


def test_a_firewall_and_a_port_that_is_taken_are_named(nodes: tuple[str, ...], tmp_path: Path) -> None:
    one, two, _ = nodes
    ssh(one, "sudo systemd-run -q --unit=taken python3 -m http.server 29400")
    try:
        taken = document("train.smoke", *given(tmp_path))
    finally:
        ssh(one, "sudo systemctl stop taken")
    assert taken["exit_code"] == 2
    seen = [seen for _, seen in found_on(taken, two, "nodes.links")]
    assert any("port 29400" in text and "the port is in use by another program" in text for text in seen), seen


def test_what_is_refused_before_anything_starts(nodes: tuple[str, ...], tmp_path: Path) -> None:
    one, two, three = nodes
    missing = invoke("train.smoke", *given(tmp_path / "missing", nodes={"interface": "ens9"}))
    assert missing.returncode == 1
    assert "the host has no interface ens9" in missing.stdout + missing.stderr

    hw = {name: switch.get(name).hw / "proc/nvidia/version" for name in nodes}
    for name, path in hw.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(VERSION.format("550.54.14" if name == three else "535.183.01"))
    try:
        unlike = invoke("train.smoke", *given(tmp_path / "unlike"))
        assert unlike.returncode == 1
        words = " ".join((unlike.stdout + unlike.stderr).split())
        assert f"nothing was started: driver: {three} has 550.54.14; {one}, {two} 535.183.01" in words
        accepted = invoke("train.smoke", *given(tmp_path / "accepted"), "--unlike")
        assert accepted.returncode == 0, accepted.stdout
    finally:
        for path in hw.values():
            path.unlink()

    away = invoke(
        "train.smoke",
        *given(tmp_path / "away")[:5],
        inventory(
            tmp_path / "gone",
            **{name: {"ansible_host": "127.0.0.9", "ansible_port": 9} if name == two else {} for name in nodes},
        ),
        "--yes",
    )
    assert away.returncode == 3, away.stdout
    assert f"nothing was started: {two} cannot take part" in " ".join(away.stdout.split())
    assert [at_work(name) for name in nodes] == ["", "", ""]


def test_nothing_runs_on_after_the_end_of_the_controller(nodes: tuple[str, ...], tmp_path: Path) -> None:
    inject.fault(nodes[0], "slow-network", "", print)
    words = argv("train.smoke", *given(tmp_path))
    controller = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 60
        while not any(at_work(name) for name in nodes):
            assert time.monotonic() < until
            assert controller.poll() is None
        os.kill(controller.pid, signal.SIGKILL)
        controller.wait()
        until = time.monotonic() + 75
        while left := [at_work(name) for name in nodes if at_work(name)]:
            assert time.monotonic() < until, left
            time.sleep(1)
    finally:
        controller.kill()
        controller.wait()
        inject.heal(nodes[0], "", print)
    again = document("train.smoke", *given(tmp_path / "again"))
    assert again["exit_code"] == 0, [host["findings"] for host in again["hosts"].values()]
