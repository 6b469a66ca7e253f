"""What the journal of a recorder says of a machine that went down while it recorded."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator, Sequence

from rigwright import catalogue
from rigwright.catalogue import Rig
from rigwright.checks import Finding, check, of_symptom
from rigwright.core.gpu_labels import place
from rigwright.core.schema import BusId
from rigwright.facts import Facts
from rigwright.features.recorder import facts as recordings
from rigwright.features.recorder.facts import LOST, WRITTEN_S, Recording

Slots = dict[BusId, str]

LOW_V = 11.5
"""Below this 12 V sags: the symptom power.rail_sag."""
BEFORE_S = 10.0
"""Readings of the 12 V rail so long before the last sample count as those of the end."""
XIDS_BEFORE_S = 60.0
AT_WORK = 0.5
"""A GPU that draws this share of its power limit works."""
_BAND_W = 10
"""Watts are named in steps of this."""


@check()
def explained(facts: Facts, *, rig: Rig | None = None, slots: Slots | None = None) -> Iterator[Finding]:
    """The machine did not go down while a recorder ran. If it did, the journal tells what it did last.

    The finding stays until the next recording replaces the journal, or `remove` takes it away
    (docs/guide/recorder.md)."""
    recording = facts(recordings.unended)
    if recording is None:
        yield Finding("recording", "pass", "no recording without an end")
    elif recording.running:
        yield Finding("recording", "info", f"a recorder is at work since {clock(recording, recording.first_t)}")
    elif recording.went_down:
        yield _down(recording, rig, slots)
    else:
        seen = f"ended at {clock(recording, recording.last_t)} without its last line, and the machine runs on"
        cause = "the process of the recorder was killed"
        fix = f"journalctl -u {recordings.UNIT}; sudo dmesg | grep -i -e oom -e killed"
        yield Finding("recording", "warn", seen, "", cause, fix, "host")


def _down(recording: Recording, rig: Rig | None, slots: Slots | None) -> Finding:
    lowest = recording.lowest_voltage(recording.last_t - BEFORE_S, recording.last_t)
    sags = lowest is not None and lowest.volts < LOW_V
    key = "power.rail_sag" if sags else "host.power_cut"
    plan = f"invoke power.plan --rig {rig.key if rig else 'NAME'}"
    fix = f"{plan}; {catalogue.all_symptoms()[key].fix}"
    return of_symptom(key, "recording", last_words(recording, slots), "", "host", verdict="warn", fix=fix)


def last_words(recording: Recording, slots: Slots | None = None) -> str:
    """What the journal of a machine that went down says last, in the host's time: "last seen 14:03:22.4: all 4 GPUs at
    290 W or more for 0.3 s, 12 V 11.31 V; Xid 79 on SXM2-4 0000:0b:00.0; the machine was off by 14:03:24, and booted at
    14:05:02"."""
    parts = [", ".join(filter(None, (_load(recording, slots), _voltage(recording))))]
    parts += [_xids(recording, slots), _lost(recording, slots)]
    booted = f", and booted at {clock(recording, recording.booted_t)}" if recording.booted_t else ""
    off_by = min(math.ceil(recording.last_t + WRITTEN_S), recording.booted_t or math.inf)
    parts.append(f"the machine was off by {clock(recording, off_by)}{booted}")
    stage = _stage(recording)
    seen = f"last seen {day(recording)} {clock(recording, recording.last_t, 1)}{f' in {stage}' if stage else ''}"
    return f"{seen}: {'; '.join(filter(None, parts))}"


def clock(recording: Recording, t: float, decimals: int = 0) -> str:
    """A time of a recording in the host's time zone: 14:03:22, with `decimals` 14:03:22.4."""
    at = _local(recording, t)
    return f"{at:%H:%M:%S}" + (f".{at.microsecond // 10 ** (6 - decimals):0{decimals}d}" if decimals else "")


def day(recording: Recording) -> str:
    """The date of the last sample in the host's time zone."""
    return f"{_local(recording, recording.last_t):%Y-%m-%d}"


