"""The condition of the GPU cards: memory wear, and whether cards of one model are alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from rigwright import catalogue
from rigwright.catalogue import Rig
from rigwright.catalogue.gpus import setting_names
from rigwright.checks import AGAIN, Finding, Verdict, check
from rigwright.core.desired import Ecc
from rigwright.core.gpu_labels import gpu_label, place
from rigwright.core.numbers import count
from rigwright.core.schema import BusId
from rigwright.facts import Facts
from rigwright.facts.gpu import health as gpu_health, topology
from rigwright.facts.gpu.health import Card

WORN_OUT = 60
"""From this number of retired pages a card should be returned; the maximum is 64 (NVIDIA's page retirement; azurehpc
752)."""
_RETIRING = ("Kepler", "Maxwell", "Pascal", "Volta", "Turing")
"""Architectures that retire a bad page of the memory; later ones replace a bad row (NVIDIA, dynamic page retirement and
GPU memory error management)."""


def remaps_rows(card: Card) -> bool | None:
    """Whether the GPU replaces bad rows of its memory (True) or retires pages (False); None if that is not known."""
    if card.remapped_uncorrected is not None or card.remap_pending is not None or card.remap_failed is not None:
        return True
    if card.retired_double_bit is not None or card.retirement_pending is not None:
        return False
    model = catalogue.model_of(card.device_id)
    return model.architecture not in _RETIRING if model else None


@check(follows=("gpu.", "ecc."))
def memory_worn(facts: Facts, *, slots: dict[BusId, str] | None = None) -> Iterator[Finding]:
    """No card's memory ever had an uncorrected error, a retired page or a remapped row."""
    for card in facts(gpu_health.cards):
        at = gpu_label(card.bus_id, card.uuid, slots)
        if card.lost:
            yield Finding(at, "unknown", card.lost, "an answer", "", "power the machine off and on, then run it again")
        else:
            yield _memory(at, card)


def _memory(at: str, card: Card) -> Finding:
    retired = card.retired_pages or 0
    rows = (card.remapped_corrected or 0) + (card.remapped_uncorrected or 0)
    waiting = ["a page waits to be retired"] if card.retirement_pending else []
    waiting += ["a row waits to be replaced"] if card.remap_pending else []
    counted = card.ecc_ever.uncorrected
    numbers = ((counted or 0, "uncorrected error"), (retired, "retired page"), (rows, "remapped row"))
    problems = [count(number, word) for number, word in numbers if number]
    problems += waiting
    problems += ["a bad row could not be replaced"] if card.remap_failed else []
    section = {True: ",ROW_REMAPPER", False: ",PAGE_RETIREMENT", None: ""}[remaps_rows(card)]
    shown = f"nvidia-smi -q -i {card.bus_id} -d ECC{section}"
    if not problems and counted is None and card.retired_double_bit is None and card.remapped_uncorrected is None:
        seen = "no error counters (no ECC)" if not card.ecc else "its error counters are not reported"
        return Finding(at, "unknown" if card.ecc else "info", seen, "", "", shown)
    if not problems:
        return Finding(at, "pass", f"no uncorrected errors, no {_PARTS[remaps_rows(card)]}")
    over = card.remap_failed or retired >= WORN_OUT
    verdict: Verdict = "fail" if over or waiting else "warn"
    fix = "return it" if over else f"sudo reboot, then {shown}: the counts must not grow within a day of load"
    return Finding(at, verdict, ", ".join(problems), "none ever", "worn or damaged memory", fix)


_PARTS = {True: "remapped rows", False: "retired pages", None: "retired pages or remapped rows"}


@check(follows=("gpu.",))
def alike(facts: Facts, *, slots: dict[BusId, str] | None = None) -> Iterator[Finding]:
    """Cards of one model have the same memory and power range, unique serial numbers and UUIDs, and the name that
    belongs to their PCI id. card.equal compares their VBIOS versions."""
    groups: dict[str, list[Card]] = {}
    for card in facts(gpu_health.cards):
        if not card.lost:
            groups.setdefault(card.name, []).append(card)
    for name, same in groups.items():
        odd = list(_odd(same, slots))
        yield from odd
        if not odd:
            vbios = ", ".join(sorted({card.vbios or "unknown" for card in same}))
            yield Finding(f"{len(same)} x {name}", "pass", f"alike; VBIOS {vbios}")


def _odd(same: Sequence[Card], slots: dict[BusId, str] | None) -> Iterator[Finding]:
    for card in same:
        at = gpu_label(card.bus_id, card.uuid, slots)
        model = catalogue.model_of(card.device_id)
        if model and model.described and not _agrees(model.name, card.name):
            wanted = f"{model.name}, by its PCI id 10de:{card.device_id}"
            cause = "a VBIOS of another card, or a model that shares the PCI id"
            yield Finding(at, "warn", card.name, wanted, cause, "compare it with the label on the card", "catalogue")
        for words, key in (("memory MiB", "memory_mib"), ("power limit at most, W", "power_max_w")):
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


class _Property(Struct, frozen=True):
    """A property that GPUs of one model should share: its values by bus id, and cause and fix of a difference.
    `of_board`: only boards with the same subsystem id are compared."""

    values: Mapping[str, str]
    cause: str
    fix: str
    of_board: bool = False


