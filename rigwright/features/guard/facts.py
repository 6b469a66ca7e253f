"""What the guard of a host says: its state, what it did, and the energy of each month. host/guard.py and
guard_store.py write it."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from rigwright.core import host_text, lazy_re
from rigwright.core.command import Result, script
from rigwright.core.control_characters import one_line
from rigwright.core.host_folders import STATE
from rigwright.core.host_text import number_within
from rigwright.facts import READINGS, Fact, whole
from rigwright.features.guard.variables import STEPS

FOLDER = f"{STATE}/guard"
"""The guard's records; only root can read them."""
RUN = "/run/rigwright-guard"
MOST_EVENTS, LONGEST_TEXT, MOST_MONTHS, MOST_GPUS, MOST_FANS = 100, 400, 36, 64, 64

_BOOT_ID = lazy_re.compile(r"[0-9a-f]{32}")
_MONTH = lazy_re.compile(r"20\d\d-(0[1-9]|1[0-2])")
_EVENT = lazy_re.compile(r"[a-z][a-z-]{0,30}")
_LOWERED = lazy_re.compile(
    r"(?:\S{1,60} )?(?P<bus_id>[0-9a-f]{4,8}:[0-9a-f:.]{7}): "
    r"power limit (?P<before>[0-9.]{1,9}) W -> (?P<watts>\d{1,6}(\.\d{1,3})?) W"
)
_ZONE = lazy_re.compile(r"([+-])(\d\d)(\d\d)")


class GuardEvent(Struct, frozen=True):
    """Something that the guard saw or did: a step, `gpu-hung`, `oom-kill`, ... `t`: seconds since 1970 by the host's
    clock."""

    t: float
    boot_id: str
    event: str
    text: str


class GuardMonth(Struct, frozen=True):
    """The energy of a month, kWh. `machine_kwh`: by the supplies, None where they report no power. `hours`: how long
    was measured."""

    month: str
    gpus_kwh: float
    machine_kwh: float | None
    hours: float


class GuardState(Struct, frozen=True):
    """What a guard wrote. `age_s`: seconds since its last reading in this boot; None without one. `without_gpus`,
    `ring` and `textfile`: why there is no reading of the GPUs, and why the ring or the metrics are not written; "" if
    all is well.

    `hung`: GPUs that did not answer at that reading. `utc_offset_s`: of the host's time zone."""

    boot_id: str
    utc_offset_s: int
    age_s: float | None
    gpus: int
    hung: int
    fans: int
    without_gpus: str
    ring: str
    textfile: str
    month: str
    events: tuple[GuardEvent, ...]
    months: tuple[GuardMonth, ...]

    def lowered(self, bus_id: str, power_limit_w: float) -> GuardEvent | None:
        """The event of this boot by which the guard gave this GPU that power limit, W; None if it did not."""
        for event in reversed(self.events):
            change = _LOWERED.fullmatch(event.text)
            of_boot = (event.event, event.boot_id) == ("lowered", self.boot_id)
            if of_boot and change and change["bus_id"] == bus_id:
                stands = float(change["watts"]) == power_limit_w and change["before"] != change["watts"]
                return event if stands else None
        return None

    def clock(self, event: GuardEvent) -> str:
        """The time of an event in the host's zone: 2026-11-22 14:03:22."""
        zone = datetime.timezone(datetime.timedelta(seconds=self.utc_offset_s))
        return f"{datetime.datetime.fromtimestamp(event.t, zone):%Y-%m-%d %H:%M:%S}"


_READ = f"""
echo "boot $(tr -d - </proc/sys/kernel/random/boot_id)"
echo "zone $(date +%z)"
read -r up rest </proc/uptime; echo "up $up"
[ ! -f {RUN}/state.json ] || echo "state $(head -c 32768 {RUN}/state.json | tr -d '\\000\\n')"
[ ! -f {FOLDER}/energy.json ] || echo "energy $(head -c 32768 {FOLDER}/energy.json | tr -d '\\000\\n')"
[ ! -f {FOLDER}/events.jsonl ] || tail -n {MOST_EVENTS} {FOLDER}/events.jsonl | head -c 262144 | tr -d '\\000' |
  sed 's/^/event /'
"""


