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
    for one in facts(gpu_health.cards):
        at = called(one.bus_id, one.uuid, slots)
        if one.lost:
            yield Finding(at, "unknown", one.lost, "an answer", "", "power the machine off and on, then run it again")
        else:
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
        *(["one is pending retirement"] if waits else []),
        *(["no spare rows are left"] if one.remap_failed else []),
    ]
    if not said and counted is None and one.retired_double_bit is None and one.remapped_uncorrected is None:
        seen = "no error counters (no ECC)" if not one.ecc else "its error counters are not reported"
        return Finding(at, "unknown" if one.ecc else "info", seen, "", "", "nvidia-smi -q -d ECC")
    if not said:
        return Finding(at, "pass", "no uncorrected errors, no retired memory")
    over = one.remap_failed or retired >= WORN_OUT
    verdict: Verdict = "fail" if over or waits else "warn"
    fix = "sudo reboot, then run it again: the count must not grow within a day of load" if not over else "return it"
    return Finding(at, verdict, ", ".join(said), "none ever", "worn or damaged memory", fix)


@check()
def alike(facts: Facts, *, slots: dict[BusId, str] | None = None) -> Iterator[Finding]:
    """Cards of one model have the same VBIOS, memory and power range, unique serial numbers and UUIDs, and are the
    model of their PCI id; a card with another card's VBIOS is not."""
    cards = [one for one in facts(gpu_health.cards) if not one.lost]
    groups: dict[str, list[Card]] = {}
    for one in cards:
        groups.setdefault(one.name, []).append(one)
    for name, same in groups.items():
        odd = list(_odd(same, slots))
        yield from odd
        if not odd:
            vbios = ", ".join(sorted({one.vbios or "VBIOS unknown" for one in same}))
            yield Finding(f"{len(same)} x {name}", "pass", f"alike; VBIOS {vbios}")


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
            yield Finding(at, "warn", one.name, wanted, cause, fix, "catalogue")
        for what, seen, values in (
            ("VBIOS", one.vbios, [other.vbios for other in same]),
            ("memory MiB", one.memory_mib, [other.memory_mib for other in same]),
            ("power limit at most, W", one.power_max_w, [other.power_max_w for other in same]),
        ):
            usual, number = Counter(values).most_common(1)[0]
            if seen != usual and number > 1:
                fix = "ask the seller; nvidia-smi -q shows all of it"
                yield Finding(at, "warn", f"{what} {seen}", f"{what} {usual}", "", fix, "peers")
        for what, seen, all_of_them in (
            ("serial number", one.serial, [other.serial for other in same]),
            ("UUID", one.uuid, [other.uuid for other in same]),
        ):
            if seen and all_of_them.count(seen) > 1:
                yield Finding(at, "fail", f"{what} {seen} twice", "one of its own", "a copied infoROM", "return it", "peers")  # fmt: skip


def _agrees(known: str, told: str) -> bool:
    """Whether two names mean the same model, with or without NVIDIA's prefix (since branch 460) and the memory size."""
    first, second = (set(name.replace("-", " ").split()) - {"NVIDIA", "Tesla", "GeForce"} for name in (known, told))
    return first <= second or second <= first
