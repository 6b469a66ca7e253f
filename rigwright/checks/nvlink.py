"""The NVLinks: as many are active as the rig has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from rigwright import catalogue
from rigwright.catalogue import Rig
from rigwright.checks import Finding, check, of_symptom
from rigwright.checks._common_gpu import common_gpus
from rigwright.core.gpu_labels import place
from rigwright.core.schema import BusId
from rigwright.facts import Facts, gpu_health, topology
from rigwright.facts.topology import NvLink


@dataclass(frozen=True)
class _Gpu:
    """The links of a GPU that answers, without those to a GPU that does not.

    `at`: its position and bus id. `most`: as many links as the rig has to GPUs that answer, None if nobody knows.
    """

    bus_id: str
    position: str
    at: str
    links: Sequence[NvLink]
    most: int | None

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
        """How many links must be up. `whole`: every GPU answers; else nobody knows without a rig where a link that is down ends."""
        if self.most is not None:
            return self.most
        return len(self.links) if self.up and whole else 0


@check()
def up(facts: Facts, *, rig: Rig | None = None, slots: dict[BusId, str] | None = None) -> Iterator[Finding]:
    """Every GPU has as many active NVLinks as the rig says for its position; without a rig, all of its links or none (no bridge).

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
    wrong = tuple(_of_pairs(gpus, rig) if rig and _peers_known(gpus, rig) else _of_gpus(gpus, rig, whole=not lost))
    yield from wrong
    if gpus and not wrong:
        fine = Counter(gpu.up for gpu in gpus)
        text = ", ".join(f"{number} x {up or 'no'} links" for up, number in fine.items())
        yield Finding("NVLinks", "pass", text)
    elif not cards:
        yield Finding("NVLinks", "pass", "none")


def _peers_known(gpus: Sequence[_Gpu], rig: Rig) -> bool:
    """Whether the driver says where every active link ends, and the rig where it should."""
    ends = all(link.peer for gpu in gpus for link in gpu.links if link.gb_s is not None)
    return ends and not rig.nvswitches and all(gpu.position in rig.gpus for gpu in gpus)


def _of_pairs(gpus: Sequence[_Gpu], rig: Rig) -> Iterator[Finding]:
    """A finding for each pair with too few links; one for a GPU with too few to all others, and one if all pairs have too few."""
    known = {gpu.position: gpu for gpu in gpus}
    wanted = {frozenset((a, b)): (known[a], known[b], links) for a, b, links in rig.pairs if {a, b} <= {*known}}
    active = {pair: min(a.up_to(b), b.up_to(a)) for pair, (a, b, _) in wanted.items()}
    few = [pair for pair, (_, _, links) in wanted.items() if active[pair] < links]
    if len(few) == len(wanted) > 1:
        every = sum(links for _, _, links in wanted.values())
        yield _too_few("NVLinks", f"{sum(active.values())} of {every} links up", f"{every} links")
        return
    common = common_gpus(few, wanted)
    for gpu in (known[position] for position in common):
        yield _too_few(gpu.at, gpu.seen, f"{gpu.most} links")
    for pair in few:
        a, b, links = wanted[pair]
        if pair.isdisjoint(common):
            down = " and ".join(f"{gpu.down} of {gpu.position}" for gpu in (a, b) if gpu.down)
            yield _too_few(f"{a.at} and {b.at}", f"{active[pair]} of {links} links up; down: {down}", f"{links} links")


def _of_gpus(gpus: Sequence[_Gpu], rig: Rig | None, whole: bool) -> Iterator[Finding]:
    """What is wrong where nobody knows which GPUs a link connects: with NVSwitches a finding for each GPU, else one for all."""
    few = [(gpu, least) for gpu in gpus if gpu.up < (least := gpu.least(whole))]
    each = [[entry] for entry in few] if rig and rig.nvswitches else [few] if few else []
    for same in each:
        subject = ", ".join(gpu.at for gpu, _ in same)
        seen = (
            same[0][0].seen
            if len(same) == 1
            else "; ".join(f"{gpu.seen} of {gpu.position or gpu.bus_id}" for gpu, _ in same)
        )
        expected = " or ".join(str(least) for least in dict.fromkeys(least for _, least in same))
        told = all(gpu.most is not None for gpu, _ in same)
        yield _too_few(subject, seen, f"{expected} links", told)


def _too_few(subject: str, seen: str, expected: str, told: bool = True) -> Finding:
    """The finding of links that are down; `told`: the rig says how many there are."""
    if told:
        return of_symptom("nvlink.inactive", subject, seen, expected, "rig", verdict="fail")
    return of_symptom("nvlink.inactive", subject, seen, expected, "host", verdict="warn")


def _wanted(rig: Rig | None, position: str, device_id: str, there: Collection[str]) -> int | None:
    """The links that the rig has between a position and positions with a GPU; None if the rig or the position is unknown."""
    if rig is None:
        return None
    if rig.nvswitches:
        model = catalogue.model_of(device_id)
        return model.nvlink.links if model and model.nvlink else None
    if position not in rig.gpus:
        every = {sum(links for a, b, links in rig.pairs if name in (a, b)) for name in rig.gpus}
        return every.pop() if len(every) == 1 else None
    return sum(links for a, b, links in rig.pairs if position in (a, b) and {a, b} <= {*there})
