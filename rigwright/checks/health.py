"""The present state of the GPUs: memory errors, throttling, temperature, and Xids in the kernel log."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator

from rigwright import catalogue
from rigwright.checks import Finding, check, of_symptom
from rigwright.checks.card import WORN_OUT, remaps_rows
from rigwright.checks.temperatures import HOTTER_C, NEAR_SLOWDOWN_C
from rigwright.core import lazy_re
from rigwright.core.gpu_labels import place
from rigwright.core.schema import BusId
from rigwright.facts import Facts, Unavailable, Unreadable, kernel_log, pci
from rigwright.facts.gpu import health as gpu_health
from rigwright.facts.gpu.health import Card
from rigwright.facts.machine import Past

Slots = dict[BusId, str]
CORRECTED = 1000
"""From this number of corrected memory errors since the driver was loaded the finding is a warning (assumed)."""


def _answering(cards: tuple[Card, ...]) -> tuple[list[Card], str]:
    """The cards that answer or need a reset, and a text about the others. Raises Unavailable if there are none."""
    there = [card for card in cards if not card.lost or card.recovery_action]
    if not there:
        raise Unavailable(cards[0].lost if cards else "nvidia-smi lists no GPU")
    lost = len(cards) - len(there)
    return there, f"; {lost} {'does' if lost == 1 else 'do'} not answer" if lost else ""


@check(gpu_health=True)
def memory(facts: Facts, *, slots: Slots | None = None) -> Iterator[Finding]:
    """No GPU has uncorrected memory errors or a pending page retirement or row remapping, and all sensors can be
    read."""
    gpus, silent = _answering(facts(gpu_health.cards))
    bad = [(card, *ailment) for card in gpus for ailment in _ailments(card)]
    for card, key, seen, fix in bad:
        at, names = place(card.bus_id, slots), {"INDEX": card.bus_id}
        yield of_symptom(key, at, seen, "none", "host", fix=fix, names=names)
    for card in gpus:
        if card.ecc_ever.uncorrected and not card.ecc_since_load.uncorrected:
            seen = f"{card.ecc_ever.uncorrected} uncorrectable errors before, none since the driver was loaded"
            yield Finding(place(card.bus_id, slots), "info", seen)
    if not bad:
        counting = sum(card.ecc_since_load.uncorrected is not None for card in gpus)
        seen = f"no errors on {counting} GPUs" if counting else "these GPUs have no error counters (no ECC)"
        yield Finding("memory of the GPUs", "pass", f"{seen}{silent}")


def _ailments(card: Card) -> Iterator[tuple[str, str, str]]:
    """Symptom, description and fix of each fault of a GPU, worst first; fix "": the catalogue's."""
    errors, corrected = card.ecc_since_load, card.ecc_since_load.corrected or 0
    if card.remap_failed:
        yield "ecc.remap_failed", "a bad row could not be replaced", ""
    if errors.uncorrected:
        seen, rows = f"{errors.uncorrected} uncorrectable and {corrected} corrected errors", remaps_rows(card)
        if rows is None:
            repair, sections = "the bad cell is taken out of use", "ROW_REMAPPER,PAGE_RETIREMENT"
        else:
            repair = "a spare row replaces the bad one" if rows else "the page is retired"
            sections = "ROW_REMAPPER" if rows else "PAGE_RETIREMENT"
        fix = (
            f"restart the program; sudo nvidia-smi -r -i INDEX, or reboot, so that {repair}; nvidia-smi -q -i INDEX -d "
        )
        yield "ecc.uncorrectable", seen, f"{fix}ECC,{sections} shows the counters; if it happens again, return the GPU"
    if card.retirement_pending:
        yield "ecc.retirement_pending", "a bad page is retired at the next reset", ""
    elif card.remap_pending:
        yield "ecc.remap_pending", "a bad row is replaced at the next reset", ""
    if (card.retired_pages or 0) >= WORN_OUT:
        yield "ecc.worn_out", f"{card.retired_pages} retired pages", ""
    if corrected >= CORRECTED and not errors.uncorrected:
        yield "ecc.corrected_many", f"{corrected} corrected errors since the driver was loaded", ""
    if card.unread:
        yield "gpu.sensor_error", ", ".join(card.unread[:4]), ""


