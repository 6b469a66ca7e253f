"""Provisions a rack of 32 hosts of five rigs; then four hosts are changed, and fleet.check names those four."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lab.cli import commands
from lab.faults import inject
from lab.hardware import hw_state
from lab.power import switch
from tests.end_to_end.conftest import Ssh
from tests.end_to_end.rw import document, inventory, invoke
from tests.report.chromium import Chromium

pytestmark = [pytest.mark.lab, pytest.mark.rack, pytest.mark.timeout(3600)]
RACK = {"servbadge": 8, "rig-3090": 8, "v100-pcie": 6, "rtx-2080ti": 6, "desktop": 4}
NAMES = [f"t-{rig}{number}" for rig, count in RACK.items() for number in range(1, count + 1)]
OTHER, SWAPPED, HOT, AWAY = "t-servbadge3", "t-rig-30905", "t-v100-pcie2", "t-desktop4"
LONG_S = 3000
WANTED: dict[str, Any] = {"cuda": None, "p2p_wheels": "none"}


@pytest.fixture
def rack(lab_root: None) -> Any:  # noqa: ARG001
    """Starts all hosts with fresh disks; yields their names."""
    assert len(NAMES) == 32
    for rig, count in RACK.items():
        commands.up(name=f"t-{rig}", rig=rig, count=count, say=print)
    yield NAMES
    for name in NAMES:
        commands.down(name=name, say=print)


def told(found: dict[str, Any]) -> dict[str, list[tuple[str, str, str]]]:
    """Returns the findings of fleet.check by host: check, subject, observed value. All hosts need the peer-to-peer
    test: they have no NCCL."""
    return {
        name: named
        for name, host in found["hosts"].items()
        if (
            named := [
                (one["check"], one["subject"], one["seen"])
                for one in host["findings"]
                if one["verdict"] != "pass" and one["check"] != "p2p.ran"
            ]
        )
    }


def test_who_differs_is_named_and_nobody_else(rack: list[str], ssh: Ssh, chromium: Chromium, tmp_path: Path) -> None:
    where = inventory(tmp_path / "rack", **dict.fromkeys(rack, WANTED))
    words = ("--inventory", where, "--host", "all")
    done = document("provision", *words, "--yes", "--reboots", "8", deadline=LONG_S)
    assert {host["status"] for host in done["hosts"].values()} == {"changed"}, done["hosts"]
    sound = document("fleet.check", *words, deadline=LONG_S)
    assert (sound["exit_code"], told(sound)) == (0, {})

    other = inventory(
        tmp_path / "other",
        **{OTHER: {**WANTED, "driver": {"branch": "535", "version": "535.183.01", "modules": "dkms"}}},
    )
    assert document("provision", "--inventory", other, "--yes", deadline=LONG_S)["exit_code"] == 0
    board = switch.get(SWAPPED).hw / "board.conf"
    old = ssh(SWAPPED, "nvidia-smi --query-gpu=uuid --format=csv,noheader").stdout.split()[0]
    new = f"GPU-0badcafe{old[12:]}"
    ssh(SWAPPED, "sudo systemctl stop nvidia-persistenced; sudo rmmod nvidia_drm nvidia_modeset nvidia_uvm nvidia")
    board.write_text(board.read_text().replace(old, new))
    ssh(SWAPPED, "sudo modprobe nvidia; sudo systemctl start gpu-limits")
    inject.fault(HOT, "gpu-hot", "1", print)
    hw_state.edit(switch.get(HOT).hw, volatile={"heat.speed": 60, "gpu0.load": 100, "gpu1.load": 100})
    commands.power_cut(AWAY)

    found = document("fleet.check", *words, deadline=LONG_S)
    named = told(found)
    assert found["exit_code"] == 3
    assert found["hosts"][AWAY]["status"] == "unreachable"
    assert set(named) == {OTHER, SWAPPED, HOT}, named
    assert ("fleet.peers", "driver", "535.183.01") in named[OTHER]
    assert {subject.split()[-1] for check, subject, _ in named[SWAPPED] if check == "fleet.gpus"} == {
        old[:12],
        new[:12],
    }
    assert {check for check, _, _ in named[HOT]} <= {"health.heat", "health.not_throttled"}
    text = invoke("fleet.check", *words, deadline=LONG_S, COLUMNS="80")
    print(text.stdout)
    assert text.returncode == 3
    assert {line.split()[1] for line in text.stdout.splitlines() if line.startswith("DRIFT")} == set(named), "still"

    page, picture = tmp_path / "rack.html", tmp_path / "rack.png"
    report = document("fleet.report", *words, "--html", str(page), deadline=LONG_S)
    failing = {name for name, one in report["hosts"].items() if one["status"] == "failed"}
    assert (report["exit_code"], failing) == (3, set(named))
    assert chromium.hard_to_read(page, 1440, "light") == []
    attention = chromium.value("document.querySelector('#attention').textContent")
    assert all(name in attention for name in (*named, AWAY))
    chromium.picture(picture)
    print(f"looked at: {page}, {picture}")
