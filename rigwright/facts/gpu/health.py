"""The GPU cards from `nvidia-smi -q -x`: identity, wear and present state."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from rigwright.core.schema import bus_id
from rigwright.facts import Fact
from rigwright.facts.gpu.nvidia_smi import XML, Reading, power, readings


class Errors(Struct, frozen=True):
    """Memory errors counted by ECC. None: the card has no counter."""

    corrected: int | None
    uncorrected: int | None


_THROTTLE_REASONS = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")


def _digits(reading: Reading, path: str) -> str:
    """Eight hexadecimal digits in lower case; "" without a value. Raises ValueError for other text."""
    word = reading.text(path)
    if word is not None and not re.fullmatch(r"(0x)?[0-9A-Fa-f]{8}", word):
        raise ValueError(f"{path}: {word}")
    return (word or "")[-8:].lower()


def _serial(reading: Reading, path: str) -> str | None:
    """The serial number; a card without one has zeros."""
    word = reading.text(path)
    return None if word is None or not word.strip("0") else word


def _recovery_action(reading: Reading, path: str, *older: str) -> str | None:
    """The step that the driver asks for; `older`: the fields of drivers before 565, which know two steps."""
    known = zip(("Reset", "Drain and Reset"), older, strict=True)
    return reading.text(path) or next((step for step, field_path in known if reading.yes(field_path)), None)


def _throttle_reasons(reading: Reading) -> tuple[str, ...]:
    """The throttle reasons that are active; older drivers name the XML element differently."""
    of = ("clocks_event_reason", "clocks_throttle_reason")
    return tuple(name for name in _THROTTLE_REASONS if reading.yes(*(f"{group}s/{group}_{name}" for group in of)))


def _errors(reading: Reading, path: str) -> Errors:
    """Corrected and uncorrected errors: single and double bit totals before Ampere, sums over SRAM and DRAM since."""
    if f"{path}/single_bit/total" in reading.texts:
        return Errors(reading.whole(f"{path}/single_bit/total"), reading.whole(f"{path}/double_bit/total"))
    below = (key.removeprefix(f"{path}/") for key in reading.texts if key.startswith(f"{path}/"))
    names = [name for name in below if "/" not in name]
    bad = [reading.whole(f"{path}/{name}") for name in names if "uncorrectable" in name and "threshold" not in name]
    good = [reading.whole(f"{path}/{name}") for name in names if name.endswith("_correctable")]
    return Errors(_sum(good), _sum(bad))


def _sum(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _xml(read: Callable[..., object], *paths: str, default: Any = None) -> Any:
    """Registers how a field of Card is read, and the paths of its XML elements, of which the first with a value counts.
    Returns the default of the field."""
    _READERS.append((read, paths))
    return default


_READERS: list[tuple[Callable[..., Any], tuple[str, ...]]] = []
"""How the fields of Card from `serial` on are read, in their order."""

_LINK = "pci/pci_gpu_link_info"
_PAGES = "retired_pages"
_ROWS = "remapped_rows"
_RESET, _DRAIN = "gpu_reset_status", "drain_and_reset_recommended"
_NO_COUNTERS = Errors(None, None)


class Card(Struct, frozen=True):
    """One card. None: it does not have the property, or does not report it.

    `lost`: the driver's message for a GPU that it can no longer reach. `unread`: fields with an error instead of a
    value. `generation_host`: the highest PCIe generation of the port above. `ecc_since_load` counts since the driver
    was loaded, `ecc_ever` in the lifetime of the card. GPUs before Ampere retire pages, later ones remap rows.
    `throttle_reasons`: of lower clocks now, without idle and limits. `memory_most_c`: the highest permitted temperature
    of the memory. Ada and newer have no `slowdown_c` but `tlimit_c`, the degrees below the highest operating
    temperature, and `slowdown_tlimit_c`, its value (-2) from which the hardware slows down. `recovery_action`: the step
    that the driver requests (Reset, Reboot, Drain P2P, Drain and Reset). `channel_repair_pending`,
    `tpc_repair_pending`: a spare part of the memory or of the processors replaces a bad one at the next reset.
    """

    bus_id: str
    uuid: str
    name: str
    serial: str | None = _xml(_serial, "serial")
    vbios: str | None = _xml(Reading.text, "vbios_version")
    part_number: str | None = _xml(Reading.text, "board_part_number", "gpu_part_number")
    device_id: str = _xml(lambda reading, path: _digits(reading, path)[:4], "pci/pci_device_id", default="")
    subsystem_id: str = _xml(_digits, "pci/pci_sub_system_id", default="")
    memory_mib: int | None = _xml(Reading.whole, "fb_memory_usage/total")
    memory_used_mib: int | None = _xml(Reading.whole, "fb_memory_usage/used")
    utilization_percent: int | None = _xml(Reading.whole, "utilization/gpu_util")
    bar1_mib: int | None = _xml(Reading.whole, "bar1_memory_usage/total")
    width: int | None = _xml(Reading.whole, f"{_LINK}/link_widths/current_link_width")
    width_max: int | None = _xml(Reading.whole, f"{_LINK}/link_widths/max_link_width")
    generation: int | None = _xml(Reading.whole, f"{_LINK}/pcie_gen/current_link_gen")
    generation_max: int | None = _xml(
        Reading.whole, f"{_LINK}/pcie_gen/max_device_link_gen", f"{_LINK}/pcie_gen/max_link_gen"
    )
    generation_host: int | None = _xml(Reading.whole, f"{_LINK}/pcie_gen/max_host_link_gen")
    replays: int | None = _xml(Reading.whole, "pci/replay_counter")
    temperature_c: int | None = _xml(Reading.whole, "temperature/gpu_temp")
    slowdown_c: int | None = _xml(Reading.whole, "temperature/gpu_temp_slow_threshold")
    tlimit_c: int | None = _xml(Reading.whole, "temperature/gpu_temp_tlimit")
    slowdown_tlimit_c: int | None = _xml(Reading.whole, "temperature/gpu_temp_slow_tlimit_threshold")
    memory_temperature_c: int | None = _xml(Reading.whole, "temperature/memory_temp")
    memory_most_c: int | None = _xml(Reading.whole, "temperature/gpu_temp_max_mem_threshold")
    fan_percent: int | None = _xml(Reading.whole, "fan_speed")
    power_w: float | None = _xml(Reading.number, *power("power_draw", "instant_power_draw", "average_power_draw"))
    power_limit_w: float | None = _xml(
        Reading.number, *power("current_power_limit", "enforced_power_limit", "power_limit")
    )
    power_default_w: float | None = _xml(Reading.number, *power("default_power_limit"))
    power_min_w: float | None = _xml(Reading.number, *power("min_power_limit"))
    power_max_w: float | None = _xml(Reading.number, *power("max_power_limit"))
    state: str | None = _xml(Reading.text, "performance_state")
    graphics_mhz: int | None = _xml(Reading.whole, "clocks/graphics_clock")
    memory_mhz: int | None = _xml(Reading.whole, "clocks/mem_clock")
    graphics_max_mhz: int | None = _xml(Reading.whole, "max_clocks/graphics_clock")
    memory_max_mhz: int | None = _xml(Reading.whole, "max_clocks/mem_clock")
    mig: bool | None = _xml(Reading.yes, "mig_mode/current_mig")
    ecc: bool | None = _xml(Reading.yes, "ecc_mode/current_ecc")
    ecc_next_boot: bool | None = _xml(Reading.yes, "ecc_mode/pending_ecc")
    ecc_since_load: Errors = _xml(_errors, "ecc_errors/volatile", default=_NO_COUNTERS)
    ecc_ever: Errors = _xml(_errors, "ecc_errors/aggregate", default=_NO_COUNTERS)
    retired_single_bit: int | None = _xml(Reading.whole, f"{_PAGES}/multiple_single_bit_retirement/retired_count")
    retired_double_bit: int | None = _xml(Reading.whole, f"{_PAGES}/double_bit_retirement/retired_count")
    retirement_pending: bool | None = _xml(Reading.yes, f"{_PAGES}/pending_retirement", f"{_PAGES}/pending_blacklist")
    remapped_corrected: int | None = _xml(Reading.whole, f"{_ROWS}/remapped_row_corr")
    remapped_uncorrected: int | None = _xml(Reading.whole, f"{_ROWS}/remapped_row_unc")
    remap_pending: bool | None = _xml(Reading.yes, f"{_ROWS}/remapped_row_pending")
    remap_failed: bool | None = _xml(Reading.yes, f"{_ROWS}/remapped_row_failure")
    channel_repair_pending: bool | None = _xml(Reading.yes, "ecc_errors/channel_repair_pending")
    tpc_repair_pending: bool | None = _xml(Reading.yes, "ecc_errors/tpc_repair_pending")
    recovery_action: str | None = _xml(
        _recovery_action, "gpu_recovery_action", f"{_RESET}/reset_required", f"{_RESET}/{_DRAIN}"
    )
    throttle_reasons: tuple[str, ...] = _xml(_throttle_reasons, default=())
    lost: str = ""
    unread: tuple[str, ...] = ()

    @property
    def retired_pages(self) -> int | None:
        """The number of retired pages."""
        return _sum([self.retired_single_bit, self.retired_double_bit])

    @property
    def slowdown_margin_c(self) -> int | None:
        """The degrees below the temperature at which the hardware slows the GPU down; negative above it."""
        if self.tlimit_c is not None and self.slowdown_tlimit_c is not None:
            return self.tlimit_c - self.slowdown_tlimit_c
        if self.temperature_c is not None and self.slowdown_c is not None:
            return self.slowdown_c - self.temperature_c
        return None


def card(at: str, texts: Mapping[str, str]) -> Card:
    """The card with this bus id and these texts by path. Raises ValueError for a value that is not understood."""
    return _card(Reading(bus_id(at), texts))


def _card(reading: Reading) -> Card:
    identity = reading.bus_id, reading.text("uuid") or "", reading.text("product_name") or ""
    values = {name: read(reading, *paths) for name, (read, paths) in zip(_NAMES, _READERS, strict=False)}
    return Card(*identity, **values, lost=reading.lost, unread=tuple(dict.fromkeys(reading.unread)))


_NAMES = Card.__struct_fields__[3:]
_LASTING = ("bus_id", "uuid", "name", "serial", "vbios", "part_number", "subsystem_id", "memory_mib", "ecc")


def _lasting(cards: tuple[Card, ...]) -> list[dict[str, object]]:
    """The lasting properties of all cards that are not lost, for the history."""
    return [{key: getattr(card, key) for key in _LASTING} for card in cards if not card.lost]


cards = Fact(
    "gpu_health.cards",
    XML,
    lambda result: tuple(sorted(map(_card, readings(result)), key=lambda card: card.bus_id)),
    kept=_lasting,
)
"""All cards of the driver, also lost ones."""
