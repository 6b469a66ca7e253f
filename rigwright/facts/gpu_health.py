"""The GPU cards from `nvidia-smi -q -x`: identity, wear, and present state."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from xml.etree import ElementTree

from rigwright.core.command import Result, script
from rigwright.core.schema import bus_id
from rigwright.facts import Fact, Unavailable
from rigwright.facts.gpu import ASK, answered, lost, number


@dataclass(frozen=True)
class Errors:
    """Memory errors counted by ECC. None: the card has no counter."""

    corrected: int | None
    uncorrected: int | None


@dataclass(frozen=True)
class Card:
    """One card. None: it does not have the property, or does not report it.

    `lost`: the driver's message for a GPU that it can no longer reach. `unread`: fields with an error instead of a value.
    `generation_host`: the highest PCIe generation of the port above the card. `ecc_since_load` counts since the driver was
    loaded, `ecc_ever` in the lifetime of the card. GPUs before Ampere retire pages, later ones remap rows.
    `throttle_reasons`: why the clocks are lowered now, except for idle and limits. `memory_most_c`: the highest permitted
    memory temperature, degrees Celsius.
    """

    bus_id: str
    uuid: str
    name: str
    serial: str | None = None
    vbios: str | None = None
    part_number: str | None = None
    device_id: str = ""
    subsystem_id: str = ""
    memory_mib: int | None = None
    memory_used_mib: int | None = None
    utilization_percent: int | None = None
    bar1_mib: int | None = None
    width: int | None = None
    width_max: int | None = None
    generation: int | None = None
    generation_max: int | None = None
    generation_host: int | None = None
    replays: int | None = None
    temperature_c: int | None = None
    slowdown_c: int | None = None
    memory_temperature_c: int | None = None
    memory_most_c: int | None = None
    fan_percent: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None
    power_min_w: float | None = None
    power_max_w: float | None = None
    state: str | None = None
    graphics_mhz: int | None = None
    memory_mhz: int | None = None
    graphics_max_mhz: int | None = None
    memory_max_mhz: int | None = None
    mig: bool | None = None
    ecc: bool | None = None
    ecc_next_boot: bool | None = None
    ecc_since_load: Errors = Errors(None, None)
    ecc_ever: Errors = Errors(None, None)
    retired_single_bit: int | None = None
    retired_double_bit: int | None = None
    retirement_pending: bool | None = None
    remapped_corrected: int | None = None
    remapped_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    reset_required: bool | None = None
    throttle_reasons: tuple[str, ...] = ()
    lost: str = ""
    unread: tuple[str, ...] = ()

    @property
    def retired_pages(self) -> int | None:
        """The number of retired pages."""
        return _sum([self.retired_single_bit, self.retired_double_bit])


_NONE = ("", "N/A", "None", "Not Found", "Function Not Found", "Requested functionality has been deprecated")
_BRACKETS = re.compile(r"[\[\]]")
_LOST = ("GPU is lost", "GPU requires reset")
_UNREAD = ("Unknown Error", "ERR!", "Insufficient Permissions", "Uninitialized", "GPU access blocked", *_LOST)
_STATES = {"Yes": True, "Enabled": True, "Active": True, "No": False, "Disabled": False, "Not Active": False}
_THROTTLE_REASONS = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")


class _Reading:
    """The fields of one <gpu> element, and the names of those with an error instead of a value."""

    def __init__(self, gpu: ElementTree.Element) -> None:
        self.gpu = gpu
        self.unread: list[str] = []
        self.lost = ""

    def text(self, *paths: str) -> str | None:
        """The first of these fields with a value."""
        for path in paths:
            word = _BRACKETS.sub("", (self.gpu.findtext(path) or "").strip())
            if word in _NONE or word.startswith("Not Supported"):
                continue
            said = word.removesuffix(".")
            if said in _UNREAD:
                self.unread.append(f"{path.rpartition('/')[2]}: {said}")
                self.lost = self.lost or (said if said in _LOST else "")
                continue
            return word
        return None

    def number(self, *paths: str) -> float | None:
        """A number without its unit. Raises ValueError for other text, also for nan and inf."""
        word = self.text(*paths)
        return None if word is None else number(word.split()[0].removesuffix("x"))

    def digits(self, path: str) -> str:
        """Eight hexadecimal digits in lower case; "" without a value. Raises ValueError for other text."""
        word = self.text(path)
        if word is not None and not re.fullmatch(r"(0x)?[0-9A-Fa-f]{8}", word):
            raise ValueError(f"{path}: {word}")
        return (word or "")[-8:].lower()

    def whole(self, *paths: str) -> int | None:
        """The same, as a whole number."""
        value = self.number(*paths)
        return None if value is None else int(value)

    def yes(self, *paths: str) -> bool | None:
        """True for Yes, Enabled and Active, False for their opposites. Raises ValueError for other words."""
        word = self.text(*paths)
        if word is not None and word not in _STATES:
            raise ValueError(f"{paths[0]}: {word}")
        return None if word is None else _STATES[word]

    def throttle_reasons(self) -> tuple[str, ...]:
        """The throttle reasons that are active; older drivers name the XML element differently."""
        of = ("clocks_event_reason", "clocks_throttle_reason")
        return tuple(name for name in _THROTTLE_REASONS if self.yes(*(f"{one}s/{one}_{name}" for one in of)))

    def errors(self, path: str) -> Errors:
        """Corrected and uncorrected errors: single and double bit totals before Ampere, sums over SRAM and DRAM since."""
        if self.gpu.find(f"{path}/single_bit") is not None:
            return Errors(self.whole(f"{path}/single_bit/total"), self.whole(f"{path}/double_bit/total"))
        names = [one.tag for one in self.gpu.findall(f"{path}/*")]
        bad = [self.whole(f"{path}/{name}") for name in names if "uncorrectable" in name and "threshold" not in name]
        good = [self.whole(f"{path}/{name}") for name in names if name.endswith("_correctable")]
        return Errors(_sum(good), _sum(bad))


def _sum(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


_LINK = "pci/pci_gpu_link_info"
_PAGES = "retired_pages"
_ROWS = "remapped_rows"


def _card(gpu: ElementTree.Element) -> Card:
    one = _Reading(gpu)
    power = "gpu_power_readings" if gpu.find("gpu_power_readings") is not None else "power_readings"
    watts = {key: one.number(f"{power}/{key}_power_limit") for key in ("default", "min", "max")}
    identity = one.text("uuid") or "", one.text("product_name") or ""
    found = Card(
        bus_id(gpu.attrib["id"]),
        *identity,
        serial=one.text("serial"),
        vbios=one.text("vbios_version"),
        part_number=one.text("board_part_number", "gpu_part_number"),
        device_id=one.digits("pci/pci_device_id")[:4],
        subsystem_id=one.digits("pci/pci_sub_system_id"),
        memory_mib=one.whole("fb_memory_usage/total"),
        memory_used_mib=one.whole("fb_memory_usage/used"),
        utilization_percent=one.whole("utilization/gpu_util"),
        bar1_mib=one.whole("bar1_memory_usage/total"),
        width=one.whole(f"{_LINK}/link_widths/current_link_width"),
        width_max=one.whole(f"{_LINK}/link_widths/max_link_width"),
        generation=one.whole(f"{_LINK}/pcie_gen/current_link_gen"),
        generation_max=one.whole(f"{_LINK}/pcie_gen/max_device_link_gen", f"{_LINK}/pcie_gen/max_link_gen"),
        generation_host=one.whole(f"{_LINK}/pcie_gen/max_host_link_gen"),
        replays=one.whole("pci/replay_counter"),
        temperature_c=one.whole("temperature/gpu_temp"),
        slowdown_c=one.whole("temperature/gpu_temp_slow_threshold"),
        memory_temperature_c=one.whole("temperature/memory_temp"),
        memory_most_c=one.whole("temperature/gpu_temp_max_mem_threshold"),
        fan_percent=one.whole("fan_speed"),
        power_w=one.number(*(f"{power}/{key}power_draw" for key in ("", "instant_", "average_"))),
        power_limit_w=one.number(*(f"{power}/{key}power_limit" for key in ("current_", "enforced_", ""))),
        power_default_w=watts["default"],
        power_min_w=watts["min"],
        power_max_w=watts["max"],
        state=one.text("performance_state"),
        graphics_mhz=one.whole("clocks/graphics_clock"),
        memory_mhz=one.whole("clocks/mem_clock"),
        graphics_max_mhz=one.whole("max_clocks/graphics_clock"),
        memory_max_mhz=one.whole("max_clocks/mem_clock"),
        mig=one.yes("mig_mode/current_mig"),
        ecc=one.yes("ecc_mode/current_ecc"),
        ecc_next_boot=one.yes("ecc_mode/pending_ecc"),
        ecc_since_load=one.errors("ecc_errors/volatile"),
        ecc_ever=one.errors("ecc_errors/aggregate"),
        retired_single_bit=one.whole(f"{_PAGES}/multiple_single_bit_retirement/retired_count"),
        retired_double_bit=one.whole(f"{_PAGES}/double_bit_retirement/retired_count"),
        retirement_pending=one.yes(f"{_PAGES}/pending_retirement", f"{_PAGES}/pending_blacklist"),
        remapped_corrected=one.whole(f"{_ROWS}/remapped_row_corr"),
        remapped_uncorrected=one.whole(f"{_ROWS}/remapped_row_unc"),
        remap_pending=one.yes(f"{_ROWS}/remapped_row_pending"),
        remap_failed=one.yes(f"{_ROWS}/remapped_row_failure"),
        reset_required=one.yes("gpu_reset_status/reset_required"),
        throttle_reasons=one.throttle_reasons(),
    )
    return _told(found, one)


def _told(card: Card, reading: _Reading) -> Card:
    """The card of one <gpu> element, with the names of unreadable fields."""
    return replace(card, lost=reading.lost, unread=tuple(dict.fromkeys(reading.unread)))


def _cards(result: Result) -> tuple[Card, ...]:
    text = result.text
    gone = lost(text)
    if "<!ENTITY" in text:
        raise ValueError("an entity in its XML")
    parts = re.findall(r"<nvidia_smi_log>.*?</nvidia_smi_log>", text, re.DOTALL)
    if not parts and "<nvidia_smi_log>" in text:
        raise ValueError("XML that ends in the middle")
    if not parts and not gone:
        said = answered(result).strip().splitlines()
        raise Unavailable(f"nvidia-smi says: {said[0] if said else 'nothing'}")
    try:
        found = [_card(gpu) for part in parts for gpu in ElementTree.fromstring(part).findall("gpu")]
    except ElementTree.ParseError as error:
        raise ValueError(f"XML that cannot be read ({error})") from None
    if len(found) != text.count("<gpu id="):
        raise ValueError("XML that ends in the middle")
    found += [Card(at, "", "", lost=said) for at, said in gone.items()]
    return tuple(sorted(found, key=lambda one: one.bus_id))


_QUERY = """
out=$(ask -q -x); code=$?
printf '%s\\n' "$out" | grep -v -e '<supported_graphics_clock>' -e '^[[:space:]]*$'; exit $code
"""
_LASTING = ("bus_id", "uuid", "name", "serial", "vbios", "part_number", "subsystem_id", "memory_mib", "ecc")


def _lasting(cards: tuple[Card, ...]) -> list[dict[str, object]]:
    """The lasting properties of all cards that are not lost, for the history."""
    return [{key: getattr(one, key) for key in _LASTING} for one in cards if not one.lost]


cards = Fact("gpu_health.cards", script(ASK + _QUERY, timeout_s=60, reads=True), _cards, kept=_lasting)
"""All cards of the driver, also lost ones. The command drops the lists of supported clocks, 90 % of the output."""
