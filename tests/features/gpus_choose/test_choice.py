"""The GPUs that are best joined, on the machines of the catalogue and on others."""

from __future__ import annotations

import datetime
import time

import pytest

from rigwright import catalogue
from rigwright.core.errors import HostError
from rigwright.core.schema import BusId
from rigwright.facts.gpu.gpus import Gpu, Process
from rigwright.facts.gpu.topology import NvLink, Place
from rigwright.facts.nccl.p2p_test import PairFigures
from rigwright.features.gpus_choose.choice import Choice, DatedPair, Join, choose
from tests.machine_speed import within


def card(number: int, name: str = "Tesla V100-SXM2-16GB", lost: str = "") -> Gpu:
    """Returns the GPU with that bus number."""
    return Gpu(number, f"GPU-{number}", f"0000:{number:02x}:00.0", name, *[None] * 7, lost=lost)  # type: ignore[arg-type]


def at(number: int, *bridges: str, root: str = "pci0000:00", node: int | None = 0) -> Place:
    """Returns the place of the GPU with that bus number."""
    return Place(f"0000:{number:02x}:00.0", True, node, root, bridges)


def of_rig(name: str, wanted: int, down: tuple[str, ...] = ()) -> list[str]:
    """Returns the chosen positions of a machine of the catalogue whose GPUs are joined by NVLinks only; `down`: the
    pairs whose links are down."""
    rig = catalogue.rig(name, "test")
    numbers = {position: number for number, position in enumerate(rig.gpus, 1)}
    links = []
    for first, second, each in rig.pairs:
        for a, b in ((first, second), (second, first)):
            speed = None if f"{first} {second}" in down else 25.0
            links += [NvLink(f"GPU-{numbers[a]}", n, speed, card(numbers[b]).bus_id) for n in range(each)]
    cards = [card(number) for number in numbers.values()]
    places = [at(number, root=f"pci{number}", node=None) for number in numbers.values()]
    slots = {BusId(card(number).bus_id): position for position, number in numbers.items()}
    return [label.partition(" ")[0] for label in choose(wanted, cards, places, links, {}, slots).names]


def test_a_dgx_1_takes_pairs_with_two_links_and_a_group_in_which_every_pair_has_one() -> None:
    rig = catalogue.rig("dgx-1v", "test")
    links = {frozenset((a, b)): number for a, b, number in rig.pairs}
    assert links[frozenset(of_rig("dgx-1v", 2))] == 2
    four = of_rig("dgx-1v", 4)
    assert all(links.get(frozenset((a, b)), 0) >= 1 for a in four for b in four if a != b)
    assert len(of_rig("dgx-1v", 8)) == 8


def test_a_link_that_is_down_counts_as_none() -> None:
    first = of_rig("dgx-1v", 2)
    assert set(of_rig("dgx-1v", 2, down=(" ".join(first), " ".join(reversed(first))))) != set(first)


CARDS = [card(1), card(2), card(3), card(4)]
PLACES = [
    at(1, "0000:00:01.0", "0000:10:00.0"),
    at(2, "0000:00:02.0"),
    at(3, "0000:00:01.0", "0000:10:01.0"),
    at(4, "0000:80:01.0", root="pci0000:80", node=1),
]


@pytest.mark.parametrize(
    ("wanted", "cards", "devices"),
    [
        (1, CARDS, ("0",)),
        (2, CARDS, ("0", "2")),  # below one switch
        (3, CARDS, ("0", "1", "2")),  # below one root complex
        (2, [card(1, lost="GPU is lost"), *CARDS[1:]], ("GPU-2", "GPU-3")),  # CUDA numbers the others anew
        (2, [card(1), card(2, "Tesla V100-SXM2-32GB"), card(3, "Tesla V100-SXM2-32GB"), card(4)], ("1", "2")),
    ],
)
def test_without_links_one_model_then_the_common_switch_then_the_root_complex_count(
    wanted: int, cards: list[Gpu], devices: tuple[str, ...]
) -> None:
    assert choose(wanted, cards, PLACES, (), {}, None).devices == devices


def test_nvswitches_join_all_gpus_on_them() -> None:
    switch = Place("0000:90:00.0", False, 0, "pci0000:00", ())
    links = [NvLink(f"GPU-{gpu}", n, 25.0, switch.bus_id) for gpu in (2, 4) for n in range(6)]
    chosen = choose(2, CARDS, [*PLACES, switch], links, {}, None)
    assert (chosen.devices, chosen.joined) == (("1", "3"), "1 pair with 6 NVLinks")


@pytest.mark.parametrize(
    ("users", "split", "devices", "reason", "fix"),
    [
        (
            {"GPU-1": (Process(7, "python3"), Process(8, "python3"))},
            [],
            ("1", "2"),
            "SXM2-1 0000:01:00.0 is in use by python3 (pid 7) and 1 more",
            "a smaller number; or --busy, which takes GPUs in use too",
        ),
        # a program sees one instance of a GPU with MIG on, and CUDA numbers the others anew
        ({}, ["0000:01:00.0"], ("GPU-2", "GPU-3"), "SXM2-1 0000:01:00.0 has MIG on", "a smaller number"),
    ],
)
def test_gpus_in_use_or_with_mig_on_are_left_out_and_named(
    users: dict[str, tuple[Process, ...]], split: list[str], devices: tuple[str, ...], reason: str, fix: str
) -> None:
    slots = {BusId("0000:01:00.0"): "SXM2-1"}
    chosen = choose(2, CARDS, PLACES, (), users, slots, split=split)
    assert (chosen.devices, chosen.left_out) == (devices, (reason,))
    with pytest.raises(HostError) as caught:
        choose(4, CARDS, PLACES, (), users, slots, split=split)
    assert (caught.value.found, caught.value.fix) == (f"3 GPUs can be taken: {reason}", fix)


