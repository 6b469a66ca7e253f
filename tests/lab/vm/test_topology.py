"""QEMU's options for the hardware of each rig: the addresses that a firmware gives are the rig's."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.base.paths import RIGS
from lab.hardware import rigfile
from lab.hardware.rigfile import describe
from lab.vm import topology
from lab.vm.topology import Device
from rigwright.core.errors import InputError

ALL = sorted(path.stem for path in RIGS.glob("*.yml"))


def numbered(devices: list[Device]) -> dict[str, str]:
    """Returns the address of each device as SeaBIOS and OVMF give them: bus numbers in the order of ports, without
    gaps, a root port with as many more as it reserves."""
    expanders = {one.id: int(one.properties["bus_nr"]) for one in devices if one.driver == "pxb-pcie"}
    found: dict[str, str] = {}
    last = 0

    def scan(name: str, bus: int) -> None:
        nonlocal last
        children = [one for one in devices if one.properties["bus"] == name]
        for one in sorted(children, key=lambda one: int(str(one.properties["addr"]).split(".")[0], 16)):
            found[one.id] = f"0000:{bus:02x}:{one.properties['addr']}"
            if "port" in one.driver or "switch" in one.driver:
                last += 1
                secondary = last
                scan(one.id, secondary)
                last = max(last, secondary + int(one.properties.get("bus-reserve", 0)))

    scan("pcie.0", 0)
    for name, bus in sorted(expanders.items(), key=lambda one: one[1]):
        assert bus > last, f"the root bus {bus:02x} is taken"
        last = bus
        scan(name, bus)
    return found


@pytest.mark.parametrize("rig", ALL)
def test_addresses_are_the_rigs(rig: str) -> None:
    described, devices = describe(rig), topology.devices(rig)
    found = numbered(devices)
    for gpu in described["gpus"]:
        assert found[topology.gpu_id(gpu["position"])] == gpu["bus_id"]
    switches = described["nvswitches"]
    if switches:
        assert sorted(address for name, address in found.items() if name.startswith("nvswitch")) == switches["bus_ids"]
    assert len(found) == len(devices)
    assert len(set(found.values())) == len(devices)
    ports = [one for one in devices if "slot" in one.properties]
    assert len({one.properties["slot"] for one in ports}) == len(ports)


def test_absent_gpus_leave_an_empty_slot() -> None:
    options = " ".join(topology.options("servbadge", absent=("SXM2-3",)))
    assert "gpu-SXM2-3" not in options
    assert "gpu-SXM2-4" in options
    assert "id=port-0a" in options
    with pytest.raises(InputError, match="no position 'SXM2-9'"):
        topology.options("servbadge", absent=("SXM2-9",))
    with pytest.raises(InputError, match="no position 'SXM2-9'"):
        topology.gpu_device("servbadge", "SXM2-9")


@pytest.mark.parametrize(
    ("rig", "firmware", "gib"), [("servbadge", "uefi", 16), ("dgx-2", "bios", 16), ("dgx-2", "uefi", 8)]
)
def test_bar1_is_halved_until_the_addresses_suffice(rig: str, firmware: str, gib: int) -> None:
    gpus = [one for one in topology.devices(rig, firmware=firmware) if one.id.startswith("gpu-")]
    assert {one.properties["bar1-size"] for one in gpus} == {gib << 30}
    text = topology.reduced_bar1(rig, firmware)
    assert text.startswith("" if rig == "servbadge" else f"dgx-2: BAR1 of a GPU has {gib} GiB instead of 32: ")
    assert bool(text) == (rig != "servbadge")


@pytest.mark.parametrize(("first", "second"), [("02:00.0", "03:00.0"), ("05:00.0", "41:00.0")])
def test_bus_numbers_that_no_firmware_gives_are_refused(
    first: str, second: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (RIGS / "kaggle-box.yml").read_text().replace("05:00.0", first).replace("06:00.0", second)
    (tmp_path / "odd.yml").write_text(text)
    monkeypatch.setattr(rigfile, "RIGS", tmp_path)
    with pytest.raises(InputError, match="a virtual machine cannot have these bus numbers"):
        topology.options("odd")


def test_a_chip_without_a_known_identity_and_too_little_memory_are_refused() -> None:
    assert topology.boot0("x", 0x102D) == 0x0F2000A1
    with pytest.raises(InputError, match="10de:0040"):
        topology.boot0("x", 0x0040)
    with pytest.raises(InputError, match="512 MiB of memory for 8 NUMA nodes"):
        topology.options("a100", memory_mib=512)
