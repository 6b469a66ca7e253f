"""Faults without a host: their names, requirements and errors; the state that they write; the kernel's messages."""

from __future__ import annotations

import inspect
import re
import struct
from pathlib import Path
from typing import Any

import pytest

from lab.faults import inject, tamper
from lab.faults.catalogue import fabric_skew
from lab.hardware import boot_messages, hw_state, pci
from lab.hardware.board import board_conf, model
from lab.hardware.pci_config import ACS_CONTROL, LINK_STATUS
from lab.host import active_faults, disk
from lab.host.disk import Host
from lab.power import rig
from lab.simulators.guest_gpu import nodes
from rigwright.core.errors import UsageError
from tests.paths import ROOT


@pytest.fixture
def badge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """Returns a servbadge that the lab lists and that is off, with its bus as after a boot."""
    monkeypatch.setattr(disk, "HOSTS", tmp_path)
    monkeypatch.setattr(active_faults, "RUN", tmp_path)
    monkeypatch.setattr(inject, "need_root", lambda _: None)
    monkeypatch.setattr(tamper.switch, "running", lambda _: False)
    one = Host("badge", "servbadge", 10, ())
    disk.save(one)
    one.hw.mkdir(parents=True)
    described, board = board_of_servbadge()
    (one.hw / "board.conf").write_text(board)
    pci.write(one.hw / "sys", pci.tree(list(rig.plugged_in(board)), described["pcie_levels"]))
    return one


@pytest.fixture(autouse=True)
def _no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lab.base import lock

    for name in ("STATE", "HOSTS", "RUN"):
        monkeypatch.setattr(lock, name, tmp_path)


def said(*words: str) -> list[str]:
    """Returns the output of lab.fault for a host, a fault and an optional GPU."""
    lines: list[str] = []
    inject.fault(words[0], words[1], words[2] if len(words) > 2 else "", lines.append)
    return lines


