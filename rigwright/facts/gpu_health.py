"""The GPU cards from `nvidia-smi -q -x`: identity, wear, and present state."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import field, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from rigwright.core import host_text, lazy_re
from rigwright.core.command import Result
from rigwright.core.lazy_dataclasses import dataclass
from rigwright.core.once import once
from rigwright.core.schema import bus_id
from rigwright.facts import Fact, Unavailable, smi_xml
from rigwright.facts.gpu import XML, answered, lost, number

if TYPE_CHECKING:
    from xml.etree import ElementTree


@dataclass(frozen=True)
class Errors:
    """Memory errors counted by ECC. None: the card has no counter."""

    corrected: int | None
    uncorrected: int | None


_NONE = ("", "N/A", "None", "Not Found", "Function Not Found", "Requested functionality has been deprecated")
_BRACKETS = lazy_re.compile(r"[\[\]]")
_LOST = ("GPU is lost", "GPU requires reset")
_UNREAD = ("Unknown Error", "ERR!", "Insufficient Permissions", "Uninitialized", "GPU access blocked", *_LOST)
_STATES = {"Yes": True, "Enabled": True, "Active": True, "No": False, "Disabled": False, "Not Active": False}
_THROTTLE_REASONS = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")


@lru_cache(maxsize=4096)
def _word(text: str) -> tuple[str | None, str]:
    """The value in the text of a field, None without one; and the error that stands in its place."""
    word = text.strip()
    word = _BRACKETS.sub("", word) if "[" in word or "]" in word else word
    if word in _NONE or word.startswith("Not Supported"):
        return None, ""
    problem = word.removesuffix(".")
    return (None, problem) if problem in _UNREAD else (word, "")


@lru_cache(maxsize=4096)
def _number(word: str) -> float:
    """A number without its unit. Raises ValueError for other text, also for nan and inf."""
    return number(word.split()[0].removesuffix("x"))


_LONGEST_KEPT = 100
"""Characters of a text whose meaning is kept; most are the same for all GPUs."""


class _Reading:
    """The fields of one <gpu> element by path, and the names of those with an error instead of a value."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts
        self.unread: list[str] = []
        self.lost = ""

    def text(self, *paths: str) -> str | None:
        """The first of these fields with a value."""
        for path in paths:
            text = self._texts.get(path, "")
            word, problem = _word(text) if len(text) <= _LONGEST_KEPT else _word.__wrapped__(text)
            if problem:
                self.unread.append(f"{path.rpartition('/')[2]}: {problem}")
                self.lost = self.lost or (problem if problem in _LOST else "")
            if word is not None:
                return word
        return None

    def number(self, *paths: str) -> float | None:
        """A number without its unit. Raises ValueError for other text, also for nan and inf."""
        word = self.text(*paths)
        if word is None:
            return None
        return _number(word) if len(word) <= _LONGEST_KEPT else _number.__wrapped__(word)

    def digits(self, path: str) -> str:
        """Eight hexadecimal digits in lower case; "" without a value. Raises ValueError for other text."""
        word = self.text(path)
        if word is not None and not re.fullmatch(r"(0x)?[0-9A-Fa-f]{8}", word):
            raise ValueError(f"{path}: {word}")
        return (word or "")[-8:].lower()

    def device_id(self, path: str) -> str:
        """The four digits of the device."""
        return self.digits(path)[:4]

    def whole(self, *paths: str) -> int | None:
        """A whole number without its unit."""
        value = self.number(*paths)
        return None if value is None else int(value)

    def yes(self, *paths: str) -> bool | None:
        """True for Yes, Enabled and Active, False for their opposites. Raises ValueError for other words."""
        word = self.text(*paths)
        if word is not None and word not in _STATES:
            raise ValueError(f"{paths[0]}: {word}")
        return None if word is None else _STATES[word]

    def serial(self, path: str) -> str | None:
        """The serial number; a card without one has zeros."""
        word = self.text(path)
        return None if word is None or not word.strip("0") else word

    def recovery_action(self, path: str, *older: str) -> str | None:
        """The step that the driver asks for; `older`: the fields of drivers before 565, which know two steps."""
        known = zip(("Reset", "Drain and Reset"), older, strict=True)
        return self.text(path) or next((step for step, field_path in known if self.yes(field_path)), None)

    def throttle_reasons(self) -> tuple[str, ...]:
        """The throttle reasons that are active; older drivers name the XML element differently."""
        of = ("clocks_event_reason", "clocks_throttle_reason")
        return tuple(name for name in _THROTTLE_REASONS if self.yes(*(f"{group}s/{group}_{name}" for group in of)))

    def errors(self, path: str) -> Errors:
        """Corrected and uncorrected errors: single and double bit totals before Ampere, sums over SRAM and DRAM since."""
        if f"{path}/single_bit" in self._texts:
            return Errors(self.whole(f"{path}/single_bit/total"), self.whole(f"{path}/double_bit/total"))
        below = (key.removeprefix(f"{path}/") for key in self._texts if key.startswith(f"{path}/"))
        names = [name for name in below if "/" not in name]
        bad = [self.whole(f"{path}/{name}") for name in names if "uncorrectable" in name and "threshold" not in name]
        good = [self.whole(f"{path}/{name}") for name in names if name.endswith("_correctable")]
        return Errors(_sum(good), _sum(bad))