@check(gpu_health=True, follows=("gpu.", "ecc.", "nvlink."))
def recovered(facts: Facts, *, slots: Slots | None = None) -> Iterator[Finding]:
    """The driver requests no reset, reboot or drain of a GPU, and no repair of a GPU waits for a reset. A GPU that
    needs a reset still answers nvidia-smi, but no program can use it."""
    gpus, silent = _answering(facts(gpu_health.cards))
    findings = [finding for card in gpus for finding in _recovery(card, place(card.bus_id, slots))]
    yield from findings
    if not findings:
        yield Finding("recovery", "pass", f"{len(gpus)} GPUs need no reset{silent}")


def _recovery(card: Card, at: str) -> Iterator[Finding]:
    step, names = card.recovery_action, {"INDEX": card.bus_id}
    if step == "Reset":
        yield of_symptom("gpu.reset_required", at, "needs a reset", "none", "host", names=names)
    elif step and (known := catalogue.all_recovery_actions().get(step)):
        fix = known.fix.replace("INDEX", card.bus_id)
        yield Finding(at, known.level, f"the driver asks for: {step}", "none", known.cause, fix, "host")
    elif step:
        cause = "a step that the catalogue does not describe"
        fix = "sudo dmesg | grep Xid names the error; stop its programs and sudo reboot"
        yield Finding(at, "fail", f"the driver asks for: {step[:40]}", "none", cause, fix, "host")
    for pending, part in (
        (card.channel_repair_pending, "memory channel"),
        (card.tpc_repair_pending, "processor (TPC)"),
    ):
        if pending:
            cause = "the driver found the part defective and has a spare one, which replaces it at the next reset"
            fix = (
                f"when its programs are done: sudo nvidia-smi -r -i {card.bus_id}, or reboot; then the repair must "
                "not be pending"
            )
            yield Finding(at, "warn", f"the repair of a {part} waits for a reset", "none", cause, fix, "host")


@check(gpu_health=True)
def not_throttled(facts: Facts, *, slots: Slots | None = None) -> Iterator[Finding]:
    """No GPU is throttled by heat or by a power brake. Configured limits and idle clocks do not count."""
    gpus, silent = _answering(facts(gpu_health.cards))
    slowed = [card for card in gpus if card.throttle_reasons or _margin_c(card) <= 0]
    for card in slowed:
        key, seen = _slowdown(card)
        yield of_symptom(key, place(card.bus_id, slots), seen, "full clocks", "host")
    if not slowed:
        yield Finding("clocks", "pass", f"nothing slows {len(gpus)} GPUs{silent}")


def _margin_c(card: Card) -> float:
    return math.inf if card.slowdown_margin_c is None else card.slowdown_margin_c


def _slowdown(card: Card) -> tuple[str, str]:
    """The symptom of a throttled GPU and its description. Without an exact reason, the temperature decides."""
    limit = ""
    if card.slowdown_c is not None:
        limit = f" (slowdown at {card.slowdown_c} C)"
    elif card.tlimit_c is not None:  # Ada and newer
        slowdown = f", slowdown at {card.slowdown_tlimit_c}" if card.slowdown_tlimit_c is not None else ""
        limit = f" (T.Limit {card.tlimit_c} C{slowdown})"
    warmth = f" at {card.temperature_c} C{limit}" if card.temperature_c is not None else ""
    if "hw_power_brake_slowdown" in card.throttle_reasons:
        return "power.brake", "slowed down by the power supply or the board"
    if "hw_thermal_slowdown" in card.throttle_reasons:
        return "thermal.hardware", f"slowed down by heat{warmth}"
    if "hw_slowdown" in card.throttle_reasons:
        key = "thermal.hardware" if _margin_c(card) <= NEAR_SLOWDOWN_C else "power.brake"
        return key, f"slowed down by its hardware{warmth}"
    if _margin_c(card) <= 0:
        return "thermal.hardware", f"hot enough to be slowed down{warmth}"
    return "thermal.software", f"slowed down by the driver{warmth}, for heat"


