"""`invoke power.watch`: the readings of GPUs and supplies as text, for a terminal that is redrawn or a file that
grows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from rigwright.core.schema import BusId
from rigwright.features.recorder.checks import clock
from rigwright.features.recorder.facts import HUNG, LOST, Lines, Peak, Recording, Voltage

Slots = Mapping[BusId, str]

REASONS = {
    0x4: "power limit",
    0x8: "hardware",
    0x10: "sync boost",
    0x20: "heat (driver)",
    0x40: "heat",
    0x80: "power brake",
}
"""NVML's bits of the reasons for a lower clock (nvmlClocksThrottleReasons) that are worth a word. Idle and set clocks
are not."""
_STATES = {HUNG: "silent", LOST: "LOST"}
_WIDE = 110
"""From this width on a line has a bar of the power."""
_BAR = 20


class Extremes(Struct):
    """The peaks of a recording that grows: of each GPU and of all together, and the lowest 12 V. `learn` reads only
    what is new."""

    most_w: list[float | None] = field(default_factory=list)
    together: tuple[float, float] | None = None
    """The highest power of all GPUs together, W, and when."""
    lowest: Voltage | None = None
    _rows: int = 0
    _voltages: int = 0

    def learn(self, found: Recording) -> None:
        """Takes the samples that were added since the last call."""
        series, new = found.series, range(self._rows, len(found.series))
        self.most_w = self.most_w or [None] * len(found.gpus)
        for gpu, column in enumerate(series.power_w):
            watts = [column[row] for row in new if not math.isnan(column[row])]
            self.most_w[gpu] = max(
                [*watts, *([self.most_w[gpu] or 0.0] if self.most_w[gpu] is not None else [])], default=None
            )
        highest = found.highest_sum(new)
        if highest and (self.together is None or highest[0] > self.together[0]):
            self.together = highest
        for voltage in found.voltages[self._voltages :]:
            if self.lowest is None or voltage.volts < self.lowest.volts:
                self.lowest = voltage
        self._rows, self._voltages = len(series), len(found.voltages)


class Screen(Struct):
    """Shows the readings: on a terminal as a page that is redrawn in place, elsewhere as a line a second."""

    text: Any
    host: str
    slots: Slots
    _begun: bool = False
    _extremes: Extremes = field(default_factory=Extremes)

    def show(self, lines: Lines) -> None:
        """Shows the readings as they are now."""
        found = lines.recording(name="watch")
        console = self.text.console
        if not console.is_terminal or console.is_dumb_terminal:
            self.text.plain(line(found))
            return
        from rich.control import Control
        from rich.segment import ControlType

        self._extremes.learn(found)
        fancy = console.encoding.startswith("utf")
        made = page(self.host, found, self._extremes, lines.limits_w, self.slots, console.width, fancy)
        erase = Control((ControlType.ERASE_IN_LINE, 0))
        if not self._begun:
            self._begun = True
            console.clear()
        console.control(Control.home())
        for row in made[: max(1, console.height - 1)]:
            self.text.plain(row)
            console.control(erase)


def line(found: Recording) -> str:
    """The readings of a moment in a line."""
    series, last = found.series, len(found.series) - 1
    now = _now(found)
    watts = "/".join(_state_or(found, gpu, last, f"{value:.0f}") for gpu, value in enumerate(now))
    degrees = [column[last] for column in series.temperature_c if not math.isnan(column[last])]
    parts = [f"{watts or '-'} W", f"{sum(value for value in now if not math.isnan(value)):.0f} W together"]
    parts += [f"12 V {found.voltages[-1].volts:.2f} V"] if found.voltages else []
    parts += [f"{max(degrees):.0f} C"] if degrees else []
    parts += [f"Xid {xid.code} on {xid.bus_id}" for xid in found.xids if xid.t > found.last_t - 1.5]
    return f"{clock(found, found.last_t)} {', '.join(parts)}"


def page(
    host: str,
    found: Recording,
    extremes: Extremes,
    limits_w: Sequence[float | None],
    slots: Slots,
    width: int,
    fancy: bool = True,
) -> list[str]:
    """The readings of a moment and their peaks: a head, a line for each GPU, the fans and the Xids. No line is wider
    than `width`."""
    rows = [
        f"{host}  {clock(found, found.last_t, 1)}  {_together(found, extremes.together)}",
        *_sensors(found, extremes.lowest),
        "",
        _heading(found, slots, width),
    ]
    rows += [
        _gpu(found, gpu, extremes.most_w[gpu], limits_w[gpu], slots, width, fancy) for gpu in range(len(found.gpus))
    ]
    if found.without_gpus:
        rows.append(found.without_gpus)
    rows.append("")
    for xid in found.xids[-4:]:
        rows.append(f"{clock(found, xid.t, 1)} Xid {xid.code} on {label(xid.bus_id, slots)}")
    if found.gaps:
        rows.append(f"gaps: {len(found.gaps)}, the longest {max(gap.seconds for gap in found.gaps):.1f} s")
    seconds = found.series.m[-1] - found.series.m[0]
    rows.append(f"{len(found.series)} samples in {seconds:.0f} s, {found.power}; Ctrl-C ends it")
    return [row[: width - 1] for row in rows]


def summary(found: Recording, slots: Slots, width: int) -> list[str]:
    """The peaks of the whole time: a head and a line for each GPU."""
    first, last = clock(found, found.first_t), clock(found, found.last_t)
    highest = found.highest_sum()
    most = f": at most {highest[0]:.0f} W together, at {clock(found, highest[1], 1)}" if highest else ""
    rows = [f"{first} to {last}, {len(found.series)} samples{most}", _peak_heading(found, slots)]
    for gpu in range(len(found.gpus)):
        peak = found.peak(gpu)
        at = f" at {clock(found, peak.most_w_t, 1)}" if peak.most_w_t is not None else ""
        name = label(found.gpus[gpu].bus_id, slots) or f"GPU {gpu}"
        rows.append(
            f"{name:<{_name_width(found, slots)}} {_number(peak.mean_w, 6)} {_number(peak.most_w, 6)}{at:<14} "
            f"{_number(peak.hottest_c, 4)} {_number(peak.lowest_sm_mhz, 7)}  {slowed(peak)}".rstrip()
        )
    return [row[: width - 1] for row in rows]


def slowed(peak: Peak) -> str:
    """The reasons for lower clocks, and whether the GPU was lost or silent, in words."""
    words = [word for bit, word in REASONS.items() if peak.reasons & bit]
    return ", ".join([*([_STATES[peak.state]] if peak.state else []), *words])


def label(bus_id: str, slots: Slots) -> str:
    """The position of a GPU, or its bus id."""
    return slots.get(BusId(bus_id), "") or bus_id


def _together(found: Recording, highest: tuple[float, float] | None) -> str:
    known = [value for value in _now(found) if not math.isnan(value)]
    now = sum(known) if known else None
    if now is None and highest is None:
        return "no reading of a GPU"
    text = f"{now or 0:.0f} W together"
    return text + (f" (peak {highest[0]:.0f} W at {clock(found, highest[1], 1)})" if highest else "")


def _sensors(found: Recording, lowest: Voltage | None) -> Iterator[str]:
    """The 12 V rail, the inlet and the fans, as far as they are known."""
    parts = []
    if lowest is not None:
        now = found.voltages[-1].volts
        parts.append(f"12 V {now:.2f} V (lowest {lowest.volts:.2f} V at {clock(found, lowest.t)})")
    if found.sensors and found.sensors.fans:
        speeds = list(found.sensors.fans.values())
        parts.append(
            f"fans {min(speeds):.0f} to {max(speeds):.0f} RPM" if len(speeds) > 1 else f"fan {speeds[0]:.0f} RPM"
        )
    inlets = [
        value for name, value in (found.sensors.temps if found.sensors else {}).items() if "inlet" in name.lower()
    ]
    parts += [f"inlet {inlets[0]:.0f} C"] if inlets else []
    if found.sensors_hung and not parts:
        parts.append("the management controller does not answer")
    if parts:
        yield ", ".join(parts)


def _name_width(found: Recording, slots: Slots) -> int:
    return max([6, *(len(label(gpu.bus_id, slots)) for gpu in found.gpus)])


def _heading(found: Recording, slots: Slots, width: int) -> str:
    name = f"{'GPU':<{_name_width(found, slots)}}"
    bar = f"  {'':<{_BAR}}" if width >= _WIDE else ""
    return f"{name} {'W':>6} {'peak':>6} {'limit':>5}{bar} {'MHz':>5} {'mem':>5} {'C':>4} {'memC':>4}  slowed by"


def _peak_heading(found: Recording, slots: Slots) -> str:
    name = f"{'GPU':<{_name_width(found, slots)}}"
    return f"{name} {'mean W':>6} {'peak W':>6}{'':<14} {'C':>4} {'low MHz':>7}  slowed by"


def _gpu(
    found: Recording, gpu: int, most_w: float | None, limit_w: float | None, slots: Slots, width: int, fancy: bool
) -> str:
    series, last = found.series, len(found.series) - 1
    name = f"{label(found.gpus[gpu].bus_id, slots) or f'GPU {gpu}':<{_name_width(found, slots)}}"
    state = series.state[gpu][last]
    row = _latest(found, gpu, last)
    now = series.power_w[gpu][row]
    watts = f"{_STATES[state]:>6}" if state else _number(now, 6, 1)
    bar = f"  {_bar(now if not state else math.nan, most_w, limit_w, fancy)}" if width >= _WIDE else ""
    values = (series.sm_mhz, series.memory_mhz, series.temperature_c, series.memory_c)
    shown = [math.nan if state else column[gpu][row] for column in values]
    bits = 0 if state else series.reasons[gpu][row]
    why = ", ".join(word for bit, word in REASONS.items() if bits & bit)
    return (
        f"{name} {watts} {_number(most_w, 6, 1)} {_number(limit_w, 5)}{bar} {_number(shown[0], 5)} {_number(shown[1], 5)} "
        f"{_number(shown[2], 4)} {_number(shown[3], 4)}  {why}"
    ).rstrip()


def _now(found: Recording) -> list[float]:
    """The watts of each GPU, of its last sample within a second; NaN for one that is lost or silent."""
    last = len(found.series) - 1
    return [
        math.nan if found.series.state[gpu][last] else column[_latest(found, gpu, last)]
        for gpu, column in enumerate(found.series.power_w)
    ]


def _latest(found: Recording, gpu: int, last: int) -> int:
    """The last sample of a GPU within a second: a single tick may have none."""
    column = found.series.power_w[gpu]
    return next((row for row in range(last, max(-1, last - int(found.hz)), -1) if not math.isnan(column[row])), last)


def _bar(now: float, most: float | None, limit_w: float | None, fancy: bool) -> str:
    """A bar of the power: up to the limit, or the peak if that is higher. The peak is marked."""
    full = max(limit_w or 0, most or 0, 1)
    filled = 0 if math.isnan(now) else round(_BAR * now / full)
    cells = [("█" if fancy else "#") if at < filled else ("·" if fancy else ".") for at in range(_BAR)]
    if most is not None:
        cells[min(_BAR - 1, max(0, round(_BAR * most / full) - 1))] = "▌" if fancy else "|"
    return "".join(cells)


def _number(value: float | None, width: int, decimals: int = 0) -> str:
    return f"{'-':>{width}}" if value is None or math.isnan(value) else f"{value:>{width}.{decimals}f}"


def _state_or(found: Recording, gpu: int, last: int, text: str) -> str:
    state = found.series.state[gpu][last]
    return _STATES[state] if state else "-" if text == "nan" else text