def _sum(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _xml(read: Callable[..., object], *paths: str, default: Any = None) -> Any:
    """A field of Card: the method of _Reading that reads it, and the paths of its XML elements, the first with a value counts."""
    return field(default=default, metadata={"read": read, "paths": paths})


def _power(*names: str) -> tuple[str, ...]:
    """The paths of power readings; drivers before 530 name the group differently."""
    return tuple(f"{group}/{name}" for group in ("gpu_power_readings", "power_readings") for name in names)


_LINK = "pci/pci_gpu_link_info"
_PAGES = "retired_pages"
_ROWS = "remapped_rows"
_RESET, _DRAIN = "gpu_reset_status", "drain_and_reset_recommended"
_NO_COUNTERS = Errors(None, None)


@dataclass(frozen=True)
class Card:
    """One card. None: it does not have the property, or does not report it.

    `lost`: the driver's message for a GPU that it can no longer reach. `unread`: fields with an error instead of a value.
    `generation_host`: the highest PCIe generation of the port above the card. `ecc_since_load` counts since the driver was
    loaded, `ecc_ever` in the lifetime of the card. GPUs before Ampere retire pages, later ones remap rows.
    `throttle_reasons`: why the clocks are lowered now, except for idle and limits. `memory_most_c`: the highest permitted
    memory temperature, degrees Celsius. Ada and newer have no `slowdown_c` but `tlimit_c`, the degrees that are left to the
    highest operating temperature, and `slowdown_tlimit_c`, the value (-2) at which the hardware slows them down.
    `recovery_action`: the step that the driver asks for, in its words (Reset, Reboot, Drain P2P, Drain and Reset); None: none.
    `channel_repair_pending`, `tpc_repair_pending`: a spare part of the memory or of the processors replaces a bad one at the
    next reset.
    """

    bus_id: str
    uuid: str
    name: str
    serial: str | None = _xml(_Reading.serial, "serial")
    vbios: str | None = _xml(_Reading.text, "vbios_version")
    part_number: str | None = _xml(_Reading.text, "board_part_number", "gpu_part_number")
    device_id: str = _xml(_Reading.device_id, "pci/pci_device_id", default="")
    subsystem_id: str = _xml(_Reading.digits, "pci/pci_sub_system_id", default="")
    memory_mib: int | None = _xml(_Reading.whole, "fb_memory_usage/total")
    memory_used_mib: int | None = _xml(_Reading.whole, "fb_memory_usage/used")
    utilization_percent: int | None = _xml(_Reading.whole, "utilization/gpu_util")
    bar1_mib: int | None = _xml(_Reading.whole, "bar1_memory_usage/total")
    width: int | None = _xml(_Reading.whole, f"{_LINK}/link_widths/current_link_width")
    width_max: int | None = _xml(_Reading.whole, f"{_LINK}/link_widths/max_link_width")
    generation: int | None = _xml(_Reading.whole, f"{_LINK}/pcie_gen/current_link_gen")
    generation_max: int | None = _xml(
        _Reading.whole, f"{_LINK}/pcie_gen/max_device_link_gen", f"{_LINK}/pcie_gen/max_link_gen"
    )
    generation_host: int | None = _xml(_Reading.whole, f"{_LINK}/pcie_gen/max_host_link_gen")
    replays: int | None = _xml(_Reading.whole, "pci/replay_counter")
    temperature_c: int | None = _xml(_Reading.whole, "temperature/gpu_temp")
    slowdown_c: int | None = _xml(_Reading.whole, "temperature/gpu_temp_slow_threshold")
    tlimit_c: int | None = _xml(_Reading.whole, "temperature/gpu_temp_tlimit")
    slowdown_tlimit_c: int | None = _xml(_Reading.whole, "temperature/gpu_temp_slow_tlimit_threshold")
    memory_temperature_c: int | None = _xml(_Reading.whole, "temperature/memory_temp")
    memory_most_c: int | None = _xml(_Reading.whole, "temperature/gpu_temp_max_mem_threshold")
    fan_percent: int | None = _xml(_Reading.whole, "fan_speed")
    power_w: float | None = _xml(_Reading.number, *_power("power_draw", "instant_power_draw", "average_power_draw"))
    power_limit_w: float | None = _xml(
        _Reading.number, *_power("current_power_limit", "enforced_power_limit", "power_limit")
    )
    power_default_w: float | None = _xml(_Reading.number, *_power("default_power_limit"))
    power_min_w: float | None = _xml(_Reading.number, *_power("min_power_limit"))
    power_max_w: float | None = _xml(_Reading.number, *_power("max_power_limit"))
    state: str | None = _xml(_Reading.text, "performance_state")
    graphics_mhz: int | None = _xml(_Reading.whole, "clocks/graphics_clock")
    memory_mhz: int | None = _xml(_Reading.whole, "clocks/mem_clock")
    graphics_max_mhz: int | None = _xml(_Reading.whole, "max_clocks/graphics_clock")
    memory_max_mhz: int | None = _xml(_Reading.whole, "max_clocks/mem_clock")
    mig: bool | None = _xml(_Reading.yes, "mig_mode/current_mig")
    ecc: bool | None = _xml(_Reading.yes, "ecc_mode/current_ecc")
    ecc_next_boot: bool | None = _xml(_Reading.yes, "ecc_mode/pending_ecc")
    ecc_since_load: Errors = _xml(_Reading.errors, "ecc_errors/volatile", default=_NO_COUNTERS)
    ecc_ever: Errors = _xml(_Reading.errors, "ecc_errors/aggregate", default=_NO_COUNTERS)
    retired_single_bit: int | None = _xml(_Reading.whole, f"{_PAGES}/multiple_single_bit_retirement/retired_count")
    retired_double_bit: int | None = _xml(_Reading.whole, f"{_PAGES}/double_bit_retirement/retired_count")
    retirement_pending: bool | None = _xml(_Reading.yes, f"{_PAGES}/pending_retirement", f"{_PAGES}/pending_blacklist")
    remapped_corrected: int | None = _xml(_Reading.whole, f"{_ROWS}/remapped_row_corr")
    remapped_uncorrected: int | None = _xml(_Reading.whole, f"{_ROWS}/remapped_row_unc")
    remap_pending: bool | None = _xml(_Reading.yes, f"{_ROWS}/remapped_row_pending")
    remap_failed: bool | None = _xml(_Reading.yes, f"{_ROWS}/remapped_row_failure")
    channel_repair_pending: bool | None = _xml(_Reading.yes, "ecc_errors/channel_repair_pending")
    tpc_repair_pending: bool | None = _xml(_Reading.yes, "ecc_errors/tpc_repair_pending")
    recovery_action: str | None = _xml(
        _Reading.recovery_action, "gpu_recovery_action", f"{_RESET}/reset_required", f"{_RESET}/{_DRAIN}"
    )
    throttle_reasons: tuple[str, ...] = _xml(_Reading.throttle_reasons, default=())
    lost: str = ""
    unread: tuple[str, ...] = ()

    @property
    def retired_pages(self) -> int | None:
        """The number of retired pages."""
        return _sum([self.retired_single_bit, self.retired_double_bit])

    @property
    def slowdown_margin_c(self) -> int | None:
        """The degrees that are left to the temperature at which the hardware slows the GPU down; negative: past it."""
        if self.tlimit_c is not None and self.slowdown_tlimit_c is not None:
            return self.tlimit_c - self.slowdown_tlimit_c
        if self.temperature_c is not None and self.slowdown_c is not None:
            return self.slowdown_c - self.temperature_c
        return None


def card(gpu: ElementTree.Element) -> Card:
    """The card that an XML element <gpu> describes. Raises ValueError for a value that is not understood."""
    return _card(gpu.attrib["id"], smi_xml.texts(gpu))


def _card(at: str, texts: Mapping[str, str]) -> Card:
    """The card whose <gpu> element has this id and these texts by path. Raises ValueError."""
    reading = _Reading(texts)
    identity = bus_id(at), reading.text("uuid") or "", reading.text("product_name") or ""
    values = {name: read(reading, *paths) for name, read, paths in _readers()}
    return Card(*identity, **values, lost=reading.lost, unread=tuple(dict.fromkeys(reading.unread)))


@once
def _readers() -> tuple[tuple[str, Callable[..., Any], tuple[str, ...]], ...]:
    """The fields of Card that are in the XML, each with what reads it."""
    known = [field for field in fields(Card) if field.metadata]
    return tuple((field.name, field.metadata["read"], field.metadata["paths"]) for field in known)


def _cards(result: Result) -> tuple[Card, ...]:
    text = result.text
    gone = lost(text)
    root = smi_xml.ROOT
    ends = (part.partition(f"<{root}>") for part in text.split(f"</{root}>")[:-1])
    parts = [f"<{root}>{inside}</{root}>" for _, begin, inside in ends if begin]
    if "<!ENTITY" in text:
        raise ValueError("an entity in its XML")
    if len(parts) > smi_xml.MOST_GPUS:
        raise ValueError(f"more than {smi_xml.MOST_GPUS} XML documents")
    if not parts and "<nvidia_smi_log>" in text:
        raise ValueError("XML that ends in the middle")
    if not parts and not gone:
        lines = host_text.lines(answered(result).strip())
        raise Unavailable(f"nvidia-smi says: {lines[0] if lines else 'nothing'}")
    elements = [gpu for part in parts for gpu in smi_xml.gpus(part)]
    if len(elements) != text.count("<gpu id="):
        raise ValueError("XML that ends in the middle")
    if len(elements) > smi_xml.MOST_GPUS:
        raise ValueError(f"more than {smi_xml.MOST_GPUS} GPUs")
    cards = [_card(at, texts) for at, texts in elements]
    cards += [Card(at, "", "", lost=problem) for at, problem in gone.items()]
    return tuple(sorted(cards, key=lambda card: card.bus_id))


LASTING = ("bus_id", "uuid", "name", "serial", "vbios", "part_number", "subsystem_id", "memory_mib", "ecc")
"""The fields of a card that the history records."""


def _lasting(cards: tuple[Card, ...]) -> list[dict[str, object]]:
    """The lasting properties of all cards that are not lost, for the history."""
    return [{key: getattr(card, key) for key in LASTING} for card in cards if not card.lost]


cards = Fact("gpu_health.cards", XML, _cards, kept=_lasting)
"""All cards of the driver, also lost ones."""