def test_the_environment_variables() -> None:
    settings = Choice(("0", "3"), (), "", ()).settings
    assert settings == ("CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_VISIBLE_DEVICES=0,3")
    assert str(Join(0, 1)) == "the same NUMA node"


def test_sixteen_gpus_take_less_than_two_seconds() -> None:
    cards = [card(number) for number in range(1, 17)]
    places = [at(number, f"0000:00:{number % 4:02x}.0") for number in range(1, 17)]
    began = time.process_time()
    assert len(choose(8, cards, places, (), {}, None).devices) == 8
    assert within(time.process_time() - began, 5)


NOW = datetime.datetime(2026, 11, 23, 12, tzinfo=datetime.timezone.utc)


ALL = {"1-2": 20.0, "1-3": 6.0, "1-4": 10.0, "2-3": 10.0, "2-4": 10.0, "3-4": 10.0}
"""The GB/s of NCCL of each pair of GPUs: `1-3` for those on bus 1 and 3."""
LAST = frozenset(("GPU-3", "GPU-4"))


def measured(
    nccl: dict[str, float | None], copies: float | None = 9.0, at: str = "2026-11-20T11:00:00+00:00"
) -> dict[frozenset[str], DatedPair]:
    """Returns the figures of these pairs; the others have none."""
    pairs = {tuple(f"GPU-{number}" for number in name.split("-")): speed for name, speed in nccl.items()}
    return {frozenset(pair): DatedPair(at, PairFigures(pair, speed, copies, "535.1")) for pair, speed in pairs.items()}  # type: ignore[arg-type]


NEW = measured(ALL) | measured({"1-2": 20.0}, at="2026-11-23T11:50:00+00:00")
NOT_MEASURED = "invoke verify --tags p2p measures them"


@pytest.mark.parametrize(
    ("wanted", "figures", "driver", "devices", "basis"),
    [
        (
            2,
            measured(ALL),
            "535.1",
            ("0", "1"),  # the topology alone takes 0 and 2
            "by bandwidths of NCCL, measured 3 days ago (2026-11-20);"
            " the slowest pair: 20.0 GB/s between 0000:01:00.0 and 0000:02:00.0",
        ),
        (3, measured(ALL), "535.1", ("0", "1", "3"), ""),  # 1-3 is the slowest pair, and 2-3-4 has no fast pair
        (1, measured(ALL), "535.1", ("0",), ""),
        (2, measured(dict.fromkeys(ALL, 10.0) | {"2-4": 10.05}), "535.1", ("0", "2"), "by bandwidths"),  # nearly equal
        (2, measured(ALL) | measured({"3-4": None}, 30.0), "535.1", ("2", "3"), "by bandwidths of copies,"),
        (
            2,
            {pair: figures for pair, figures in measured(ALL).items() if pair != LAST},
            "535.1",
            ("0", "2"),
            f"by the topology: 5 of 6 pairs that can be taken are measured; {NOT_MEASURED}",
        ),
        (2, {}, "535.1", ("0", "2"), f"by the topology: no pair is measured; {NOT_MEASURED}"),
        (3, measured(ALL | {"1-2": 0.0, "1-3": 0.0}), "535.1", ("1", "2", "3"), ""),  # a failed pair comes last
        (
            4,
            measured(ALL | {"1-2": 0.0}),
            "535.1",
            ("0", "1", "2", "3"),
            "the slowest pair: 0000:01:00.0 and 0000:02:00.0 failed the test",
        ),
        (2, NEW, "535.1", ("0", "1"), ", measured 10 minutes ago (2026-11-23);"),
        (3, NEW, "580.2", ("0", "1", "3"), ", measured 3 days ago (2026-11-20), with driver 535.1, now 580.2;"),
        (2, measured(ALL, at="2026-11-24T11:50:00+00:00"), "535.1", ("0", "1"), "less than a minute ago"),
    ],
)  # fmt: skip
def test_measured_bandwidths_of_every_pair_count_before_the_topology(
    wanted: int, figures: dict[frozenset[str], DatedPair], driver: str, devices: tuple[str, ...], basis: str
) -> None:
    """The age is that of the oldest figure; a clock that was put back makes no negative age."""
    chosen = choose(wanted, CARDS, PLACES, (), {}, None, figures, NOW, driver)
    assert chosen.devices == devices
    assert basis in chosen.basis
    assert bool(chosen.basis) == (wanted > 1)


def test_figures_of_a_gpu_that_cannot_be_taken_are_not_needed() -> None:
    figures = measured({"2-3": 10.0, "2-4": 20.0, "3-4": 10.0})
    users = {"GPU-1": (Process(7, "python3"),)}
    chosen = choose(2, CARDS, PLACES, (), users, None, figures, NOW, "535.1")
    assert (chosen.devices, chosen.basis[:22]) == (("1", "3"), "by bandwidths of NCCL,")
