"""The rigs of the lab, without a host: they match the catalogue, and the files made from a rig are consistent."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from lab.base.paths import RIGS
from lab.cli.commands import up
from lab.cli.inventory import _expected
from lab.hardware import board, dmi, pci, rigfile
from lab.hardware.board import board_conf, of_model
from lab.power import rig
from lab.simulators.nvml.real_smi import SHA256, SUITES
from rigwright import catalogue
from rigwright.catalogue import gpus
from rigwright.core.errors import InputError, UsageError
from tests.paths import ROOT

ALL = sorted(path.stem for path in RIGS.glob("*.yml"))
KNOWN = [name for name in ALL if name in catalogue.all_rigs()]
LAB_ALONE = ["second-hand"]
"""Rigs that the catalogue does not have, on purpose: `invoke init` drafts them."""


def conf(name: str) -> dict[str, str]:
    """Returns the board.conf of the rig."""
    described = rig.describe(name)
    text = board_conf(described, {gpu["model"]: board.model(gpu["model"]) for gpu in described["gpus"]})
    return dict(line.split("=", 1) for line in text.splitlines())


def functions(name: str) -> list[tuple[pci.Node, int, int]]:
    """Returns every function of the rig's PCI tree with its bus range."""
    described = rig.describe(name)
    board = "".join(f"{key}={value}\n" for key, value in conf(name).items())

    def below(nodes: list[pci.Node], low: int, high: int) -> Iterator[tuple[pci.Node, int, int]]:
        for node in nodes:
            yield node, low, high
            yield from below(node.below, node.function.secondary, node.function.subordinate)

    roots = pci.tree(list(rig.plugged_in(board)), described["pcie_levels"], rig.switches(described))
    return [one for root, nodes in roots for one in below(nodes, int(root[5:], 16), int(root[5:], 16))]


def test_the_lab_has_every_rig_of_the_catalogue() -> None:
    assert tuple(KNOWN) == catalogue.all_rigs()
    assert [name for name in ALL if name not in KNOWN] == LAB_ALONE


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in sorted(board.UNDESCRIBED.glob("*.yml"))])
def test_an_undescribed_card_is_one_that_rigwright_drafts(path: Path) -> None:
    card = board.model(path.stem)
    drafted = catalogue.model_of(card["pci_ids"][0])
    assert drafted is not None
    assert not drafted.described
    assert path.stem not in catalogue.gpu_keys()
    assert (drafted.name, drafted.architecture) == (card["name"], card["architecture"])
    assert drafted.compute_capability == card["compute_capability"]
    assert list(drafted.clock_verbs) == card["clock_verbs"]
    assert list(drafted.module_flavours) == card["module_flavours"]
    values = of_model(path.stem, card)
    assert values["cores"] % values["multiprocessors"] == 0
    assert 0 < values["power.min_mw"] <= values["power.default_mw"] <= values["power.max_mw"]


@pytest.mark.parametrize("name", KNOWN)
def test_a_rig_is_the_catalogues(name: str) -> None:
    known, described = catalogue.rig(name, "test"), rig.describe(name)
    assert {gpu["position"]: gpu["model"] for gpu in described["gpus"]} == dict(known.gpus)
    at = [gpu["position"] for gpu in described["gpus"]]
    links = {frozenset(at[int(n)] for n in pair.split("-")): links for pair, links in described["nvlinks"].items()}
    assert links == {frozenset((a, b)): number for a, b, number in known.pairs}
    assert len((described["nvswitches"] or {"bus_ids": []})["bus_ids"]) == known.nvswitches
    slots = {gpu["position"]: gpu["values"].get("slot.width") for gpu in described["gpus"]}
    narrow = {position: lanes.width for position, lanes in known.lanes.items()}
    assert {position: width for position, width in slots.items() if width} == narrow
    names = described["dmi"]["product_name"], described["dmi"]["board_name"]
    assert not known.boards or any(board in one for board in known.boards for one in names)
    assert not known.memory_gib or known.memory_gib == described["memory"]["gib"]


def test_another_rig_under_the_same_name_is_another_board() -> None:
    boards = [dmi.identity_of(*of) for of in (("a", "servbadge"), ("a", "rig-3090"), ("b", "servbadge"))]
    assert len({serial for serial, _ in boards}) == len({uuid for _, uuid in boards}) == 3
    assert dmi.identity_of("a", "servbadge") == boards[0]


def test_no_uuid_and_no_serial_number_twice() -> None:
    seen: set[str] = set()
    for name in ALL:
        for host in ("", "rack1", "rack2"):
            made = rig.describe(name, host)["gpus"]
            assert [gpu["uuid"] for gpu in made] == [gpu["uuid"] for gpu in rig.describe(name, host or name)["gpus"]]
            short = {gpu["uuid"][:12] for gpu in made}
            cards = {gpu["serial"] for gpu in made}
            assert len(short) == len(made)
            assert len(cards) == (1 if name == "kaggle-box" else len(made))
            assert not seen & (short | cards)
            seen |= short | cards
    assert all(re.fullmatch(r"GPU-[0-9a-f]{8}|032\d{10}", one) for one in seen)


