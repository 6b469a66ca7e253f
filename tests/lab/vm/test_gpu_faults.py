"""Faults of GPUs of virtual machines: what QEMU is told, and what a machine that is switched on again still has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lab.host.active_faults import Standing, save
from lab.vm import gpu_faults, hardware, inject, topology
from lab.vm.machine import Machine
from rigwright.core.errors import HostError

MADE = Machine("vm-1", "desktop", "debian12", "bios", "/cache/debian12.raw", 40022)
GPU = "/machine/peripheral/gpu-PCIE-2"


class Qemu:
    """Stands in for QEMU: has the devices of a rig, and records the commands that change it."""

    def __init__(self) -> None:
        self.devices = {one.id for one in topology.devices("desktop")}
        self.done: list[tuple[str, dict[str, Any]]] = []
        self.events: list[str] = []
        self.releases = True

    def __call__(self, _path: Path) -> Qemu:
        return self

    def __enter__(self) -> Qemu:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def execute(self, command: str, **arguments: Any) -> Any:
        if command == "qom-list":
            return [{"name": name, "type": "child<>"} for name in sorted(self.devices)]
        self.done.append((command, arguments))
        if command == "device_del" and self.releases:
            self.devices.remove(arguments["id"])
            self.events += ["", arguments["id"]]  # one for the device's path first
        if command == "device_add":
            self.devices.add(arguments["id"])
        return {}

    def wait_event(self, name: str, _deadline: float) -> dict[str, Any]:
        assert name == "DEVICE_DELETED"
        if not self.events:
            raise HostError("QEMU", "no answer", "")
        device = self.events.pop(0)
        return {"event": name, "data": {"device": device} if device else {"path": GPU}}


@pytest.fixture(autouse=True)
def qemu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Qemu:
    made = Qemu()
    monkeypatch.setattr(gpu_faults, "Qmp", made)
    monkeypatch.setattr("lab.host.active_faults.RUN", tmp_path / "run")
    return made


@pytest.mark.parametrize(
    ("name", "broken", "healed"),
    [
        ("gpu-lost", ("lost", True), ("lost", False)),
        ("gpu-silent", ("boot0", 0), ("boot0", 0x136000A1)),
        ("link-x1", ("width-now", 1), ("width-now", 1)),  # the slot of this rig has one lane
        ("link-gen1", ("generation-now", 1), ("generation-now", 3)),
    ],
)
def test_a_property_is_set_and_set_back(
    name: str, broken: tuple[str, int], healed: tuple[str, int], qemu: Qemu
) -> None:
    inject.find(name).apply(MADE, "PCIE-2")
    inject.find(name).heal(MADE, "PCIE-2")
    told = [(command, one["path"], one["property"], one["value"]) for command, one in qemu.done]
    assert told == [("qom-set", GPU, *broken), ("qom-set", GPU, *healed)]


def test_a_gpu_is_unplugged_once_and_plugged_in_as_it_was(qemu: Qemu) -> None:
    fault = inject.find("gpu-missing")
    fault.apply(MADE, "PCIE-2")
    fault.apply(MADE, "PCIE-2")
    inject.find("gpu-lost").apply(MADE, "PCIE-2")  # there is nothing to set it on
    fault.heal(MADE, "PCIE-2")
    fault.heal(MADE, "PCIE-2")
    (removed, _), (added, device) = qemu.done
    assert (removed, added) == ("device_del", "device_add")
    assert device["driver"] == "rigwright-gpu"
    assert device["bus"] == "port-06"
    assert device["device-id"] == 0x1C03  # QMP takes numbers for numbers
    assert not any(str(value).startswith("0x") for value in device.values())


def test_a_kernel_that_keeps_the_gpu_is_named(qemu: Qemu) -> None:
    qemu.releases = False
    with pytest.raises(HostError, match="did not release the GPU in PCIE-2"):
        inject.find("gpu-missing").apply(MADE, "PCIE-2")


def test_hardware_faults_are_there_when_the_machine_is_switched_on_again(
    qemu: Qemu, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(hardware.build, "environment", lambda _say: {})
    monkeypatch.setattr(hardware.machine, "start", lambda _made, options, *_: started.append(options))
    faults = [("gpu-missing", 0), ("link-gen1", 1), ("power-cut", None), ("hang", None)]
    save(MADE.name, [Standing(name, gpu, None) for name, gpu in faults])
    hardware.power_on(MADE, pytest.fail)
    (options,) = started
    assert "id=gpu-PCIE-1," not in " ".join(options)
    assert "id=gpu-PCIE-2," in " ".join(options)
    assert [command for command, _ in qemu.done] == ["qom-set"]
    save(MADE.name, [])
    hardware.power_on(MADE, pytest.fail)
    assert "id=gpu-PCIE-1," in " ".join(started[-1])


def test_every_fault_says_whether_it_outlives_the_power() -> None:
    for name in inject.names():
        assert isinstance(inject.find(name).AT_POWER_ON, bool), name
