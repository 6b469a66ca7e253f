"""The NVLinks: as many are active as the rig has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations

from msgspec import Struct
from msgspec.structs import replace

from rigwright import catalogue
from rigwright.catalogue import Rig
from rigwright.checks import Finding, check, of_symptom
from rigwright.checks._common_gpu import common_gpus
from rigwright.core.gpu_labels import place
from rigwright.core.schema import BusId
from rigwright.facts import Facts
from rigwright.facts.gpu import health as gpu_health, topology
from rigwright.facts.gpu.topology import NvLink


class _Gpu(Struct, frozen=True):
    """The links of a GPU that answers, without those to GPUs that do not. `at`: position and bus id. `most`: the
    number of links in the rig to GPUs that answer; None if not known."""

    bus_id: str
    position: str
    at: str
    links: Sequence[NvLink]
    most: int | None

    @property
    def name(self) -> str:
        """The position, or the bus id if there is none."""
        return self.position or self.bus_id

    @property
    def up(self) -> int:
        """The number of links that are up."""
        return sum(link.gb_s is not None for link in self.links)

    @property
    def down(self) -> str:
        """The numbers of the links that are down: `0, 4`."""
        return ", ".join(str(link.number) for link in self.links if link.gb_s is None)

    @property
    def seen(self) -> str:
        """`5 links up; down: 0`."""
        return f"{self.up} links up{f'; down: {self.down}' if self.down else ''}"


@check()
def up(facts: Facts, *, rig: Rig | None = None, slots: dict[BusId, str] | None = None) -> Iterator[Finding]:
    """Every GPU has as many active NVLinks as the rig has at its position; without a rig, all of its links or none (no
    bridge).

    A link that is down is one finding with both GPUs if the driver reports which GPUs the active links connect.
    gpu.present reports a missing GPU, gpu.answering a GPU that does not answer.
    """
    links, cards = facts.all(topology.nvlinks, gpu_health.cards)
    there = [card for card in cards if not card.lost]
    lost = {card.bus_id for card in cards if card.lost}
    positions = {card.bus_id: (slots or {}).get(card.bus_id, "") for card in there}
    gpus = []
    for card in there:
        at, position = place(card.bus_id, slots), positions[card.bus_id]
        if card.mig:
            yield Finding(at, "info", "not checked: the driver reports no NVLinks with MIG on")
            continue
        own = [link for link in links if link.uuid == card.uuid and link.peer not in lost]
        most = _links_in_rig(rig, position, card.device_id, positions.values())
        gpus.append(_Gpu(card.bus_id, position, at, own, most))
    pairs = _expected_pairs(gpus, rig, whole=not lost)
    wrong = tuple(_of_gpus(gpus, rig, not lost) if pairs is None else _of_pairs(gpus, pairs, by_rig=rig is not None))
    yield from wrong
    if gpus and not wrong:
        fine = Counter(gpu.up for gpu in gpus)
        text = ", ".join(f"{number} x {up or 'no'} links" for up, number in fine.items())
        yield Finding("NVLinks", "pass", text)
    elif not cards:
        yield Finding("NVLinks", "pass", "none")


def _expected_pairs(gpus: Sequence[_Gpu], rig: Rig | None, whole: bool) -> Mapping[frozenset[str], int] | None:
    """The number of links that each pair of bus ids must have; None if it is not known which GPUs a link that is down
    connects.

    Without a rig, all connected pairs must have as many links as the best one, if the missing links of each GPU are
    then as many as its links that are down. `whole`: every GPU answers.
    """
    if not all(link.peer for gpu in gpus for link in gpu.links if link.gb_s is not None):
        return None
    if rig:
        at = {gpu.position: gpu.bus_id for gpu in gpus}
        if rig.nvswitches or not {*at} <= {*rig.gpus}:
            return None
        return {frozenset((at[a], at[b])): links for a, b, links in rig.pairs if {a, b} <= {*at}}
    pairs = {frozenset((a.bus_id, b.bus_id)): _active(a, b) for a, b in combinations(gpus, 2)}
    wanted = dict.fromkeys([pair for pair, links in pairs.items() if links], max(pairs.values(), default=0))
    missing = {gpu.bus_id: sum(wanted[pair] - pairs[pair] for pair in wanted if gpu.bus_id in pair) for gpu in gpus}
    ends_meet = all(missing[gpu.bus_id] == len(gpu.links) - gpu.up for gpu in gpus)
    return wanted if whole and ends_meet else None


def _active(a: _Gpu, b: _Gpu) -> int:
    """The number of links between two GPUs that both report as up."""
    return min(
        sum(link.gb_s is not None and link.peer == to.bus_id for link in of.links) for of, to in ((a, b), (b, a))
    )


def _of_pairs(gpus: Sequence[_Gpu], wanted: Mapping[frozenset[str], int], by_rig: bool) -> Iterator[Finding]:
    """A finding for each pair with too few links; one for a GPU with too few to all others, and one if all pairs have
    too few."""
    ends = {pair: [gpu for gpu in gpus if gpu.bus_id in pair] for pair in wanted}
    active = {pair: _active(a, b) for pair, (a, b) in ends.items()}
    few = [pair for pair, links in wanted.items() if active[pair] < links]
    if len(few) == len(wanted) > 1:
        every = sum(wanted.values())
        yield _too_few("NVLinks", f"{sum(active.values())} of {every} links up", f"{every} links", by_rig)
        return
    common = common_gpus(few, wanted)
    for gpu in gpus:
        if gpu.bus_id in common:
            links = sum(number for pair, number in wanted.items() if gpu.bus_id in pair)
            yield _too_few(gpu.at, gpu.seen, f"{links} links", by_rig)
    for pair in few:
        if pair.isdisjoint(common):
            down = " and ".join(f"{gpu.down} of {gpu.name}" for gpu in ends[pair] if gpu.down)
            subject = " and ".join(gpu.at for gpu in ends[pair])
            seen = f"{active[pair]} of {wanted[pair]} links up; down: {down}"
            yield _too_few(subject, seen, f"{wanted[pair]} links", by_rig)


def _of_gpus(gpus: Sequence[_Gpu], rig: Rig | None, whole: bool) -> Iterator[Finding]:
    """The findings if it is not known which GPUs a link connects: one per GPU with NVSwitches, otherwise one for
    all. Without a rig, a GPU with a link up must have all its links up."""
    least_up = {
        gpu.bus_id: (len(gpu.links) if gpu.up and whole else 0) if gpu.most is None else gpu.most for gpu in gpus
    }
    few = [(gpu, least) for gpu in gpus if gpu.up < (least := least_up[gpu.bus_id])]
    each = [[entry] for entry in few] if rig and rig.nvswitches else [few] if few else []
    for same in each:
        subject = ", ".join(gpu.at for gpu, _ in same)
        seen = same[0][0].seen if len(same) == 1 else "; ".join(f"{gpu.seen} of {gpu.name}" for gpu, _ in same)
        expected = " or ".join(str(least) for least in dict.fromkeys(least for _, least in same))
        yield _too_few(subject, seen, f"{expected} links", all(gpu.most is not None for gpu, _ in same))


def _too_few(subject: str, seen: str, expected: str, by_rig: bool) -> Finding:
    """The finding for links that are down; `by_rig`: the expected number is that of the rig."""
    if not by_rig:
        return of_symptom("nvlink.inactive", subject, seen, expected, "host", verdict="warn")
    board = "A GPU module that is not fully seated or worn, its socket, or the board between the two sockets."
    bridge = "The bridge is not fully seated or broken; else the connector of the GPU."
    down = of_symptom("nvlink.inactive", subject, seen, expected, "rig", verdict="fail")
    return replace(down, cause=board if "SXM" in subject else bridge)


def _links_in_rig(rig: Rig | None, position: str, device_id: str, there: Collection[str]) -> int | None:
    """The number of links of the rig from a position to positions with a GPU; None if rig or position is not
    known."""
    if rig is None:
        return None
    if rig.nvswitches:
        model = catalogue.model_of(device_id)
        return model.nvlink.links if model and model.nvlink else None
    if position not in rig.gpus:
        every = {sum(links for a, b, links in rig.pairs if name in (a, b)) for name in rig.gpus}
        return every.pop() if len(every) == 1 else None
    return sum(links for a, b, links in rig.pairs if position in (a, b) and {a, b} <= {*there})
