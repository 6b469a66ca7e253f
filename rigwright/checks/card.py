"""The condition of the GPU cards: memory wear, and whether cards of one model are alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rigwright import catalogue
from rigwright.checks import Finding, Verdict, check
from rigwright.core.gpu_labels import called
from rigwright.core.numbers import count
from rigwright.core.schema import BusId
from rigwright.facts import Facts, gpu_health
from rigwright.facts.gpu_health import Card

WORN_OUT = 60
"""From this number of retired pages a card is worn out and should be returned; the maximum is 64 (NVIDIA's page retirement;
azurehpc 752)."""


@check()
def memory_worn(facts: Facts, *, slots: dict[BusId, str] | None = None) -> Iterator[Finding]:
    """No card's memory ever had an uncorrected error, a retired page or a remapped row."""
    for card in facts(gpu_health.cards):
        at = called(card.bus_id, card.uuid, slots)
        if card.lost:
            yield Finding(at, "unknown", card.lost, "an answer", "", "power the machine off and on, then run it again")
        else:
            yield _memory(at, card)


def _memory(at: str, card: Card) -> Finding:
    retired = card.retired_pages or 0
    rows = (card.remapped_corrected or 0) + (card.remapped_uncorrected or 0)
    waits = bool(card.retirement_pending or card.remap_pending)
    counted = card.ecc_ever.uncorrected
    numbers = ((counted or 0, "uncorrected error"), (retired, "retired page"), (rows, "remapped row"))
    problems = [count(number, word) for number, word in numbers if number]
    problems += ["one is pending retirement"] if waits else []
    problems += ["no spare rows are left"] if card.remap_failed else []
    if not problems and counted is None and card.retired_double_bit is None and card.remapped_uncorrected is None:
        seen = "no error counters (no ECC)" if not card.ecc else "its error counters are not reported"
        return Finding(at, "unknown" if card.ecc else "info", seen, "", "", "nvidia-smi -q -d ECC")
    if not problems:
        return Finding(at, "pass", "no uncorrected errors, no retired memory")
    over = card.remap_failed or retired >= WORN_OUT
    verdict: Verdict = "fail" if over or waits else "warn"
    fix = "sudo reboot, then run it again: the count must not grow within a day of load" if not over else "return it"
    return Finding(at, verdict, ", ".join(problems), "none ever", "worn or damaged memory", fix)


@check()
def alike(facts: Facts, *, slots: dict[BusId, str] | None = None) -> Iterator[Finding]:
    """Cards of one model have the same VBIOS, memory and power range, unique serial numbers and UUIDs, and are the
    model of their PCI id; a card with another card's VBIOS is not."""
    cards = [card for card in facts(gpu_health.cards) if not card.lost]
    groups: dict[str, list[Card]] = {}
    for card in cards:
        groups.setdefault(card.name, []).append(card)
    for name, same in groups.items():
        odd = list(_odd(same, slots))
        yield from odd
        if not odd:
            vbios = ", ".join(sorted({card.vbios or "VBIOS unknown" for card in same}))
            yield Finding(f"{len(same)} x {name}", "pass", f"alike; VBIOS {vbios}")


def _odd(same: Sequence[Card], slots: dict[BusId, str] | None) -> Iterator[Finding]:
    for card in same:
        at = called(card.bus_id, card.uuid, slots)
        model = catalogue.model_of(card.device_id)
        if model and not _agrees(model.name, card.name):
            wanted = f"{model.name}, by its PCI id 10de:{card.device_id}"
            cause = "a VBIOS of another card, or a model that shares the PCI id"
            yield Finding(at, "warn", card.name, wanted, cause, "compare it with the label on the card", "catalogue")
        for words, key in (("VBIOS", "vbios"), ("memory MiB", "memory_mib"), ("power limit at most, W", "power_max_w")):
            seen = getattr(card, key)
            usual, number = Counter(getattr(other, key) for other in same).most_common(1)[0]
            if seen != usual and number > 1:
                fix = "ask the seller; nvidia-smi -q shows all of it"
                yield Finding(at, "warn", f"{words} {seen}", f"{words} {usual}", "", fix, "peers")
        for words, key in (("serial number", "serial"), ("UUID", "uuid")):
            seen = getattr(card, key)
            if seen and [getattr(other, key) for other in same].count(seen) > 1:
                twice = f"{words} {seen} twice"
                yield Finding(at, "fail", twice, "one of its own", "a copied infoROM", "return it", "peers")


def _agrees(known: str, reported: str) -> bool:
    """Whether two names mean the same model, with or without NVIDIA's prefix (since branch 460) and the memory size."""
    first, second = (set(name.replace("-", " ").split()) - {"NVIDIA", "Tesla", "GeForce"} for name in (known, reported))
    return first <= second or second <= first
