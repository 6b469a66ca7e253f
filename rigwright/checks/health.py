"""The present state of the GPUs: memory errors, throttling, temperature, and Xids in the kernel log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from statistics import median

from rigwright import catalogue
from rigwright.checks import Finding, check, of_symptom
from rigwright.checks.card import WORN_OUT
from rigwright.core.gpu_labels import place
from rigwright.core.schema import BusId
from rigwright.facts import Facts, Unavailable, gpu_health, kernel_log, pci
from rigwright.facts.gpu_health import Card
from rigwright.facts.machine import Past

Slots = dict[BusId, str]
CORRECTED = 1000
"""From this number of corrected memory errors since the driver was loaded the finding is a warning (assumed)."""


def _answering(cards: tuple[Card, ...]) -> tuple[list[Card], str]:
    """The cards that answer or need a reset, and a text about the others. Raises Unavailable when there are none."""
    there = [card for card in cards if not card.lost or card.reset_required]
    if not there:
        raise Unavailable(cards[0].lost if cards else "nvidia-smi tells of no GPU")
    lost = len(cards) - len(there)
    return there, f"; {lost} {'does' if lost == 1 else 'do'} not answer" if lost else ""


@check(gpu_health=True)
def memory(facts: Facts, *, slots: Slots | None = None) -> Iterator[Finding]:
    """No GPU has uncorrected memory errors or a pending page retirement, and all its sensors can be read."""
    gpus, silent = _answering(facts(gpu_health.cards))
    bad = [(card, key, seen) for card in gpus for key, seen in _ailments(card)]
    for card, key, seen in bad:
        at, names = place(card.bus_id, slots), {"INDEX": card.bus_id}
        yield of_symptom(key, at, seen, "none", "host", names=names)
    for card in gpus:
        if card.ecc_ever.uncorrected and not card.ecc_since_load.uncorrected:
            seen = f"{card.ecc_ever.uncorrected} uncorrectable errors before, none since the driver was loaded"
            yield Finding(place(card.bus_id, slots), "info", seen)
    if not bad:
        counting = sum(card.ecc_since_load.uncorrected is not None for card in gpus)
        seen = f"no errors on {counting} GPUs" if counting else "these GPUs have no error counters (no ECC)"
        yield Finding("memory of the GPUs", "pass", f"{seen}{silent}")


def _ailments(card: Card) -> Iterator[tuple[str, str]]:
    """The symptoms of a GPU and their descriptions, the worst first."""
    errors, corrected = card.ecc_since_load, card.ecc_since_load.corrected or 0
    if card.reset_required:
        yield "gpu.reset_required", "needs a reset"
    if card.remap_failed:
        yield "ecc.remap_failed", "a bad row could not be replaced"
    if errors.uncorrected:
        yield "ecc.uncorrectable", f"{errors.uncorrected} uncorrectable and {corrected} corrected errors"
    if card.retirement_pending:
        yield "ecc.retirement_pending", "a bad page is retired at the next reset"
    elif card.remap_pending:
        yield "ecc.remap_pending", "a bad row is replaced at the next reset"
    if (card.retired_pages or 0) >= WORN_OUT:
        yield "ecc.worn_out", f"{card.retired_pages} retired pages"
    if corrected >= CORRECTED and not errors.uncorrected:
        yield "ecc.corrected_many", f"{corrected} corrected errors since the driver was loaded"
    if card.unread:
        yield "gpu.sensor_error", ", ".join(card.unread[:4])


@check(gpu_health=True)
def not_throttled(facts: Facts, *, slots: Slots | None = None) -> Iterator[Finding]:
    """No GPU is throttled by heat or by a power brake. Configured limits and idle clocks do not count."""
    gpus, silent = _answering(facts(gpu_health.cards))
    for card in gpus:
        if card.throttle_reasons:
            key, seen = _brake(card)
            yield of_symptom(key, place(card.bus_id, slots), seen, "full clocks", "host")
    if not any(card.throttle_reasons for card in gpus):
        yield Finding("clocks", "pass", f"nothing slows {len(gpus)} GPUs{silent}")


def _brake(card: Card) -> tuple[str, str]:
    """The symptom of a throttled GPU and its description. If the driver gives no exact reason, the temperature decides."""
    warmth = f" at {card.temperature_c} C" if card.temperature_c is not None else ""
    if "hw_power_brake_slowdown" in card.throttle_reasons:
        return "power.brake", "slowed down by the power supply or the board"
    if "hw_thermal_slowdown" in card.throttle_reasons:
        return "thermal.hardware", f"slowed down by heat{warmth}"
    if "hw_slowdown" in card.throttle_reasons:
        hot = (
            None not in (card.temperature_c, card.slowdown_c)
            and (card.temperature_c or 0) >= (card.slowdown_c or 0) - 5
        )
        return "thermal.hardware" if hot else "power.brake", f"slowed down by its hardware{warmth}"
    return "thermal.software", f"slowed down by the driver{warmth}, for heat"


LOADED_PERCENT = 50
HOTTER_C = 12
"""From this difference to the other GPUs, or to its last good run, a GPU's temperature is a finding (assumed)."""


