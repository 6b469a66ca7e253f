"""The cards as a buyer looks at them: how worn their memory is, and whether they are alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rigwright import catalogue
from rigwright.checks import Finding, Verdict
from rigwright.facts import Facts, card
from rigwright.facts.card import Card
from rigwright.figures import count
from rigwright.positions import called
from rigwright.typed import BusId

WORN_OUT = 60
"""Retired pages from which a card is worn out, and to be returned: there is room for 64 (NVIDIA's page retirement; owners
return them from there on, azurehpc 752)."""


def memory_worn(facts: Facts, *, slots: dict[BusId, str] | None = None) -> Iterator[Finding]:
    """In its whole life no card's memory had an uncorrected error, and no page or row of it was taken out of use."""
    for one in facts(card.cards):
        at = called(one.bus_id, one.uuid, slots)
        if one.lost:
            yield Finding(
                "card.memory_worn", at, "unknown", one.lost, "an answer", "", "power off and on, then ask again"
            )
            continue
        yield _memory(at, one)


def _memory(at: str, one: Card) -> Finding:
    retired = one.retired_pages or 0
    rows = (one.remapped_corrected or 0) + (one.remapped_uncorrected or 0)
    waits = bool(one.retirement_pending or one.remap_pending)
    counted = one.ecc_ever.uncorrected
    said = [
        *([count(counted, "uncorrected error")] if counted else []),
        *([count(retired, "retired page")] if retired else []),
        *([count(rows, "remapped row")] if rows else []),
        *(["one waits to be taken out of use"] if waits else []),
        *(["no spare rows are left"] if one.remap_failed else []),
    ]
    if not said and counted is None and one.retired_double_bit is None and one.remapped_uncorrected is None:
        seen = "it keeps no count (no ECC)" if not one.ecc else "its counts are not told"
        return Finding("card.memory_worn", at, "unknown" if one.ecc else "info", seen, "", "", "nvidia-smi -q -d ECC")
    if not said:
        return Finding("card.memory_worn", at, "pass", "no uncorrected errors, nothing taken out of use")
    over = one.remap_failed or retired >= WORN_OUT
    verdict: Verdict = "fail" if over or waits else "warn"
    fix = "sudo reboot, then ask again: the count must not grow within a day of load" if not over else "return it"
    return Finding("card.memory_worn", at, verdict, ", ".join(said), "none in its life", "worn or damaged memory", fix)


def alike(facts: Facts, *, slots: dict[BusId, str] | None = None) -> Iterator[Finding]:
    """Cards of one model have the same VBIOS, memory and power range, a serial number and a UUID of their own, and are the
    model that their PCI id says, which a flashed card is not."""
    cards = [one for one in facts(card.cards) if not one.lost]
    groups: dict[str, list[Card]] = {}
    for one in cards:
        groups.setdefault(one.name, []).append(one)
    for name, same in groups.items():
        odd = list(_odd(same, slots))
        yield from odd
        if not odd:
            vbios = ", ".join(sorted({one.vbios or "no VBIOS told" for one in same}))
            yield Finding("card.alike", f"{len(same)} x {name}", "pass", f"alike; VBIOS {vbios}")


def _odd(same: Sequence[Card], slots: dict[BusId, str] | None) -> Iterator[Finding]:
    for one in same:
        at = called(one.bus_id, one.uuid, slots)
        model = catalogue.model_of(one.device_id)
        if model and not _agrees(model.name, one.name):
            wanted = f"{model.name}, by its PCI id 10de:{one.device_id}"
            cause, fix = (
                "a VBIOS of another card, or a model that shares the PCI id",
                "compare it with the label on the card",
            )
            yield Finding("card.alike", at, "warn", one.name, wanted, cause, fix, "catalogue")
        for what, seen, values in (
            ("VBIOS", one.vbios, [other.vbios for other in same]),
            ("memory MiB", one.memory_mib, [other.memory_mib for other in same]),
            ("power limit at most, W", one.power_max_w, [other.power_max_w for other in same]),
        ):
            usual, number = Counter(values).most_common(1)[0]
            if seen != usual and number > 1:
                fix = "ask the seller; nvidia-smi -q shows all of it"
                yield Finding("card.alike", at, "warn", f"{what} {seen}", f"{what} {usual}", "", fix, "peers")
        for what, seen, all_of_them in (
            ("serial number", one.serial, [other.serial for other in same]),
            ("UUID", one.uuid, [other.uuid for other in same]),
        ):
            if seen and all_of_them.count(seen) > 1:
                yield Finding("card.alike", at, "fail", f"{what} {seen} twice", "one of its own", "a copied infoROM", "return it", "peers")  # fmt: skip


def _agrees(known: str, told: str) -> bool:
    """Whether two names mean one model: NVIDIA's word before it came with branch 460, memory sizes come and go."""
    first, second = (set(name.replace("-", " ").split()) - {"NVIDIA", "Tesla", "GeForce"} for name in (known, told))
    return first <= second or second <= first
