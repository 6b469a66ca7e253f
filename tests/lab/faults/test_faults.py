"""Faults without a host: their names, requirements and errors; the state that they write; the kernel's messages."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from lab.faults import inject, tamper
from lab.faults.catalogue import fabric_skew
from lab.hardware import hw_state, pci
from lab.hardware.board import board_conf, model
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


def test_without_root_nothing_of_the_host_is_read(badge: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(command: str) -> None:
        raise UsageError("lab", "need root", command)

    monkeypatch.setattr(inject, "need_root", refuse)
    (badge.hw / "board.conf").unlink()
    monkeypatch.setattr(hw_state, "read", lambda *_: pytest.fail("read"))
    with pytest.raises(UsageError, match="need root"):
        said(badge.name, "ecc", "1")


def test_a_host_that_is_off_is_left_as_it_was(badge: Host) -> None:
    names = "dpkg-locked disk-full key-changed iommu-translated nouveau-bound library-moved dkms-broken"
    for name in names.split():
        with pytest.raises(UsageError, match="it is not up"):
            said(badge.name, name)
    assert active_faults.standing(badge.name) == []


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


def board_of_servbadge() -> tuple[dict[str, Any], str]:
    """Returns the description of the rig and its board.conf."""
    described = rig.describe("servbadge")
    return described, board_conf(described, {gpu["model"]: model(gpu["model"]) for gpu in described["gpus"]})