@check(gpu_health=True)
def heat(facts: Facts, *, earlier: Past | None = None, slots: Slots | None = None) -> Iterator[Finding]:
    """Under load no GPU is much hotter than in its last good run, or than the other GPUs. Idle GPUs are not checked."""
    cards, bus = facts.all(gpu_health.cards, pci.gpus)
    gpus, _ = _answering(cards)
    loaded = [
        card for card in gpus if (card.utilization_percent or 0) >= LOADED_PERCENT and card.temperature_c is not None
    ]
    if not loaded:
        seen = "not judged: no GPU is under load"
        yield Finding("heat", "info", seen, fix="invoke verify again while they work")
        return
    kinds = {card.bus_id: card.device_id for card in bus}
    number = 0
    for card in loaded:
        now = card.temperature_c or 0
        peers = [
            other.temperature_c or 0
            for other in loaded
            if other is not card and kinds.get(other.bus_id) == kinds.get(card.bus_id)
        ]
        findings = [*_hotter(card, now, (earlier.loaded_c or {}).get(card.uuid) if earlier else None, peers, slots)]
        number += len(findings)
        yield from findings
    if not number:
        warmth = [card.temperature_c or 0 for card in loaded]
        yield Finding("heat", "pass", f"{min(warmth)} to {max(warmth)} C on {len(loaded)} GPUs under load")


def _hotter(card: Card, now: int, past: float | None, peers: list[int], slots: Slots | None) -> Iterator[Finding]:
    at = place(card.bus_id, slots)
    if past is not None and now >= past + HOTTER_C:
        seen, wanted = f"{now} C under load, hotter than in its last good run", f"about {past:g} C"
        yield of_symptom("thermal.one_hotter", at, seen, wanted, "past")
    elif peers and now >= median(peers) + HOTTER_C:
        seen, wanted = f"{now} C under load, hotter than its peers", f"about {median(peers):g} C"
        yield of_symptom("thermal.one_hotter", at, seen, wanted, "peers")
    memory, most = card.memory_temperature_c, card.memory_most_c
    if memory is not None and most is not None and memory >= most:
        seen, wanted = f"its memory is at {memory} C", f"below {most} C"
        yield of_symptom("thermal.memory", at, seen, wanted, "host")


def loaded_c(gpus: tuple[Card, ...]) -> dict[str, float]:
    """The temperature of each GPU under load, by UUID, for the baseline."""
    loaded = (card for card in gpus if (card.utilization_percent or 0) >= LOADED_PERCENT and card.uuid)
    return {card.uuid: float(card.temperature_c) for card in loaded if card.temperature_c is not None}


@check(gpu_health=True)
def xids(facts: Facts, *, slots: Slots | None = None) -> Iterator[Finding]:
    """The kernel log has no error of the driver (Xid) since the boot. Each one is reported once, with its count.
    Fatal errors of NVSwitches (SXid) are reported too.

    A past error is a warning; other checks say whether the GPU is still affected. Errors of programs are
    information."""
    lines = facts(kernel_log.kernel)
    counted, switches = _counted(kernel_log.xids(lines)), _counted(kernel_log.fatal_sxids(lines))
    for (bus_id, code), texts in counted.items():
        yield _xid(place(bus_id, slots), bus_id, code, _seen("Xid", code, texts), texts[-1])
    for (bus_id, code), texts in switches.items():
        seen, at = _seen("SXid", code, texts), f"NVSwitch {bus_id}"
        yield of_symptom("fm.sxid_fatal", at, seen, "none", "host", verdict="warn")
    if not counted and not switches:
        yield Finding("Xids", "pass", "none since boot")


def _counted(lines: Iterable[kernel_log.XidLine]) -> dict[tuple[str, int], list[str]]:
    """The texts of each bus id and code, in the order of their first line."""
    texts: dict[tuple[str, int], list[str]] = {}
    for line in lines:
        texts.setdefault((line.bus_id, line.code), []).append(line.text)
    return texts


def _seen(kind: str, code: int, texts: list[str]) -> str:
    return f"{len(texts)} x {kind} {code} since boot: {texts[-1].partition('): ')[2][:110]}"


def _xid(at: str, bus_id: str, code: int, seen: str, text: str) -> Finding:
    names = {"INDEX": bus_id}
    known, symptoms = catalogue.xids().get(code), catalogue.symptoms_in(text)
    if symptoms:
        return of_symptom(symptoms[0].key, at, seen, "none", "host", verdict="warn", names=names)
    if known is None:
        fix = "sudo dmesg shows the lines around it"
        return Finding(at, "warn", seen, "none", "a code that the catalogue does not describe", fix)
    fix = "; ".join((*known.first_steps, known.do)).replace("INDEX", bus_id)
    verdict = "info" if known.application else "warn"
    return Finding(at, verdict, seen, "none", f"{known.name}: {known.meaning}", fix, "host")  # type: ignore[arg-type]
