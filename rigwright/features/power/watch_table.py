"""`invoke power.watch`: the readings as text, for a terminal that is redrawn or a file that grows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from rigwright.core.schema import BusId
from rigwright.features.recorder.checks import clock
from rigwright.features.recorder.facts import HUNG, LOST, Lines, Peak, Recording, Voltage

Slots = Mapping[BusId, str]

REASONS = {
    0x4: "power limit", 0x8: "hardware", 0x10: "sync boost", 0x20: "heat (driver)", 0x40: "heat", 0x80: "power brake",
}  # fmt: skip
"""NVML's bits of the reasons for a lower clock (nvmlClocksThrottleReasons), without idle and set clocks."""
_STATES = {HUNG: "silent", LOST: "LOST"}
_WIDE = 110
"""A terminal with at least so many columns shows a bar of the power."""
_BAR = 20


class Extremes(Struct):
    """The peaks of a growing recording: of each GPU, `together` of all GPUs (W and time), and the lowest 12 V."""

    most_w: list[float | None] = field(default_factory=list)
    together: tuple[float, float] | None = None
    lowest: Voltage | None = None
    _rows: int = 0
    _voltages: int = 0

    def learn(self, recording: Recording) -> None:
        """Takes the samples that were added since the last call."""
        series, new = recording.series, range(self._rows, len(recording.series))
        before = self.most_w or [None] * len(recording.gpus)
        for gpu, column in enumerate(series.power_w):
            watts = [column[row] for row in new if not math.isnan(column[row])]
            most = before[gpu]
            before[gpu] = max([*watts, *([] if most is None else [most])], default=None)
        self.most_w = before
        highest = recording.highest_sum(new)
        if highest and (self.together is None or highest[0] > self.together[0]):
            self.together = highest
        voltages = [*([self.lowest] if self.lowest else []), *recording.voltages[self._voltages :]]
        self.lowest = min(voltages, key=lambda voltage: voltage.volts, default=None)
        self._rows, self._voltages = len(series), len(recording.voltages)


class Screen(Struct):
    """Shows the readings: on a terminal as a page that is redrawn in place, otherwise as one line per call."""

    text: Any
    host: str
    slots: Slots
    _begun: bool = False
    _extremes: Extremes = field(default_factory=Extremes)

    def show(self, lines: Lines) -> None:
        """Shows the current readings."""
        recording = lines.recording(name="watch")
        console = self.text.console
        if not console.is_terminal or console.is_dumb_terminal:
            self.text.plain(line(recording))
            return
        from rich.control import Control
        from rich.segment import ControlType

        self._extremes.learn(recording)
        fancy = console.encoding.startswith("utf")
        rows = page(self.host, recording, self._extremes, lines.limits_w, self.slots, console.width, fancy)
        if not self._begun:
            self._begun = True
            console.clear()
        console.control(Control.home())
        for row in rows[: max(1, console.height - 1)]:
            self.text.plain(row)
            console.control(Control((ControlType.ERASE_IN_LINE, 0)))


def line(recording: Recording) -> str:
    """The current readings in one line."""
    watts = []
    for gpu, value in enumerate(_now(recording)):
        state = recording.series.state[gpu][-1]
        watts.append(_STATES[state] if state else "-" if math.isnan(value) else f"{value:.0f}")
    total = sum(value for value in _now(recording) if not math.isnan(value))
    degrees = [column[-1] for column in recording.series.temperature_c if not math.isnan(column[-1])]
    parts = [f"{'/'.join(watts) or '-'} W", f"{total:.0f} W together"]
    parts += [f"12 V {recording.voltages[-1].volts:.2f} V"] if recording.voltages else []
    parts += [f"{max(degrees):.0f} C"] if degrees else []
    parts += [f"Xid {xid.code} on {xid.bus_id}" for xid in recording.xids if xid.t > recording.last_t - 1.5]
    return f"{clock(recording, recording.last_t)} {', '.join(parts)}"