def _local(recording: Recording, t: float) -> datetime.datetime:
    zone = datetime.timezone(datetime.timedelta(seconds=recording.utc_offset_s))
    return datetime.datetime.fromtimestamp(round(min(max(t, 0), 4e9), 3), zone)


def _load(recording: Recording, slots: Slots | None) -> str:
    """What the GPUs drew at the end, and for how long: `all 4 GPUs at 290 W or more for 0.3 s (1184 W together)`."""
    series = recording.series
    rows = [row for row in range(len(series)) if recording.sum_w(row) is not None]
    if not rows:
        return recording.without_gpus or "no sample of a GPU"
    last = rows[-1]
    full = _last_full(recording, last)
    watts = {gpu: column[full] for gpu, column in enumerate(series.power_w) if not math.isnan(column[full])}
    total = f"{sum(watts.values()):.0f} W together"
    working = [gpu for gpu in watts if watts[gpu] >= AT_WORK * (recording.gpus[gpu].limit_w or 2 * watts[gpu])]
    if not working:
        return f"no GPU at work ({total})"
    level = (min(watts[gpu] for gpu in working) - _BAND_W / 2) // _BAND_W * _BAND_W
    first = full
    while first and all(series.power_w[gpu][first - 1] >= level for gpu in working):
        first -= 1
    seconds = series.m[full] - series.m[first] + recording.lasts(full)
    return f"{_those(recording, working, slots)} at {level:.0f} W or more for {seconds:.1f} s ({total})"


def _last_full(recording: Recording, last: int) -> int:
    """The last sample with all GPUs, if it is at most one second old at the end; otherwise the last sample."""
    series = recording.series
    recent = [row for row in range(max(0, last - int(recording.hz)), last + 1) if series.m[last] - series.m[row] <= 1]
    there = [gpu for gpu, column in enumerate(series.power_w) if any(not math.isnan(column[row]) for row in recent)]
    full = [row for row in recent if all(not math.isnan(series.power_w[gpu][row]) for gpu in there)]
    return full[-1] if full else last


def _voltage(recording: Recording) -> str:
    lowest = recording.lowest_voltage(recording.last_t - BEFORE_S, recording.last_t)
    if lowest is None:
        return "the management controller did not answer" if recording.sensors_hung else ""
    ago = recording.last_t - lowest.t
    return f"12 V {lowest.volts:.2f} V" if ago < 1.5 else f"12 V down to {lowest.volts:.2f} V {ago:.0f} s before"


def _xids(recording: Recording, slots: Slots | None) -> str:
    places: dict[int, dict[str, None]] = {}
    for xid in recording.xids:
        if xid.t >= recording.last_t - XIDS_BEFORE_S:
            places.setdefault(xid.code, {})[place(xid.bus_id, slots)] = None
    return "; ".join(f"Xid {code} on {', '.join(gpus)}" for code, gpus in list(places.items())[:4])


def _lost(recording: Recording, slots: Slots | None) -> str:
    """The GPUs without an Xid that were lost or hung in the last sample."""
    if not len(recording.series):
        return ""
    known, gpus = {xid.bus_id for xid in recording.xids}, recording.gpus
    states = {gpu: column[-1] for gpu, column in enumerate(recording.series.state) if gpus[gpu].bus_id not in known}
    words = []
    for state, word in ((LOST, "lost"), (recordings.HUNG, "silent for two seconds")):
        if those := [gpu for gpu, value in states.items() if value == state]:
            words.append(f"{_those(recording, those, slots)} {word}")
    return "; ".join(words)


def _those(recording: Recording, gpus: Sequence[int], slots: Slots | None) -> str:
    """`all 4 GPUs`, or the labels of some."""
    if len(gpus) == len(recording.gpus) > 1:
        return f"all {len(gpus)} GPUs"
    return ", ".join(place(recording.gpus[gpu].bus_id, slots) or f"GPU {gpu}" for gpu in gpus)


def _stage(recording: Recording) -> str:
    """The part of a load that had begun last and not ended."""
    begun: dict[str, None] = {}
    for mark in recording.marks:
        if mark.event == "begin":
            begun[mark.stage] = None
        else:
            begun.pop(mark.stage, None)
    return next(reversed(begun), "")
