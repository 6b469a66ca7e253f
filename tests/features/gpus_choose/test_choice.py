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


def of_rig(name: str, wanted: int, links_down: tuple[str, ...] = ()) -> list[str]:
    """Returns the positions that are chosen on a machine of the catalogue, whose GPUs are far from each other but for
    its NVLinks."""
    rig = catalogue.rig(name, "test")
    positions = list(rig.gpus)
    bus = {position: f"0000:{number:02x}:00.0" for number, position in enumerate(positions, 1)}
    links = []
    for first, second, each in rig.pairs:
        for one, other in ((first, second), (second, first)):
            up = None if f"{first} {second}" in links_down else 25.0
            links += [NvLink(f"GPU-{positions.index(one) + 1}", n, up, bus[other]) for n in range(each)]
    cards = [card(number) for number in range(1, len(positions) + 1)]
    places = [at(number, root=f"pci{number}", node=None) for number in range(1, len(positions) + 1)]
    slots = {BusId(address): position for position, address in bus.items()}
    chosen = choose(wanted, cards, places, links, {}, slots)
    return [name.partition(" ")[0] for name in chosen.names]


def test_a_dgx_1_takes_pairs_with_two_links_and_a_group_in_which_every_pair_has_one() -> None:
    rig = catalogue.rig("dgx-1v", "test")
    links = {frozenset((a, b)): number for a, b, number in rig.pairs}
    assert links[frozenset(of_rig("dgx-1v", 2))] == 2
    four = of_rig("dgx-1v", 4)
    assert all(links.get(frozenset((a, b)), 0) >= 1 for a in four for b in four if a != b)
    assert len(of_rig("dgx-1v", 8)) == 8


def test_a_link_that_is_down_counts_as_none() -> None:
    first = of_rig("dgx-1v", 2)
    assert set(of_rig("dgx-1v", 2, links_down=(" ".join(first), " ".join(reversed(first))))) != set(first)


CARDS = [card(1), card(2), card(3), card(4)]
PLACES = [
    at(1, "0000:00:01.0", "0000:10:00.0"),
    at(2, "0000:00:02.0"),
    at(3, "0000:00:01.0", "0000:10:01.0"),
    at(4, "0000:80:01.0", root="pci0000:80", node=1),
]


def numbers(wanted: int, cards: list[Gpu] = CARDS, **given: object) -> tuple[str, ...]:
    """Returns the devices that are chosen of four GPUs, of which the first and third are below one switch."""
    arguments = {"links": (), "users": {}, "slots": None, **given}
    return choose(wanted, cards, PLACES, **arguments).devices  # type: ignore[arg-type]


def test_without_links_the_common_switch_then_the_root_complex_count() -> None:
    assert numbers(2) == ("0", "2")
    assert numbers(3) == ("0", "1", "2")
    assert numbers(1) == ("0",)


def test_nvswitches_join_all_gpus_on_them() -> None:
    switch = Place("0000:90:00.0", False, 0, "pci0000:00", ())
    links = [NvLink(f"GPU-{gpu}", n, 25.0, switch.bus_id) for gpu in (2, 4) for n in range(6)]
    chosen = choose(2, CARDS, [*PLACES, switch], links, {}, None)
    assert (chosen.devices, chosen.joined) == (("1", "3"), "1 pair with 6 NVLinks")


def test_gpus_in_use_and_lost_ones_are_left_out_and_named() -> None:
    users = {"GPU-1": (Process(7, "python3"), Process(8, "python3"))}
    chosen = choose(2, CARDS, PLACES, (), users, {BusId("0000:01:00.0"): "SXM2-1"})
    assert chosen.left_out == ("SXM2-1 0000:01:00.0 is in use by python3 (pid 7) and 1 more",)
    assert chosen.devices == ("1", "2")
    with pytest.raises(HostError) as refused:
        choose(4, CARDS, PLACES, (), users, None)
    assert (refused.value.found[:20], "--busy" in refused.value.fix) == ("3 GPUs can be taken:", True)


def test_where_a_gpu_is_lost_uuids_name_the_others() -> None:
    """CUDA counts the GPUs that it finds, so numbers after a lost one are others than before."""
    cards = [card(1, lost="GPU is lost"), *CARDS[1:]]
    assert numbers(2, cards) == ("GPU-2", "GPU-3")


def test_gpus_with_mig_on_are_left_out_and_uuids_name_the_others() -> None:
    """A program sees one instance of such a GPU, and CUDA numbers the others anew."""
    chosen = choose(2, CARDS, PLACES, (), {}, None, split=["0000:01:00.0"])
    assert (chosen.devices, chosen.left_out) == (("GPU-2", "GPU-3"), ("0000:01:00.0 has MIG on",))
    with pytest.raises(HostError) as refused:
        choose(4, CARDS, PLACES, (), {}, None, split=["0000:01:00.0"])
    assert refused.value.fix == "a smaller number"