LOADED_PERCENT = 50
"""From this utilization on a GPU is under load (assumed)."""


@check(gpu_health=True)
def heat(facts: Facts, *, earlier: Past | None = None, slots: Slots | None = None) -> Iterator[Finding]:
    """Under load no GPU is much hotter than in its last good run, or than the other GPUs. Idle GPUs are not checked."""
    cards, bus = facts.all(gpu_health.cards, pci.gpus)
    loaded = _loaded(_answering(cards)[0])
    if not loaded:
        seen = "not judged: no GPU is under load"
        yield Finding("heat", "info", seen, fix="invoke verify again while they work")
        return
    kinds = {device.bus_id: device.device_id for device in bus}
    findings: list[Finding] = []
    for card, now in loaded:
        kind = kinds.get(card.bus_id)
        peers = [degrees for other, degrees in loaded if other is not card and kinds.get(other.bus_id) == kind]
        before = (earlier.loaded_c or {}).get(card.uuid) if earlier else None
        findings += _hotter(card, now, before, peers, place(card.bus_id, slots))
    yield from findings
    if not findings:
        degrees = [now for _, now in loaded]
        yield Finding("heat", "pass", f"{min(degrees)} to {max(degrees)} C on {len(loaded)} GPUs under load")


def _loaded(cards: Iterable[Card]) -> list[tuple[Card, int]]:
    """The GPUs under load, each with its temperature."""
    busy = [card for card in cards if (card.utilization_percent or 0) >= LOADED_PERCENT]
    return [(card, card.temperature_c) for card in busy if card.temperature_c is not None]


def _hotter(card: Card, now: int, past: float | None, peers: list[int], at: str) -> Iterator[Finding]:
    from statistics import median

    if past is not None and now >= past + HOTTER_C:
        seen, wanted = f"{now} C under load, hotter than in its last good run", f"about {past:g} C"
        yield of_symptom("thermal.one_hotter", at, seen, wanted, "past")
    elif peers and now >= median(peers) + HOTTER_C:
        seen, wanted = f"{now} C under load, hotter than its peers", f"about {median(peers):g} C"
        yield of_symptom("thermal.one_hotter", at, seen, wanted, "peers")
    memory, most = card.memory_temperature_c, card.memory_most_c
    if memory is not None and most is not None and memory >= most:
        yield of_symptom("thermal.memory", at, f"its memory is at {memory} C", f"below {most} C", "host")


def loaded_c(gpus: tuple[Card, ...]) -> dict[str, float]:
    """The temperature of each GPU under load, by UUID, for the baseline."""
    return {card.uuid: float(degrees) for card, degrees in _loaded(gpus) if card.uuid}


