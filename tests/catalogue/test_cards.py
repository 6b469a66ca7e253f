"""Models that are drafted from NVIDIA's list and the table of chips: they agree with the list and with the described
models."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest

from rigwright import catalogue
from rigwright.catalogue import cards
from rigwright.catalogue.compatibility import fit, needs_fabric_manager, torch_wheel
from rigwright.catalogue.summary import counted, not_described
from rigwright.core.desired import Driver
from rigwright.core.errors import HostError, InputError

OLDER = {"71.86", "96.43", "173.14", "304", "340", "390"}
"""The last branches of the cards before Kepler, in NVIDIA's list."""


def test_the_chips_are_of_one_id_and_agree_with_nvidias_list() -> None:
    spans = sorted((span[:4], span[5:], name) for name, chip in cards.chip_table().chips.items() for span in chip.ids)
    assert [(a, b) for a, b in itertools.pairwise(spans) if a[1] >= b[0]] == []
    assert cards.disagreements() == ()
    assert cards.without_chip() == ("29bb NVIDIA DRIVE P2021",)
    older = [device for device in catalogue.all_devices().values() if device.legacy_branch in OLDER]
    assert len(older) > 500
    assert [device.name for device in older if cards.chip_of(device.device_id)] == []


def test_a_chip_is_as_old_as_the_oldest_described_card_of_its_architecture() -> None:
    oldest: dict[str, int] = {}
    for model in catalogue.models().values():
        oldest[model.architecture] = min(oldest.get(model.architecture, 999), model.first_branch)
    chips = cards.chip_table().chips.values()
    assert {chip.architecture: chip.first_branch for chip in chips} == oldest
    assert {chip.first_branch for chip in chips if chip.architecture == "Ampere"} == {450}


@pytest.mark.parametrize(
    ("device_id", "name", "architecture", "capability", "flavours", "last_branch", "last_cuda", "verbs"),
    [
        ("1b82", "NVIDIA GeForce GTX 1070 Ti", "Pascal", "6.1", ("proprietary",), 580, "12.9", ()),
        ("2187", "NVIDIA GeForce GTX 1650 SUPER", "Turing", "7.5", ("proprietary", "open"), None, None,
         ("locked_graphics",)),
        ("1b38", "Tesla P40", "Pascal", "6.1", ("proprietary",), 580, "12.9", ()),
        ("1023", "Tesla K40m", "Kepler", "3.5", ("proprietary",), 470, "11.8", ()),
        ("2230", "NVIDIA RTX A6000", "Ampere", "8.6", ("proprietary", "open"), None, None,
         ("locked_graphics", "locked_memory")),
        ("2d04", "NVIDIA GeForce RTX 5060 Ti", "Blackwell", "12.0", ("open",), None, None,
         ("locked_graphics", "locked_memory")),
        ("1bff", "GPU 10de:1bff (GP104)", "Pascal", "6.1", ("proprietary",), 580, "12.9", ()),
    ],
)  # fmt: skip
def test_drafted(
    device_id: str,
    name: str,
    architecture: str,
    capability: str,
    flavours: tuple[str, ...],
    last_branch: int | None,
    last_cuda: str | None,
    verbs: tuple[str, ...],
) -> None:
    model = catalogue.model_of(device_id)
    assert model is not None
    assert (model.name, model.architecture, model.compute_capability) == (name, architecture, capability)
    assert (model.module_flavours, model.last_branch, model.last_cuda) == (flavours, last_branch, last_cuda)
    assert (model.clock_verbs, model.described, model.key) == (verbs, False, f"10de:{device_id}")
    assert (model.memory_mib, model.memory_bandwidth_gb_s, model.nvlink, model.power_w.default) == (None,) * 4
    assert catalogue.model(model.key) == model
    assert name in not_described(model)


def test_a_blackwell_module_is_taken_to_have_nvswitches_that_the_bus_does_not_show() -> None:
    b300, rtx_pro = catalogue.model("10de:3182"), catalogue.model("10de:2bb1")
    assert (b300.name, b300.compute_capability, needs_fabric_manager([b300], 0)) == (
        "NVIDIA B300 SXM6 AC",
        "10.3",
        True,
    )
    assert not needs_fabric_manager([rtx_pro], 0)


def test_a_described_model_comes_before_a_draft() -> None:
    assert catalogue.model("10de:1db1") == catalogue.model("v100-sxm2-16gb")
    assert all(model.described for model in catalogue.models().values())


@pytest.mark.parametrize("device_id", ["ffff", "0020", "3fff"])
def test_nothing_is_drafted_without_a_chip(device_id: str) -> None:
    assert catalogue.model_of(device_id) is None
    with pytest.raises(InputError, match="a PCI id that nothing is known of"):
        catalogue.model(f"10de:{device_id}")


def test_cards_of_the_list_decide_like_described_ones() -> None:
    mixed = {"PCIE-1": catalogue.model("10de:1b82"), "PCIE-2": catalogue.model("10de:2187")}
    found = fit(mixed)
    assert (found.branches[0], found.branches[-1], found.recommended) == ("470", "580", "580")
    assert (found.flavours, found.last_cuda) == (("proprietary",), "12.9")
    wheel = torch_wheel(list(mixed.values()), Driver("580"))
    assert wheel is not None
    assert wheel.name == "cu126"
    assert counted(mixed.values()) == "1 x NVIDIA GeForce GTX 1070 Ti, 1 x NVIDIA GeForce GTX 1650 SUPER"
    with pytest.raises(HostError, match="no kernel module supports both the NVIDIA GeForce GTX 1070 Ti"):
        fit({**mixed, "PCIE-3": catalogue.model("10de:2d04")})


def test_a_rig_names_a_card_of_the_list_by_its_id(tmp_path: Path) -> None:
    text = """\
title: Two that no file describes
gpus: {PCIE-1: "10de:1b82", PCIE-2: "10de:2187", PCIE-3: "10de:1db1"}
driver: "580"
cuda: "12.9"
p2p: {path: measure}
sources: {driver: the owner, gpus: the owner, cuda: the owner}
"""
    (tmp_path / "own.yml").write_text(text, encoding="utf-8")
    rig = catalogue.rig("own", "a test", tmp_path)
    assert Counter(rig.models) == Counter(("10de:1b82", "10de:2187", "v100-sxm2-16gb"))
    (tmp_path / "bad.yml").write_text(text.replace("1b82", "ffff"), encoding="utf-8")
    with pytest.raises(InputError, match=r"NVIDIA's list of driver 580\.178\.04 does not have '10de:ffff'") as caught:
        catalogue.rig("bad", "a test", tmp_path)
    assert caught.value.where == f"{tmp_path / 'bad.yml'}:2"