def page(
    host: str, recording: Recording, extremes: Extremes, limits_w: Sequence[float | None], slots: Slots, width: int,
    fancy: bool = True,
) -> list[str]:  # fmt: skip
    """The current readings and their peaks: a head, a line for each GPU, and the Xids, narrower than `width`."""
    seconds = recording.series.m[-1] - recording.series.m[0]
    bar = f"  {'':<{_BAR}}" if width >= _WIDE else ""
    columns = f"{'W':>6} {'peak':>6} {'limit':>5}{bar} {'MHz':>5} {'mem':>5} {'C':>4} {'memC':>4}  slowed by"
    rows = [
        f"{host}  {clock(recording, recording.last_t, 1)}  {_together(recording, extremes.together)}",
        *_sensors(recording, extremes.lowest),
        "",
        f"{'GPU':<{_name_width(recording, slots)}} {columns}",
    ]
    for gpu in range(len(recording.gpus)):
        rows.append(_gpu(recording, gpu, extremes.most_w[gpu], limits_w[gpu], slots, width, fancy))
    rows += [recording.without_gpus] if recording.without_gpus else []
    rows.append("")
    for xid in recording.xids[-4:]:
        rows.append(f"{clock(recording, xid.t, 1)} Xid {xid.code} on {label(xid.bus_id, slots)}")
    if recording.gaps:
        rows.append(f"gaps: {len(recording.gaps)}, the longest {max(gap.seconds for gap in recording.gaps):.1f} s")
    rows.append(f"{len(recording.series)} samples in {seconds:.0f} s, {recording.power}; Ctrl-C ends it")
    return [row[: width - 1] for row in rows]


def summary(recording: Recording, slots: Slots, width: int) -> list[str]:
    """The peaks of the whole time: a head and a line for each GPU."""
    first, last = clock(recording, recording.first_t), clock(recording, recording.last_t)
    highest = recording.highest_sum()
    most = f": at most {highest[0]:.0f} W together, at {clock(recording, highest[1], 1)}" if highest else ""
    name_width = _name_width(recording, slots)
    rows = [
        f"{first} to {last}, {len(recording.series)} samples{most}",
        f"{'GPU':<{name_width}} {'mean W':>6} {'peak W':>6}{'':<14} {'C':>4} {'low MHz':>7}  slowed by",
    ]
    for gpu in range(len(recording.gpus)):
        peak = recording.peak(gpu)
        at = f" at {clock(recording, peak.most_w_t, 1)}" if peak.most_w_t is not None else ""
        power = f"{_number(peak.mean_w, 6)} {_number(peak.most_w, 6)}{at:<14}"
        others = f"{_number(peak.hottest_c, 4)} {_number(peak.lowest_sm_mhz, 7)}  {slowed(peak)}"
        rows.append(f"{gpu_name(recording, gpu, slots):<{name_width}} {power} {others}".rstrip())
    return [row[: width - 1] for row in rows]


def slowed(peak: Peak) -> str:
    """The reasons for lower clocks, and whether the GPU was lost or silent, in words."""
    state = [_STATES[peak.state]] if peak.state else []
    return ", ".join([*state, *(word for bit, word in REASONS.items() if peak.reasons & bit)])


def label(bus_id: str, slots: Slots) -> str:
    """The position of a GPU, or its bus id."""
    return slots.get(BusId(bus_id), "") or bus_id


def gpu_name(recording: Recording, gpu: int, slots: Slots) -> str:
    """The position of a GPU of a recording, its bus id, or its number."""
    return label(recording.gpus[gpu].bus_id, slots) or f"GPU {gpu}"


def _name_width(recording: Recording, slots: Slots) -> int:
    return max([6, *(len(label(gpu.bus_id, slots)) for gpu in recording.gpus)])


