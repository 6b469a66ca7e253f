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
from rigwright.facts.gpu import health as gpu_health
from rigwright.facts.gpu import topology
from rigwright.facts.gpu.topology import NvLink


class _Gpu(Struct, frozen=True):
    """The links of a GPU that answers, without those to a GPU that does not.

    `at`: its position and bus id. `most`: as many links as the rig has to GPUs that answer, None if nobody knows.
    """

    bus_id: str
    position: str
    at: str
    links: Sequence[NvLink]
    most: int | None

    @property
    def name(self) -> str:
        """Its position, else its bus id."""
        return self.position or self.bus_id

    @property
    def up(self) -> int:
        """How many of its links are up."""
        return sum(link.gb_s is not None for link in self.links)

    @property
    def down(self) -> str:
        """The numbers of the links that are down: `0, 4`."""
        return ", ".join(str(link.number) for link in self.links if link.gb_s is None)

    @property
    def seen(self) -> str:
        """`5 links up; down: 0`."""
        return f"{self.up} links up{f'; down: {self.down}' if self.down else ''}"

    def up_to(self, peer: _Gpu) -> int:
        """How many links to another GPU are up."""
        return sum(link.gb_s is not None and link.peer == peer.bus_id for link in self.links)

    def least(self, whole: bool) -> int:
        """How many links must be up. `whole`: every GPU answers; else nobody knows without a rig where a link that is
        down ends."""
        if self.most is not None:
            return self.most
        return len(self.links) if self.up and whole else 0


@check()
def up(facts: Facts, *, rig: Rig | None = None, slots: dict[BusId, str] | None = None) -> Iterator[Finding]:
    """Every GPU has as many active NVLinks as the rig says for its position; without a rig, all of its links or none
    (no bridge).

    A link that is down is one finding with both of its GPUs, where the driver says which GPUs the active links connect.
    Links to a missing GPU are reported by gpu.present, links to a GPU that does not answer by gpu.answering.
    """
    links, cards = facts.all(topology.nvlinks, gpu_health.cards)
    there = [card for card in cards if not card.lost]
    lost = {card.bus_id for card in cards if card.lost}
    positions = {card.bus_id: (slots or {}).get(card.bus_id, "") for card in there}
    gpus = []
    for card in there:
        if card.mig:
            seen = "not checked: the driver reports no NVLinks with MIG on"
            yield Finding(place(card.bus_id, slots), "info", seen)
            continue
        position = positions[card.bus_id]
        own = [link for link in links if link.uuid == card.uuid and link.peer not in lost]
        most = _wanted(rig, position, card.device_id, positions.values())
        gpus.append(_Gpu(card.bus_id, position, place(card.bus_id, slots), own, most))
    pairs = _wanted_pairs(gpus, rig, whole=not lost)
    wrong = tuple(_of_gpus(gpus, rig, not lost) if pairs is None else _of_pairs(gpus, pairs, told=rig is not None))
    yield from wrong
    if gpus and not wrong:
        fine = Counter(gpu.up for gpu in gpus)
        text = ", ".join(f"{number} x {up or 'no'} links" for up, number in fine.items())
        yield Finding("NVLinks", "pass", text)
    elif not cards:
        yield Finding("NVLinks", "pass", "none")


def _wanted_pairs(gpus: Sequence[_Gpu], rig: Rig | None, whole: bool) -> Mapping[frozenset[str], int] | None:
    """How many links each pair of bus ids must have; None if nobody knows which GPUs a link that is down connects.

    Without a rig all connected pairs must have as many as the best one, if that makes as many missing ends on each GPU
    as are down.
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
    return min(a.up_to(b), b.up_to(a))


def _of_pairs(gpus: Sequence[_Gpu], wanted: Mapping[frozenset[str], int], told: bool) -> Iterator[Finding]:
    """A finding for each pair with too few links; one for a GPU with too few to all others, and one if all pairs have
    too few."""
    ends = {pair: [gpu for gpu in gpus if gpu.bus_id in pair] for pair in wanted}
    active = {pair: _active(a, b) for pair, (a, b) in ends.items()}
    few = [pair for pair, links in wanted.items() if active[pair] < links]
    if len(few) == len(wanted) > 1:
        every = sum(wanted.values())
        yield _too_few("NVLinks", f"{sum(active.values())} of {every} links up", f"{every} links", told)
        return
    common = common_gpus(few, wanted)
    for gpu in gpus:
        if gpu.bus_id in common:
            links = sum(number for pair, number in wanted.items() if gpu.bus_id in pair)
            yield _too_few(gpu.at, gpu.seen, f"{links} links", told)
    for pair in few:
        if pair.isdisjoint(common):
            down = " and ".join(f"{gpu.down} of {gpu.name}" for gpu in ends[pair] if gpu.down)
            subject = " and ".join(gpu.at for gpu in ends[pair])
            seen = f"{active[pair]} of {wanted[pair]} links up; down: {down}"
            yield _too_few(subject, seen, f"{wanted[pair]} links", told)


def _of_gpus(gpus: Sequence[_Gpu], rig: Rig | None, whole: bool) -> Iterator[Finding]:
    """What is wrong where nobody knows which GPUs a link connects: with NVSwitches a finding for each GPU, else one for
    all."""
    few = [(gpu, least) for gpu in gpus if gpu.up < (least := gpu.least(whole))]
    each = [[entry] for entry in few] if rig and rig.nvswitches else [few] if few else []
    for same in each:
        subject = ", ".join(gpu.at for gpu, _ in same)
        seen = same[0][0].seen if len(same) == 1 else "; ".join(f"{gpu.seen} of {gpu.name}" for gpu, _ in same)
        expected = " or ".join(str(least) for least in dict.fromkeys(least for _, least in same))
        told = all(gpu.most is not None for gpu, _ in same)
        yield _too_few(subject, seen, f"{expected} links", told)


_BOARD = "A GPU module that is not fully seated or worn, its socket, or the board between the two sockets."
_TOLD = "The bridge is not fully seated or broken; else the connector of the GPU."


def _too_few(subject: str, seen: str, expected: str, told: bool) -> Finding:
    """The finding of links that are down; `told`: the rig says how many there are."""
    if told:
        down = of_symptom("nvlink.inactive", subject, seen, expected, "rig", verdict="fail")
        return replace(down, cause=_BOARD if "SXM" in subject else _TOLD)
    return of_symptom("nvlink.inactive", subject, seen, expected, "host", verdict="warn")


def _wanted(rig: Rig | None, position: str, device_id: str, there: Collection[str]) -> int | None:
    """The links that the rig has between a position and positions with a GPU; None if the rig or the position is
    unknown."""
    if rig is None:
        return None
    if rig.nvswitches:
        model = catalogue.model_of(device_id)
        return model.nvlink.links if model and model.nvlink else None
    if position not in rig.gpus:
        every = {sum(links for a, b, links in rig.pairs if name in (a, b)) for name in rig.gpus}
        return every.pop() if len(every) == 1 else None
    return sum(links for a, b, links in rig.pairs if position in (a, b) and {a, b} <= {*there})