def test_gpus_of_one_model_go_together() -> None:
    cards = [card(1), card(2, "Tesla V100-SXM2-32GB"), card(3, "Tesla V100-SXM2-32GB"), card(4)]
    assert numbers(2, cards) == ("1", "2")


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


def measured(
    nccl: dict[str, float | None], copies: float | None = 9.0, at: str = "2026-11-20T11:00:00+00:00"
) -> dict[frozenset[str], DatedPair]:
    """Returns the figures of pairs of GPUs, `1-3` for those on bus 1 and 3; pairs that are not named have no
    figures."""
    pairs = {tuple(f"GPU-{number}" for number in name.split("-")): speed for name, speed in nccl.items()}
    return {frozenset(pair): DatedPair(at, PairFigures(pair, speed, copies, "535.1")) for pair, speed in pairs.items()}  # type: ignore[arg-type]


ALL = {"1-2": 20.0, "1-3": 6.0, "1-4": 10.0, "2-3": 10.0, "2-4": 10.0, "3-4": 10.0}


def with_figures(wanted: int, figures: dict[frozenset[str], DatedPair], driver: str = "535.1") -> Choice:
    """Returns the choice among four GPUs, of which the first and third are below one switch."""
    return choose(wanted, CARDS, PLACES, (), {}, None, figures, NOW, driver)


def test_measured_bandwidths_count_before_the_topology() -> None:
    chosen = with_figures(2, measured(ALL))
    assert chosen.devices == ("0", "1"), "the topology alone takes 0 and 2"
    assert chosen.basis == (
        "by bandwidths of NCCL, measured 3 days ago (2026-11-20); the slowest pair: 20.0 GB/s between 0000:01:00.0 and 0000:02:00.0"
    )
    assert with_figures(3, measured(ALL)).devices == ("0", "1", "3"), (
        "1-3 is the slowest pair, and 2-3-4 has no fast one"
    )


def test_differences_that_are_none_leave_it_to_the_topology() -> None:
    assert with_figures(2, measured(dict.fromkeys(ALL, 10.0) | {"2-4": 10.05})).devices == ("0", "2")


def test_without_nccl_of_every_pair_copies_count_and_without_these_the_topology() -> None:
    figures = measured(ALL | {"3-4": None})
    figures[frozenset(("GPU-3", "GPU-4"))] = measured({"3-4": None}, 30.0)[frozenset(("GPU-3", "GPU-4"))]
    chosen = with_figures(2, figures)
    assert (chosen.devices, chosen.basis[:24]) == (("2", "3"), "by bandwidths of copies,")
    del figures[frozenset(("GPU-3", "GPU-4"))]
    chosen = with_figures(2, figures)
    assert chosen.devices == ("0", "2")
    assert chosen.basis == (
        "by the topology: 5 of 6 pairs that can be taken are measured; invoke verify --tags p2p measures them"
    )
    assert with_figures(2, {}).basis == "by the topology: no pair is measured; invoke verify --tags p2p measures them"
    assert with_figures(1, measured(ALL)).basis == ""


def test_figures_of_a_gpu_that_cannot_be_taken_are_not_needed() -> None:
    figures = measured({"2-3": 10.0, "2-4": 20.0, "3-4": 10.0})
    users = {"GPU-1": (Process(7, "python3"),)}
    chosen = choose(2, CARDS, PLACES, (), users, None, figures, NOW, "535.1")
    assert (chosen.devices, chosen.basis[:22]) == (("1", "3"), "by bandwidths of NCCL,")


def test_a_pair_that_failed_is_taken_last_and_named() -> None:
    assert "0" not in with_figures(3, measured(ALL | {"1-2": 0.0, "1-3": 0.0})).devices
    every = with_figures(4, measured(ALL | {"1-2": 0.0}))
    assert every.basis.endswith("the slowest pair: 0000:01:00.0 and 0000:02:00.0 failed the test")


def test_the_age_is_that_of_the_oldest_figure_and_another_driver_is_told() -> None:
    figures = measured(ALL) | measured({"1-2": 20.0}, at="2026-11-23T11:50:00+00:00")
    assert ", measured 10 minutes ago (2026-11-23);" in with_figures(2, figures).basis
    three = with_figures(3, figures, "580.2")
    assert ", measured 3 days ago (2026-11-20), with driver 535.1, now 580.2;" in three.basis
    late = measured(ALL, at="2026-11-24T11:50:00+00:00")
    assert "less than a minute ago" in with_figures(2, late).basis, "a clock that was put back"