@check(follows=("gpu.", "nvlink.", "fm.", "pcie.", "bios."))
def equal(
    facts: Facts, *, rig: Rig | None = None, slots: dict[BusId, str] | None = None, ecc: Ecc | None = None
) -> Iterator[Finding]:
    """GPUs of one model have the same number of active NVLinks, BAR1 size, PCIe lanes and ECC mode, and boards of one
    maker the same VBIOS. The most frequent value is expected; if two values are equally frequent, as with two GPUs,
    each GPU is named.

    nvlink.up and pcie.links judge NVLinks and lanes that the rig describes, gpu.ecc_in_force the ECC modes of the
    inventory. NVLinks are not compared if a GPU is lost or uses MIG."""
    links, cards = facts.all(topology.nvlinks, gpu_health.cards)
    there = [card for card in cards if not card.lost]
    up = Counter(link.uuid for link in links if link.gb_s is not None)
    properties = (
        _Property(
            {card.bus_id: _links(up[card.uuid]) for card in there}
            if rig is None and len(there) == len(cards) and not any(card.mig for card in there)
            else {},
            "its links did not come up, or it has no bridge (which is right where only some of the GPUs are bridged)",
            "nvidia-smi nvlink -s -i INDEX; sudo dmesg | grep -e Xid -e NVLink; with NVSwitches restart "
            "nvidia-fabricmanager "
            "and reset all GPUs; else reboot, then reseat the GPU or its bridge; if the machine is built so, invoke "
            "init "
            "writes a rig for it, and the rig then decides",
        ),
        _Property(
            {card.bus_id: f"BAR1 {card.bar1_mib} MiB" for card in there if card.bar1_mib},
            "Resizable BAR or Above 4G Decoding reached only some of the GPUs, or a VBIOS is older",
            "firmware: Above 4G Decoding and Resizable BAR on for all slots; lspci -vv -s INDEX | grep Region",
        ),
        _Property(
            {
                card.bus_id: f"PCIe x{card.width_max}"
                for card in there
                if card.width_max and _has_all_lanes(rig, (slots or {}).get(BusId(card.bus_id), ""))
            },
            "a slot with fewer lanes, a riser, or a contact of the card that does not connect",
            "sudo lspci -vv -s INDEX | grep Lnk; reseat the card, try another slot or riser",
        ),
        _Property(
            {card.bus_id: f"VBIOS {card.vbios}" for card in there if card.vbios},
            "cards of different dates, or a changed VBIOS",
            "nvidia-smi -q -i INDEX | grep -e VBIOS -e Part; ask the seller or the manufacturer; do not flash it "
            "yourself",
            of_board=True,
        ),
        _Property(
            {
                card.bus_id: f"ECC {'on' if card.ecc else 'off'}"
                for card in there
                if card.ecc is not None and not (ecc and ecc.of(*_names(card, slots)) is not None)
            },
            "the mode was changed on some of the GPUs; memory and speed differ with it",
            "sudo nvidia-smi -i INDEX -e 1 (or -e 0), then sudo reboot",
        ),
    )
    groups: dict[str, list[Card]] = {}
    for card in there:
        groups.setdefault(card.device_id or card.name, []).append(card)
    for same in groups.values():
        boards: dict[str, list[Card]] = {}
        for card in same:
            boards.setdefault(card.subsystem_id, []).append(card)
        findings = [
            finding
            for entry in properties
            for compared in (boards.values() if entry.of_board else [same])
            for finding in _differences(compared, entry, slots)
        ]
        yield from findings
        if not findings:
            seen = "nothing to compare it with" if len(same) == 1 else "the same links, BAR1, lanes, VBIOS and ECC mode"
            yield Finding(f"{len(same)} x {same[0].name}", "pass", seen)
    if not there:
        yield Finding("GPUs", "unknown", "none answers", "GPUs of one model are equal", fix=AGAIN)


def _differences(same: Sequence[Card], entry: _Property, slots: dict[BusId, str] | None) -> Iterator[Finding]:
    """A warning for each GPU that does not have the most frequent value; for every GPU if there is none."""
    known = [(card, entry.values[card.bus_id]) for card in same if card.bus_id in entry.values]
    counts = Counter(value for _, value in known).most_common()
    if len(counts) < 2:
        return
    norm = counts[0][0] if counts[0][1] > counts[1][1] else None
    numbers = ", ".join(f"{number} x {value}" for value, number in counts)
    expected = f"{norm}, as {count(counts[0][1], 'other GPU')}" if norm else f"the same on all: {numbers}"
    for card, value in known:
        if value != norm:
            fix = entry.fix.replace("INDEX", card.bus_id)
            yield Finding(place(card.bus_id, slots), "warn", value, expected, entry.cause, fix, "peers")


def _names(card: Card, slots: Mapping[BusId, str] | None) -> tuple[str, ...]:
    return setting_names(catalogue.model_of(card.device_id), card.bus_id, card.uuid, slots)


def _has_all_lanes(rig: Rig | None, position: str) -> bool:
    """Whether a position has as many lanes as most; False if it is or may be a narrow slot of the rig."""
    return rig is None or not rig.lanes or (position in rig.gpus and position not in rig.lanes)


def _links(number: int) -> str:
    return f"{number or 'no'} active NVLinks" if number != 1 else "1 active NVLink"


def _agrees(known: str, reported: str) -> bool:
    """Whether two names mean the same model, with or without NVIDIA's prefix (since branch 460) and the memory size."""
    first, second = (set(name.replace("-", " ").split()) - {"NVIDIA", "Tesla", "GeForce"} for name in (known, reported))
    return first <= second or second <= first