@pytest.mark.parametrize("name", inject.names())
def test_every_fault_is_whole(name: str) -> None:
    module = inject.find(name)
    assert set(module.NEEDS) <= set(inject.PARTS)
    assert module.LASTS is None or module.LASTS >= 0
    assert all(inject.told(name)), "what happens, and what is then seen"
    for act in (module.apply, module.heal):
        assert list(inspect.signature(act).parameters) == ["host", "gpu"]
    files = (*(ROOT / "tests/end_to_end").glob("test_*.py"), *Path(__file__).parent.glob("test_*.py"))
    tests = "".join(path.read_text() for path in files)
    assert f'"{name}"' in tests, "a test of its own"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("badge", "gpu-lots"), "unknown fault 'gpu-lots'.*did you mean 'gpu-lost'"),
        (("badge", ""), "no fault is named"),
        (("bagde", "ecc"), "'bagde' is no host of the lab.*did you mean 'badge'"),
        (("../badge", "ecc"), "is no host of the lab"),
        (("", "ecc"), "no host is named"),
        (("badge", "gpu-lost", "4"), "no GPU '4'.*0 to 3"),
        (("badge", "gpu-lost", "-1"), "no GPU '-1'"),
        (("badge", "gpu-lost", "one"), "no GPU 'one'"),
        (("badge", "dimm-gone", "1"), "is of the whole host"),
        (("badge", "fabric-skew"), "rig servbadge has no NVSwitches"),
    ],
)
def test_what_is_refused(badge: Host, words: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        said(*words)
    assert re.search(message, " ".join(str(caught.value).split()))
    assert active_faults.standing(badge.name) == []
    assert not (badge.hw / "nvram").exists()


def test_parts_are_those_of_the_rig() -> None:
    assert inject.parts(None) == set()
    geforce = {"rig", "gpu", "several-gpus", "memory-limit", "rails"}
    assert inject.parts("servbadge", 3) == geforce | {"nvlink", "ecc", "p2p"}
    assert inject.parts("rig-3090") == geforce
    assert inject.parts("dgx-2", 5) == set(inject.PARTS) - {"rails", "infiniband"}
    assert {"nvlink", "p2p"} <= inject.parts("dgx-1v")


def test_without_root_nothing_of_the_host_is_read(badge: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(command: str) -> None:
        raise UsageError("lab", "need root", command)

    monkeypatch.setattr(inject, "need_root", refuse)
    (badge.hw / "board.conf").unlink()
    monkeypatch.setattr(hw_state, "read", lambda *_: pytest.fail("read"))
    with pytest.raises(UsageError, match="need root"):
        said(badge.name, "ecc", "1")


def test_a_gpu_that_is_not_there_cannot_be_broken(badge: Host) -> None:
    said(badge.name, "gpu-missing", "1")
    hw_state.switch_on(badge.hw)
    with pytest.raises(UsageError, match="GPU 1 is not on the bus"):
        said(badge.name, "gpu-lost", "1")
    said(badge.name, "gpu-missing", "1")


def test_a_host_that_is_off_is_left_as_it_was(badge: Host) -> None:
    names = "dpkg-locked disk-full key-changed iommu-translated nouveau-bound library-moved dkms-broken"
    for name in names.split():
        with pytest.raises(UsageError, match="it is not up"):
            said(badge.name, name)
    assert active_faults.standing(badge.name) == []


def test_peers_hang_with_the_driver_that_is_loaded(badge: Host) -> None:
    with pytest.raises(UsageError, match="no driver is loaded"):
        said(badge.name, "peers-hang")
    hw_state.edit(badge.hw, volatile={"driver.loaded": "545.23.08"})
    said(badge.name, "peers-hang")
    kept = hw_state.read(badge.hw, hw_state.NVRAM)
    assert {key: value for key, value in kept.items() if "0-1" in key} == {"p2p.0-1": "0", "fault.pair.0-1": "hang@545"}
    assert len(kept) == 12
    inject.heal(badge.name, "peers-hang", print)
    assert hw_state.read(badge.hw, hw_state.NVRAM) == {}


@pytest.mark.parametrize(("devices", "major"), [("195 nvidia-frontend\n", 240), (" 10 misc\n", 195)])
def test_device_nodes_never_lead_to_a_real_gpu(devices: str, major: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, int] = {}
    monkeypatch.setattr(nodes, "read", lambda _: f"Character devices:\n  1 mem\n{devices}\nBlock devices:\n")
    monkeypatch.setattr(nodes, "devices", lambda _: [("/sys/a", "nvidia"), ("/sys/b", "nouveau")])
    monkeypatch.setattr(nodes, "_node", lambda name, number, _: made.update({name: number}))
    nodes.make(["nvidia", "nvidia_modeset"])
    assert made == dict.fromkeys(("nvidia0", "nvidiactl", "nvidia-modeset"), major)
    made.clear()
    nodes.make([])
    assert made == {}


def test_what_hardware_keeps_and_what_waits_for_a_boot(badge: Host) -> None:
    for words in ("ecc 1", "gpu-missing 2", "half-return 3", "slow-link", "nccl-irq-hang", "p2p-denied 3"):
        said(badge.name, *words.split())
    kept = hw_state.read(badge.hw, hw_state.NVRAM)
    assert kept["fault.pair.0-1"] == "slow:10"
    assert kept["nccl.irq_hang"] == "1"
    assert [key for key in kept if key.startswith("p2p.")] == ["p2p.0-3", "p2p.1-3", "p2p.2-3"]
    assert "gpu2.absent" not in hw_state.values(badge.hw)
    hw_state.switch_on(badge.hw)
    active_faults.booted(badge.name)
    now = hw_state.values(badge.hw)
    assert (now["gpu2.absent"], now["gpu3.absent"]) == ("1", "1")
    assert now["gpu1.ecc.agg.unc.dram"] == "2"
    assert "gpu1.ecc.vol.unc.dram" not in now
    hw_state.switch_on(badge.hw)
    active_faults.booted(badge.name)
    assert "gpu3.absent" not in hw_state.values(badge.hw)
    assert "half-return(3)" not in map(str, active_faults.standing(badge.name))
    lines: list[str] = []
    inject.heal(badge.name, "", lines.append)
    hw_state.switch_on(badge.hw)
    assert lines[-1] == "badge: ecc(1) healed"
    assert {key: value for key, value in hw_state.read(badge.hw, hw_state.NVRAM).items() if value != "0"} == {}
    inject.heal(badge.name, "", lines.append)
    assert lines[-1] == "badge: no fault, nothing to heal"


def test_slow_memory_modules_from_the_next_boot_on(badge: Host) -> None:
    said("badge", "dimm-slow")
    assert "memory.speed_mt_s" not in hw_state.values(badge.hw)
    hw_state.switch_on(badge.hw)
    assert hw_state.values(badge.hw)["memory.speed_mt_s"] == "2132"
    inject.heal("badge", "dimm-slow", lambda _: None)
    hw_state.switch_on(badge.hw)
    assert hw_state.values(badge.hw).get("memory.speed_mt_s", "0") == "0"


def test_a_link_is_changed_at_both_ends_and_back(badge: Host) -> None:
    def widths() -> list[int]:
        ends = ("0000:07:00.0", "0000:05:10.0", "0000:06:00.0")
        return [tamper.peek(badge, end, LINK_STATUS) >> 4 & 63 for end in ends]

    said(badge.name, "link-x1", "1")
    said(badge.name, "link-gen1", "1")
    assert widths() == [1, 1, 16]
    assert tamper.peek(badge, "0000:05:10.0", LINK_STATUS) & 15 == 1
    inject.heal(badge.name, "link-x1", print)
    inject.heal(badge.name, "link-gen1", print)
    assert widths() == [16, 16, 16]
    assert tamper.peek(badge, "0000:05:10.0", LINK_STATUS) == 0x3000 | 16 << 4 | 3


def test_off_the_bus_and_back(badge: Host) -> None:
    space = tamper.space(badge, "0000:0A:00.0")
    before = space.read_bytes()
    for _ in range(2):
        said(badge.name, "gpu-lost", "2")
    assert space.read_bytes() == b"\xff" * 4096
    inject.heal(badge.name, "gpu-lost", print)
    assert space.read_bytes() == before
    assert hw_state.read(badge.hw, hw_state.VOLATILE) == {}
    said(badge.name, "gpu-lost", "2")  # again, after a boot before which nobody healed it
    hw_state.switch_on(badge.hw)
    space.write_bytes(before)  # as the next boot does
    said(badge.name, "gpu-lost", "2")
    assert space.read_bytes() == b"\xff" * 4096
    inject.heal(badge.name, "gpu-lost", print)
    assert space.read_bytes() == before


def test_acs_is_put_back_as_it_was(badge: Host) -> None:
    tamper.poke(badge, "0000:05:10.0", ACS_CONTROL, 0)
    said(badge.name, "acs-on")
    assert set(tamper.acs(badge).values()) == {0x1D}
    inject.heal(badge.name, "acs-on", print)
    assert [address for address, bits in tamper.acs(badge).items() if not bits] == ["0000:05:10.0"]


def test_fabric_skew_takes_another_version_and_brings_the_first_back(
    badge: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, ...]] = []

    def run(_: Host, script: str, *arguments: str, **__: object) -> str:
        calls.append(arguments)
        assert not arguments or "=" in arguments[0] or (badge.root / arguments[0].lstrip("/")).is_file()
        return {fabric_skew.INSTALLED: "installed nvidia-fabricmanager-535 535.183.01-1\n"}.get(script, "")

    monkeypatch.setattr(fabric_skew.inside, "run", run)
    assert "fabric-skew" in inject.names()
    fabric_skew.apply(badge, 0)
    fabric_skew.heal(badge, 0)
    moved = "/var/cache/lab-skew/nvidia-fabricmanager-535_535.184.01-1_amd64.deb"
    assert calls[-2:] == [(moved,), ("nvidia-fabricmanager-535=535.183.01-1",)]


@pytest.mark.parametrize(
    ("command_line", "kind"),
    [
        ("ro", "Translated"),
        ("ro intel_iommu=on iommu=pt", "Passthrough (set via kernel command line)"),
        ("ro iommu=pt iommu=nopt", "Translated"),
        ("ro iommu.passthrough=1", "Passthrough (set via kernel command line)"),
    ],
)
def test_the_iommu_is_as_the_command_line_says(command_line: str, kind: str) -> None:
    assert (6, f"iommu: Default domain type: {kind}") in list(boot_messages.iommu(command_line))


def board_of_servbadge() -> tuple[dict[str, Any], str]:
    """Returns the description of the rig and its board.conf."""
    described = rig.describe("servbadge")
    return described, board_conf(described, {gpu["model"]: model(gpu["model"]) for gpu in described["gpus"]})


def test_the_kernel_meets_what_is_there_and_tells_of_a_slow_link() -> None:
    described, board = board_of_servbadge()
    board += "gpu1.absent=1\ngpu2.pcie.width_now=1\n"
    texts = [text for _, text in boot_messages.pci(pci.tree(list(rig.plugged_in(board)), described["pcie_levels"]))]
    assert not [text for text in texts if "0000:07:00.0" in text]
    slow = "pci 0000:0a:00.0: 7.876 Gb/s available PCIe bandwidth, limited by 8.0 GT/s PCIe x1"
    assert any(text.startswith(slow) for text in texts)


def test_a_port_without_a_card(tmp_path: Path) -> None:
    described, board = board_of_servbadge()
    spaces = tmp_path / "pci"
    spaces.mkdir()
    gpus = list(rig.plugged_in(f"{board}gpu1.absent=1\n"))
    pci.write(tmp_path / "sys", pci.tree(gpus, described["pcie_levels"]), spaces)
    port = (spaces / "0000:05:10.0").read_bytes()
    assert struct.unpack_from("<H", port, LINK_STATUS)[0] == 0x1001  # 2.5 GT/s, x0, no active link
    assert len(port) == 8192
    assert struct.unpack_from("<H", port, 4096 + ACS_CONTROL)[0] == 0x5F
    assert struct.unpack_from("<H", port, 4096)[0] == 0
    assert not (tmp_path / "sys/bus/pci/devices/0000:07:00.0").is_symlink()
    config = (tmp_path / "sys/bus/pci/devices/0000:06:00.0/config").readlink()
    assert config == Path("/run/lab/hw/kernel/config/0000:06:00.0")
