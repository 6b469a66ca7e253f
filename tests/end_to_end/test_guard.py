"""The guard on a host: a GPU that gets hot has its limit lowered, then a unit is stopped, then the machine is off, and
its owner was told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.cli import commands
from lab.faults import inject
from lab.hardware import hw_state
from lab.host import login
from lab.power import switch
from tests.end_to_end.conftest import ssh
from tests.end_to_end.rw import document, inventory, invoke, not_as_wanted, until
from tests.end_to_end.test_rigs import server_with_driver
from tests.paths import ROOT

pytestmark = [pytest.mark.lab, pytest.mark.nightly, pytest.mark.timeout(300)]

NAME, RIG = "t-guard", "servbadge"
TELL = "/usr/local/bin/tell"
GUARD: dict[str, Any] = {
    "gpu_temperature_c": {"above": 50, "for_s": 1},
    "steps": ["lower-limit", "stop", "power-off"],
    "step_s": 1,
    "lower_limit_w": 150,
    "stop": ["training.service"],
    "notify": {"command": TELL},
}


@pytest.fixture(scope="module")
def folder(snapshots: Path, lab_root: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:  # noqa: ARG001
    """Yields the folder of the inventory of a host with the driver loaded, whose guard may power it off at once after a
    boot."""
    made = tmp_path_factory.mktemp("guard")
    unit = made / "templates/systemd/gpu-guard.service.j2"
    unit.parent.mkdir(parents=True)
    shipped = (ROOT / "templates/systemd/gpu-guard.service.j2").read_text()
    unit.write_text(shipped.replace(" run ", " run --after-boot-s 0 "))
    with server_with_driver(NAME, RIG, snapshots) as server:
        server.has_the_driver()
        script = '#!/bin/sh\\n{ echo "== $1"; cat; } >>/var/told\\n'
        ssh(NAME, f"printf '{script}' | sudo tee {TELL} >/dev/null; sudo chmod 755 {TELL}")
        ssh(NAME, "sudo systemd-run -q --unit=training sleep 600")
        yield made


def wanted(folder: Path, guard: dict[str, Any]) -> list[str]:
    """The words for a run with this guard in the inventory."""
    return ["--host", NAME, "--inventory", inventory(folder, **{NAME: {"guard": guard}}), "--tags", "guard"]


def finding(found: dict[str, Any], subject: str) -> dict[str, str]:
    """The finding of guard.runs about a subject."""
    (one,) = [
        one for one in found["hosts"][NAME]["findings"] if (one["check"], one["subject"]) == ("guard.runs", subject)
    ]
    return dict(one)


def test_a_hot_gpu_ends_with_the_machine_off_and_its_owner_told(folder: Path) -> None:
    words = wanted(folder, GUARD)
    done = document("provision", *words, "--yes")
    assert done["exit_code"] == 0, not_as_wanted(done)
    assert finding(done, "gpu-guard.service")["seen"].startswith("reads 4 GPUs, ")
    again = document("provision", *words, "--yes")
    assert (again["exit_code"], again["hosts"][NAME]["changes"]) == (0, [])

    host = switch.get(NAME)
    inject.fault(NAME, "gpu-hot", "1", print)
    hw_state.edit(host.hw, volatile={"gpu1.load": 100})
    until(lambda: not switch.running(NAME), "the end of the machine", 120)
    lines = (host.root / "var/lib/rigwright/guard/events.jsonl").read_text().splitlines()
    events = [(event["event"], event["text"]) for event in map(json.loads, lines)]
    assert [event for event, _ in events if event in GUARD["steps"]] == GUARD["steps"]
    assert sum(event == "lowered" and text.endswith("300 W -> 150 W") for event, text in events) == 4
    assert any(text.startswith("stops training.service: GPU SXM2-2 0000:07:00.0 at") for _, text in events)
    told = (host.root / "var/told").read_text()
    assert "== lower-limit\n" in told
    assert "== power-off\nthe machine is powered off: GPU SXM2-2 0000:07:00.0 at" in told
    assert "machine: t-guard" in told

    inject.heal(NAME, "", print)
    commands.power_on(NAME)
    login.wait(host, 60)
    until(lambda: ssh(NAME, "systemctl is-active gpu-guard").stdout == "active\n", "the start of the guard")
    after = document("verify", *words)
    assert after["exit_code"] == 0, not_as_wanted(after)
    steps = finding(after, "steps of the guard")
    assert (steps["verdict"], "power-off: the machine is powered off: GPU SXM2-2 0000:07:00.0 at" in steps["seen"]) == (
        "warn",
        True,
    )
    assert ssh(NAME, "systemctl is-active training").stdout == "inactive\n"

    removed = invoke("remove", "--host", NAME, "--inventory", words[3], "--yes")
    assert removed.returncode == 0, removed.stdout + removed.stderr
    left = ssh(
        NAME, "systemctl is-active gpu-guard; sudo find /etc /usr/local /var/lib/rigwright/guard -name '*guard*'"
    )
    assert left.stdout == "inactive\n"