@pytest.mark.parametrize("name", ALL)
def test_the_bus_holds_together(name: str) -> None:
    seen: set[str] = set()
    memory: list[tuple[int, int]] = []
    for node, low, high in functions(name):
        f = node.function
        assert low <= int(f.address[5:7], 16) <= high
        assert f.address not in seen
        seen.add(f.address)
        for bar in f.bars:
            assert bar.flags == 0x14220C or bar.start + bar.size <= 1 << 32
            if f.vendor == 0x10DE and bar.flags != 0x40101:
                memory.append((bar.start, bar.start + bar.size))
    memory.sort()
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(memory))
    assert {gpu["bus_id"] for gpu in rig.describe(name)["gpus"]} <= seen


@pytest.mark.parametrize("model", gpus.keys())
def test_every_model_can_be_simulated(model: str) -> None:
    known, values = catalogue.model(model), of_model(model, board.model(model))
    assert values["name"] == known.name
    assert 0 < values["power.min_mw"] <= values["power.default_mw"] <= values["power.max_mw"]
    assert bool(values["clocks.application_default"]) == ("application" in known.clock_verbs)
    if values["clocks.application_default"]:
        assert values["clocks.supported"]
    assert values["pcie.gen_max"] in (3, 4, 5)
    assert {"vbios", "temp.shutdown", "brand", "bar1_mib", "power.idle_mw"} <= set(values)
    for_cuda = ("cores", "multiprocessors", "tensor_factor", "double_divisor", "memory_gb_s")
    assert all(values[key] > 0 for key in for_cuda)
    assert values["cores"] % values["multiprocessors"] == 0


def test_mistakes_in_a_rig_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = yaml.safe_load((RIGS / "servbadge.yml").read_text())
    monkeypatch.setattr(rigfile, "RIGS", tmp_path)
    for number, (change, words) in enumerate(
        (
            ({"gpu": {}}, "unknown key 'gpu'"),
            ({"gpus": {"SXM2-1": {"bus": "06:00.0", "slots": 1}}}, "unknown key 'slots'"),
            ({"gpus": {"SXM2-1": {"model": "k80"}}}, "no bus"),
            ({"nvlinks": {2: ["SXM2-1 SXM2-9"]}}, "a pair 'SXM2-1 SXM2-9'"),
            ({"p2p": {"SXM2-1": "OK"}}, ""),
        )
    ):
        (tmp_path / f"r{number}.yml").write_text(yaml.safe_dump(good | change))
        if words:
            with pytest.raises(InputError, match=words):
                rigfile.describe(f"r{number}")


@pytest.mark.parametrize("name", KNOWN)
def test_what_is_expected_of_a_host_of_the_rig(name: str) -> None:
    expected = yaml.safe_load(_expected(name))
    assert expected["rig"] == name
    assert expected["slots"] == {gpu["bus_id"]: gpu["position"] for gpu in rig.describe(name)["gpus"]}
    assert expected["driver"]["branch"] == catalogue.rig(name, "test").driver


@pytest.mark.parametrize(
    ("words", "found", "todo"),
    [
        ({"rig": "dgx2"}, "unknown rig 'dgx2'", "did you mean 'dgx-2'?"),
        ({"rig": "dgx-2", "distro": "ubuntu24.04"}, "unknown distro", "did you mean 'ubuntu2404'?"),
        ({"distro": "debian12"}, "a distro without a rig", "--rig"),
        ({"rig": "dgx-2", "count": 0}, "--count 0", "invoke lab.up"),
        ({"rig": "dgx-2", "count": 241}, "--count 241", "invoke lab.up"),
    ],
)
def test_bad_input(words: dict[str, str], found: str, todo: str) -> None:
    with pytest.raises(UsageError) as error:
        up(**words, say=print)  # type: ignore[arg-type]
    assert found in str(error.value)
    assert todo in str(error.value)


def test_what_a_distance_denies_is_granted_by_nvlink() -> None:
    described = rig.describe("dgx-1v")
    linked, denied = set(described["nvlinks"]), set(described["p2p"]) - {"default"}
    assert denied
    assert not linked & denied
    assert [pair for pair in linked if pair not in described["pcie_levels"]], "links across the sockets"


def test_the_documented_checksums_are_those_that_are_checked() -> None:
    documented = (ROOT / "docs/develop/lab.md").read_text()
    assert set(SHA256) == set(SUITES)
    for version, digest in SHA256.items():
        assert re.search(rf"^\| {re.escape(version)} \|.*\| {digest} \|$", documented, re.M)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"driver": "acpi-cpufreq"}, "keys driver"),
        ({"driver": "acpi-cpufreq", "governor": "fast", "governors": ["performance"]}, "governor 'fast'"),
    ],
)
def test_policies_that_no_kernel_has(given: dict[str, object], found: str) -> None:
    with pytest.raises(InputError, match=found):
        rigfile._cpufreq(given, "rig")