@check(gpu_health=True, past=True, follows=("gpu.", "ecc.", "nvlink.", "fm.", "pcie.", "thermal.", "power.", "gsp."))
def xids(facts: Facts, *, slots: Slots | None = None) -> Iterator[Finding]:
    """The kernel log has no error of the driver (Xid) since the boot. Each code is reported once per GPU, with its
    count. Fatal errors of NVSwitches (SXid) are reported too.

    A past error is a warning; other checks judge whether the GPU is still affected. The finding says if a GPU was off
    the bus and answers again. Errors of programs are information."""
    lines = facts(kernel_log.kernel)
    errors = kernel_log.xids(lines)
    counted, switches = _counted(errors), _counted(kernel_log.fatal_sxids(lines))
    answering = _answer_again(facts) if any(code == _OFF_BUS for _, code in counted) else frozenset()
    for (bus_id, code), texts in counted.items():
        if code == _OFF_BUS and bus_id in answering:
            minute = next(error.minute for error in reversed(errors) if (error.bus_id, error.code) == (bus_id, code))
            seen = f"was off the bus{f' at {minute}' if minute else ''} and answers again ({len(texts)} x Xid {code})"
            yield Finding(place(bus_id, slots), "warn", seen, "", _BACK_CAUSE, _BACK_FIX, "host")
            continue
        yield xid_finding(place(bus_id, slots), bus_id, code, _seen("Xid", code, texts), texts[-1])
    for (bus_id, code), texts in switches.items():
        seen, at = _seen("SXid", code, texts), f"NVSwitch {bus_id}"
        yield of_symptom("fm.sxid_fatal", at, seen, "none", "host", verdict="warn")
    if not counted and not switches:
        yield Finding("Xids", "pass", "none since boot")


_OFF_BUS = 79
_BACK_CAUSE = (
    "It lost power or its PCIe link since the boot, and may do so again; without a cold boot its state is not known "
    "to be whole."
)
_BACK_FIX = (
    "when its programs are done: a cold boot (sudo poweroff, mains off for 30 seconds); then watch it under load: "
    "sudo dmesg -w | "
    "grep Xid; if it happens again: invoke explain 'Xid 79'"
)


def _answer_again(facts: Facts) -> frozenset[str]:
    """The bus ids of the GPUs that answer the driver and need no reset; empty if the driver does not answer."""
    try:
        return frozenset(card.bus_id for card in facts(gpu_health.cards) if not (card.lost or card.recovery_action))
    except (Unavailable, Unreadable):
        return frozenset()


def _counted(lines: Iterable[kernel_log.XidLine]) -> dict[tuple[str, int], list[str]]:
    """The texts of each bus id and code, in the order of their first line."""
    texts: dict[tuple[str, int], list[str]] = {}
    for line in lines:
        texts.setdefault((line.bus_id, line.code), []).append(line.text)
    return texts


def _seen(kind: str, code: int, texts: list[str]) -> str:
    return f"{len(texts)} x {kind} {code} since boot: {texts[-1].partition('): ')[2][:110]}"


def xid_finding(at: str, bus_id: str, code: int, seen: str, text: str) -> Finding:
    """The finding for an error in the kernel log. `seen`: its text in the finding, `text`: its line of the log."""
    known, symptoms = catalogue.xids().get(code), catalogue.symptoms_in(text)
    if symptoms:
        key, fix = symptoms[0].key, ""
        if _PAGE_RETIRED.search(text):  # GPUs up to Turing write Xid 63 and 64 for pages, later ones for rows
            key = "ecc.retirement_pending" if key == "ecc.remap_pending" else key
            fix = _NOT_RETIRED_FIX if key == "ecc.remap_failed" else ""
        return of_symptom(key, at, seen, "none", "host", verdict="warn", fix=fix, names={"INDEX": bus_id})
    if known is None:
        fix = "sudo dmesg shows the lines around it"
        return Finding(at, "warn", seen, "none", "a code that the catalogue does not describe", fix)
    fix = "; ".join((*known.first_steps, known.do)).replace("INDEX", bus_id)
    verdict = "info" if known.application else "warn"
    return Finding(at, verdict, seen, "none", f"{known.name}: {known.meaning}", fix, "host")  # type: ignore[arg-type]


_PAGE_RETIRED = lazy_re.compile(r"page (?:retire|was retired)", re.IGNORECASE)
_NOT_RETIRED_FIX = (
    "sudo reboot; nvidia-smi -q -i INDEX -d PAGE_RETIREMENT; if a page still waits to be retired, return the GPU"
)
