"""fleet.check: the limits that it compares GPUs with, read from a plan, and the machines whose past it compares
with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from rigwright.cli.fleet_check import compare, held
from rigwright.core.desired import GpuLimits, Limits
from rigwright.core.machine_identity import MachineIdentity
from rigwright.engine.host_run import HostRun
from rigwright.engine.playbook import Step
from rigwright.engine.report import HostReport
from rigwright.history import History
from rigwright.inventory.model import Host
from rigwright.operations import limits
from rigwright.report import json_document
from tests.host_runs import host_run

ONE = {"GPU-a1": GpuLimits(power_limit_w=200)}


def step(operation: str, **parameters: object) -> Step:
    """Returns a step of an operation."""
    return Step("S", operation, limits.applied, parameters, "play.yml:1")


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (Limits(persistence=True, power_limit_w=200), {"persistence", "power_limit_w"}),
        (Limits(persistence=False, gpus=ONE), {"persistence", "power_limit_w"}),
        (Limits(), set()),
    ],
)
def test_held(wanted: Limits, names: set[str]) -> None:
    assert held([step("limits.applied", limits=wanted)]) == names


def test_other_steps_hold_nothing() -> None:
    assert held([step("limits.boot", limits=Limits(persistence=True))]) == set()


def test_a_host_without_limits_holds_nothing() -> None:
    """The step is skipped and has no parameters."""
    assert held([replace(step("limits.applied"), skipped="when: limits is defined")]) == set()


def fleet(machines: Mapping[str, tuple[str, str]]) -> list[HostRun]:
    """The runs of hosts that answered: by name the board serial and the UUID of the GPU."""

    def run(name: str, serial: str, uuid: str) -> HostRun:
        host = Host(name, (), {})
        gpu = {"uuid": uuid, "bus_id": "0000:01:00.0", "name": "NVIDIA GeForce RTX 3090"}
        kept: dict[str, Any] = {"system.identity": MachineIdentity(board_serial=serial), "gpu.gpus": [gpu]}
        return host_run({}, host=host, report=HostReport(host, "ok", kept=kept))

    return [run(name, *machine) for name, machine in machines.items()]


def differences(machines: Mapping[str, tuple[str, str]], run_id: str) -> dict[str, list[str]]:
    """By host what its findings see; the run is recorded."""
    runs = fleet(machines)
    compare(runs, None, None)
    with History.open() as history:
        history.record(json_document.document("fleet.check", run_id, 0, None, [run.report for run in runs]))
    return {run.host.name: [finding.seen for finding in run.report.findings] for run in runs}


A, B, NEW = "GPU-aaaaaaaa-1", "GPU-bbbbbbbb-2", "GPU-cccccccc-3"


def test_the_past_of_a_host_is_that_of_its_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another machine is gpu1; the GPU of the old one is in gpu2. The old machine returns under a third name."""
    monkeypatch.setenv("RIGWRIGHT_HISTORY", str(tmp_path / "history.sqlite"))
    assert differences({"gpu1": ("MH19S00123", A), "gpu2": ("MH19S00456", B)}, "r1") == {"gpu1": [], "gpu2": []}
    replaced = differences({"gpu1": ("MH19S00999", NEW), "gpu2": ("MH19S00456", A)}, "r2")
    assert replaced["gpu1"] == []
    assert replaced["gpu2"] == ["moved here from gpu1 0000:01:00.0", "replaced by GPU-aaaaaaaa"]
    assert differences({"gpu3": ("MH19S00123", NEW)}, "r3")["gpu3"] == [
        "moved here from gpu1 0000:01:00.0",
        "replaced by GPU-cccccccc",
    ]


def test_the_pasts_of_two_hosts_with_one_identity_are_not_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RIGWRIGHT_HISTORY", str(tmp_path / "history.sqlite"))
    differences({"gpu1": ("MH19S00123", A)}, "r1")
    for run_id in ("r2", "r3"):
        both = differences({"gpu1": ("MH19S00123", A), "gpu2": ("MH19S00123", B)}, run_id)
        assert both == {"gpu1": [], "gpu2": []}, "gpu2 is not compared with the GPU of gpu1"
