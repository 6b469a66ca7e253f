"""The NVLinks: as many are active as the rig has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from rigwright import catalogue
from rigwright.catalogue import Rig
from rigwright.checks import Finding, check, of_symptom
from rigwright.core.gpu_labels import place
from rigwright.core.schema import BusId
from rigwright.facts import Facts, gpu_health, topology


@check()
def up(facts: Facts, *, rig: Rig | None = None, slots: dict[BusId, str] | None = None) -> Iterator[Finding]:
    """Every GPU has as many active NVLinks as the rig says for its position; without a rig, all of its links or none (no bridge).

    Links to a missing GPU are reported by gpu.present, links to a GPU that does not answer by gpu.answering.
    """
    links, cards = facts.all(topology.nvlinks, gpu_health.cards)
    there = [card for card in cards if not card.lost]
    positions = {(slots or {}).get(card.bus_id, "") for card in there}
    fine: Counter[int] = Counter()
    wrong = False
    for card in there:
        at, own = place(card.bus_id, slots), [link for link in links if link.uuid == card.uuid]
        if card.mig:
            yield Finding(at, "info", "not checked: the driver reports no NVLinks with MIG on")
            continue
        down = ", ".join(str(link.number) for link in own if link.gb_s is None)
        number = sum(link.gb_s is not None for link in own)
        most = _wanted(rig, (slots or {}).get(card.bus_id, ""), card.device_id, positions)
        least = most if most is not None else len(own) if number and len(there) == len(cards) else 0
        if number < least:
            wrong = True
            seen = f"{number} links up{f'; down: {down}' if down else ''}"
            if most is None:
                yield of_symptom("nvlink.inactive", at, seen, f"{least} links", "host", verdict="warn")
            else:
                yield of_symptom("nvlink.inactive", at, seen, f"{least} links", "rig", verdict="fail")
        else:
            fine[number] += 1
    if fine and not wrong:
        text = ", ".join(f"{number} x {up or 'no'} links" for up, number in fine.items())
        yield Finding("NVLinks", "pass", text)
    elif not cards:
        yield Finding("NVLinks", "pass", "none")


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