def _state(result: Result) -> GuardState | None:
    said: dict[str, str] = {}
    events: list[GuardEvent] = []
    for line in result.lines:
        word, _, value = line.partition(" ")
        if word == "event":
            events += _event(value)
        else:
            said[word] = value
    zone = _ZONE.fullmatch(said["zone"])
    if not _BOOT_ID.fullmatch(said["boot"]) or not zone:
        raise ValueError("no id of the boot, or no time zone")
    if not events and "state" not in said and "energy" not in said:
        return None
    state = _object(said.get("state", "{}"))
    gpus = [gpu for gpu in _list(state.get("gpus"), MOST_GPUS) if isinstance(gpu, dict)]
    up_s, read_s = number_within(float(said["up"]), 0, 1e9), number_within(state.get("up_s"), 0, 1e9)
    fresh = state.get("boot_id") == said["boot"] and up_s is not None and read_s is not None
    month = state.get("month")
    return GuardState(
        boot_id=said["boot"],
        utc_offset_s=(1 if zone[1] == "+" else -1) * (int(zone[2]) * 3600 + int(zone[3]) * 60),
        age_s=max(0.0, round((up_s or 0) - (read_s or 0), 1)) if fresh else None,
        gpus=len(gpus),
        hung=sum(gpu.get("state") not in ("", "none") for gpu in gpus),
        fans=int(number_within(state.get("fans"), 0, MOST_FANS) or 0),
        without_gpus=_text(state.get("without_gpus")),
        ring=_text(state.get("ring")),
        textfile=_text(state.get("textfile")),
        month=_text(month.get("month"))[:7] if isinstance(month, dict) else "",
        events=tuple(events[-MOST_EVENTS:]),
        months=_months(_object(said.get("energy", "{}"))),
    )


def _object(text: str) -> Mapping[str, Any]:
    """The JSON object of a text. Raises ValueError for another text."""
    value = host_text.json_value(text)
    if not isinstance(value, dict):
        raise ValueError("no JSON object")
    return value


def _list(value: Any, most: int) -> list[Any]:
    return value[:most] if isinstance(value, list) else []


def _text(value: Any) -> str:
    return one_line(value)[:LONGEST_TEXT] if isinstance(value, str) else ""


def _event(text: str) -> list[GuardEvent]:
    """The event of a line; [] for a line that a power cut has damaged."""
    try:
        given = _object(text)
    except ValueError:
        return []
    t, event = number_within(given.get("t"), 0, 4e9), given.get("event")
    if t is None or not isinstance(event, str) or not _EVENT.fullmatch(event):
        return []
    return [GuardEvent(t, _text(given.get("boot_id"))[:32], event, _text(given.get("text")))]


def _months(energy: Mapping[str, Any]) -> tuple[GuardMonth, ...]:
    given = energy.get("months")
    months = []
    for month, of_month in sorted(given.items())[-MOST_MONTHS:] if isinstance(given, dict) else ():
        if not _MONTH.fullmatch(month) or not isinstance(of_month, dict):
            continue
        keys = ("gpus_j", "machine_j", "s", "machine_s")
        gpus_j, machine_j, seconds, machine_s = (number_within(of_month.get(key), 0, 1e15) for key in keys)
        if gpus_j is None or seconds is None:
            continue
        machine = round(machine_j / 3.6e6, 2) if machine_j is not None and machine_s else None
        months.append(GuardMonth(month, round(gpus_j / 3.6e6, 2), machine, round(seconds / 3600, 1)))
    return tuple(months)


def _lasting(state: GuardState | None) -> GuardState | None:
    """What the history keeps: the energy of the months that are over, and the steps. The present month changes with
    every reading."""
    if state is None:
        return None
    steps = tuple(one for one in state.events if one.event in STEPS)[-20:]
    over = tuple(one for one in state.months if one.month < state.month)
    return GuardState("", state.utc_offset_s, None, 0, 0, 0, "", "", "", "", steps, over)


state = Fact("guard.state", script(_READ, reads=True), _state, kept=_lasting)
"""What the guard wrote; None on a host on which none ever ran."""


class GuardReading(Struct, frozen=True):
    """A GPU in an hour: `t`, the middle of the hour, seconds since 1970; its hottest reading, degrees Celsius, and its
    mean power, W."""

    t: float
    uuid: str
    hottest_c: float | None
    mean_w: float | None


MOST_HOURS, MOST_BYTES = 14 * 24, 2 << 20
_UUID = lazy_re.compile(r"GPU-[0-9a-f-]{4,40}")
_HOURS = f"[ ! -f {FOLDER}/hours.jsonl ] || tail -n {MOST_HOURS} {FOLDER}/hours.jsonl | gzip | base64 -w 1000"


def _hours(result: Result) -> tuple[GuardReading, ...]:
    if not result.stdout.strip():
        return ()
    data = host_text.unzipped(result.stdout, MOST_BYTES)
    readings: list[GuardReading] = []
    for line in host_text.lines(data.decode("utf-8", "replace"))[-MOST_HOURS:]:
        try:
            given = _object(line)
        except ValueError:
            continue
        t, gpus = number_within(given.get("t"), 0, 4e9), given.get("gpus")
        for uuid, pair in list(gpus.items())[:MOST_GPUS] if t is not None and isinstance(gpus, dict) else ():
            if _UUID.fullmatch(uuid) and isinstance(pair, list) and len(pair) == 2:
                readings.append(
                    GuardReading((t or 0) + 1800, uuid, number_within(pair[0], 0, 200), number_within(pair[1], 0, 1e5))
                )
    return tuple(readings)


hours = Fact("guard.hours", script(_HOURS, reads=True), _hours, kept=whole, kept_as=READINGS)
"""The readings of the last two weeks, an entry for each hour and GPU; () without a guard. The history keeps them among
the readings of runs."""