def _together(recording: Recording, highest: tuple[float, float] | None) -> str:
    known = [value for value in _now(recording) if not math.isnan(value)]
    if not known and highest is None:
        return "no reading of a GPU"
    peak = f" (peak {highest[0]:.0f} W at {clock(recording, highest[1], 1)})" if highest else ""
    return f"{sum(known):.0f} W together{peak}"


def _sensors(recording: Recording, lowest: Voltage | None) -> list[str]:
    """A line with the 12 V rail, the fans and the inlet, as far as they are known; [] without any."""
    parts, sensors = [], recording.sensors
    if lowest is not None:
        lowest_text = f"lowest {lowest.volts:.2f} V at {clock(recording, lowest.t)}"
        parts.append(f"12 V {recording.voltages[-1].volts:.2f} V ({lowest_text})")
    if sensors and sensors.fans:
        slowest, fastest = min(sensors.fans.values()), max(sensors.fans.values())
        parts.append(f"fans {slowest:.0f} to {fastest:.0f} RPM" if len(sensors.fans) > 1 else f"fan {slowest:.0f} RPM")
    inlets = [value for name, value in sensors.temps.items() if "inlet" in name.lower()] if sensors else []
    parts += [f"inlet {inlets[0]:.0f} C"] if inlets else []
    if recording.sensors_hung and not parts:
        return ["the management controller does not answer"]
    return [", ".join(parts)] if parts else []


def _gpu(
    recording: Recording, gpu: int, most_w: float | None, limit_w: float | None, slots: Slots, width: int, fancy: bool
) -> str:
    series = recording.series
    state, row = series.state[gpu][-1], _latest(recording, gpu)
    now = math.nan if state else series.power_w[gpu][row]
    watts = f"{_STATES[state]:>6}" if state else _number(now, 6, 1)
    bar = f"  {_bar(now, most_w, limit_w, fancy)}" if width >= _WIDE else ""
    columns = (series.sm_mhz, 5), (series.memory_mhz, 5), (series.temperature_c, 4), (series.memory_c, 4)
    others = " ".join(_number(math.nan if state else values[gpu][row], digits) for values, digits in columns)
    bits = 0 if state else series.reasons[gpu][row]
    why = ", ".join(word for bit, word in REASONS.items() if bits & bit)
    name = f"{gpu_name(recording, gpu, slots):<{_name_width(recording, slots)}}"
    return f"{name} {watts} {_number(most_w, 6, 1)} {_number(limit_w, 5)}{bar} {others}  {why}".rstrip()


def _now(recording: Recording) -> list[float]:
    """The watts of each GPU, of its last sample within a second; NaN for a lost or silent GPU."""
    series = recording.series
    return [
        math.nan if series.state[gpu][-1] else column[_latest(recording, gpu)]
        for gpu, column in enumerate(series.power_w)
    ]


def _latest(recording: Recording, gpu: int) -> int:
    """The number of a GPU's last sample with a power within a second; a single tick may have no power."""
    column, last = recording.series.power_w[gpu], len(recording.series) - 1
    rows = range(last, max(-1, last - int(recording.hz)), -1)
    return next((row for row in rows if not math.isnan(column[row])), last)


def _bar(now: float, most: float | None, limit_w: float | None, fancy: bool) -> str:
    """A bar of the power with a mark at the peak. The full bar is the limit, or the peak if that is higher."""
    full = max(limit_w or 0, most or 0, 1)
    filled = 0 if math.isnan(now) else round(_BAR * now / full)
    cells = [("█" if fancy else "#") if at < filled else ("·" if fancy else ".") for at in range(_BAR)]
    if most is not None:
        cells[min(_BAR - 1, max(0, round(_BAR * most / full) - 1))] = "▌" if fancy else "|"
    return "".join(cells)


def _number(value: float | None, width: int, decimals: int = 0) -> str:
    return f"{'-':>{width}}" if value is None or math.isnan(value) else f"{value:>{width}.{decimals}f}"
