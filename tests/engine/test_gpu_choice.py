"""The GPUs that are best joined, on the machines of the catalogue and on others."""

from __future__ import annotations

import time

import pytest

from rigwright import catalogue
from rigwright.core.errors import HostError
from rigwright.core.schema import BusId
from rigwright.engine.gpu_choice import Choice, Join, choose
from rigwright.facts.gpu import Gpu, Process
from rigwright.facts.topology import NvLink, Place


def card(number: int, name: str = "Tesla V100-SXM2-16GB", lost: str = "") -> Gpu:
    """Returns the GPU with that bus number."""
    return Gpu(number, f"GPU-{number}", f"0000:{number:02x}:00.0", name, *[None] * 7, lost=lost)  # type: ignore[arg-type]


def at(number: int, *bridges: str, root: str = "pci0000:00", node: int | None = 0) -> Place:
    """Returns the place of the GPU with that bus number."""
    return Place(f"0000:{number:02x}:00.0", True, node, root, bridges)


def of_rig(name: str, wanted: int, links_down: tuple[str, ...] = ()) -> list[str]:
    """Returns the positions that are chosen on a machine of the catalogue, whose GPUs are far from each other but for its NVLinks."""
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
    assert time.process_time() - began < 5
