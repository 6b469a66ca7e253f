"""The journal of a recorder: what the GPUs, the supplies and the kernel log of a host said until it ended, or until the
machine did.

host/recorder.py describes every line. A reset can cut the last line, and a host may write anything: what is no line of
a journal counts as damaged and is left out, and all numbers, texts and sizes are bounded.
"""

from __future__ import annotations

import json
import math
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from rigwright.core import host_text, lazy_re
from rigwright.core.command import Result, script
from rigwright.core.control_characters import one_line
from rigwright.core.host_folders import STATE
from rigwright.core.host_text import number_within
from rigwright.facts import Fact

FOLDERS = f"{STATE}/recordings"
"""A folder for each recording; only root can read it."""
PROGRAM = "/run/rigwright-recorder"
"""The recorder's program while it runs. The file `folder` in it has the name of its recording."""
UNIT = PROGRAM.rpartition("/")[2]

READ_BYTES = 16 << 20
"""The end of a journal that is read: more than two hours of four GPUs, 45 minutes of sixteen."""
PLAIN_BYTES = 1 << 20
MOST_LINES, LONGEST_LINE = 250_000, 8192
MOST_GPUS, MOST_XIDS, MOST_MARKS, MOST_SENSORS = 64, 600, 2000, 64
GAP_S = 1.0
"""Samples that are farther apart are a gap."""
JUMP_S = 0.5
"""A clock that was set by more than this is a jump."""
WRITTEN_S = 1.0
"""A sample is on the disk after so long at most, so a machine without a later one was off by then."""

_NAME = lazy_re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]{0,63}")
_BUS_ID = lazy_re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-1][0-9a-f]\.[0-7]")
_BOOT_ID = lazy_re.compile(r"[0-9a-f-]{36}")


class RecordedGpu(Struct, frozen=True):
    """A GPU of a recording. `limit_w`: its power limit at the beginning. `power`: what its readings are: "instant", or
    an average."""

    index: int
    bus_id: str
    uuid: str
    name: str
    limit_w: float | None
    power: str


class Voltage(Struct, frozen=True):
    """The lowest 12 V rail at a time, V."""

    t: float
    m: float
    volts: float


class RecordedXid(Struct, frozen=True):
    """An Xid of the kernel log: when it was read, on which GPU, and its line."""

    t: float
    m: float
    bus_id: str
    code: int
    text: str


class Mark(Struct, frozen=True):
    """Begin or end of a part of a load. `gpus`: the numbers of its GPUs."""

    t: float
    stage: str
    event: str
    gpus: tuple[int, ...] = ()


class Pause(Struct, frozen=True):
    """A time without samples, or a jump of the clock: from `t`, for `seconds`."""

    t: float
    seconds: float


class Sensors(Struct, frozen=True):
    """The last full answer of the supplies and fans: readings by the sensor's name."""

    t: float
    source: str
    rails: dict[str, float]
    fans: dict[str, float]
    temps: dict[str, float]
    supplies: dict[str, str]


READINGS = ("power_w", "sm_mhz", "memory_mhz", "temperature_c", "memory_c", "reasons")
"""What a sample of a GPU has, in this order."""
HUNG, LOST = 1, 2


class Series(Struct, frozen=True):
    """The samples, as columns. `m`: monotonic seconds, `t`: wall clock. `power_w` and the others have a column for each
    GPU, with NaN where it has no reading. `state`: 0, HUNG or LOST."""

    t: array[float] = field(default_factory=lambda: array("d"))
    m: array[float] = field(default_factory=lambda: array("d"))
    power_w: tuple[array[float], ...] = ()
    sm_mhz: tuple[array[float], ...] = ()
    memory_mhz: tuple[array[float], ...] = ()
    temperature_c: tuple[array[float], ...] = ()
    memory_c: tuple[array[float], ...] = ()
    reasons: tuple[array[int], ...] = ()
    state: tuple[array[int], ...] = ()

    @classmethod
    def of(cls, gpus: int) -> Series:
        """Empty columns for so many GPUs."""
        columns = (tuple(array(kind) for _ in range(gpus)) for kind in "dddddQb")
        return cls(array("d"), array("d"), *columns)  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self.m)


class Peak(Struct, frozen=True):
    """The extremes of one GPU in a time. None: no reading. `reasons`: bits of all reasons for a lower clock. `state`:
    the worst of it."""

    most_w: float | None
    most_w_t: float | None
    mean_w: float | None
    hottest_c: float | None
    memory_hottest_c: float | None
    lowest_sm_mhz: float | None
    reasons: int
    state: int


class Recording(Struct, frozen=True, kw_only=True):
    """A journal. Times are those of the host: `t` seconds since 1970, `m` of its monotonic clock.

    `end`: why the recorder ended; "" for a journal without an end. `now_boot_id` and `booted_t`: the boot that runs
    now. `running`: its recorder is at work. `left_out_bytes`: of an older part that was not read. `damaged`: lines that
    are none.
    """

    name: str
    boot_id: str
    utc_offset_s: int
    hz: float
    power: str
    without_gpus: str
    gpus: tuple[RecordedGpu, ...]
    series: Series
    voltages: tuple[Voltage, ...]
    sensors: Sensors | None
    sensors_hung: int
    xids: tuple[RecordedXid, ...]
    marks: tuple[Mark, ...] = ()
    gaps: tuple[Pause, ...]
    jumps: tuple[Pause, ...]
    end: str
    first_t: float
    last_t: float
    damaged: int
    left_out_bytes: int = 0
    now_boot_id: str = ""
    booted_t: float | None = None
    running: bool = True

    @property
    def went_down(self) -> bool:
        """Whether the machine went down in the middle of the recording: it has no end, and another boot runs."""
        return not self.end and not self.running and self.boot_id != self.now_boot_id

    def rows(self, from_t: float = -math.inf, to_t: float = math.inf) -> range:
        """The numbers of the samples between two times of the wall clock; of a clock that jumped, those in between."""
        times = self.series.t
        within = [number for number in range(len(times)) if from_t <= times[number] <= to_t]
        return range(within[0], within[-1] + 1) if within else range(0)

    def peak(self, gpu: int, rows: range | None = None) -> Peak:
        """The extremes of a GPU, of all samples or of some."""
        series, rows = self.series, rows if rows is not None else range(len(self.series))
        watts = [(series.power_w[gpu][row], row) for row in rows if not math.isnan(series.power_w[gpu][row])]
        most = max(watts, key=lambda pair: pair[0], default=None)
        bits = 0
        for row in rows:
            bits |= series.reasons[gpu][row]
        return Peak(
            most_w=round(most[0], 1) if most else None,
            most_w_t=series.t[most[1]] if most else None,
            mean_w=round(sum(value for value, _ in watts) / len(watts), 1) if watts else None,
            hottest_c=_extreme(max, series.temperature_c[gpu], rows),
            memory_hottest_c=_extreme(max, series.memory_c[gpu], rows),
            lowest_sm_mhz=_extreme(min, series.sm_mhz[gpu], rows),
            reasons=bits,
            state=max((series.state[gpu][row] for row in rows), default=0),
        )

    def sum_w(self, row: int) -> float | None:
        """The power of all GPUs in a sample, W; None without a reading."""
        values = [column[row] for column in self.series.power_w if not math.isnan(column[row])]
        return sum(values) if values else None

    def highest_sum(self, rows: range | None = None) -> tuple[float, float] | None:
        """The highest power of all GPUs together, W, and when it was reached; None without samples."""
        rows = rows if rows is not None else range(len(self.series))
        sums = [(value, self.series.t[row]) for row in rows if (value := self.sum_w(row)) is not None]
        return max(sums, key=lambda pair: pair[0], default=None)

    def seconds_above(self, watts: float, rows: range | None = None) -> float:
        """How long the power of all GPUs together was at that level or above it, s. A gap does not count."""
        rows = rows if rows is not None else range(len(self.series))
        return round(sum(self.lasts(row) for row in rows if (self.sum_w(row) or 0) >= watts), 3)

    def lasts(self, row: int) -> float:
        """How long a sample stands: until the next one, but no longer than two periods."""
        period = 1 / self.hz
        following = self.series.m[row + 1] if row + 1 < len(self.series) else self.series.m[row] + period
        return min(2 * period, max(0.0, following - self.series.m[row]))

    def lowest_voltage(self, from_t: float = -math.inf, to_t: float = math.inf) -> Voltage | None:
        """The lowest reading of the 12 V rail between two times; None without a reading."""
        within = [voltage for voltage in self.voltages if from_t <= voltage.t <= to_t]
        return min(within, key=lambda voltage: voltage.volts, default=None)


def _extreme(of: Any, column: array[float], rows: range) -> float | None:
    values = [column[row] for row in rows if not math.isnan(column[row])]
    return of(values) if values else None


# --- reading


_READ = f"""
cd {FOLDERS} 2>/dev/null || exit 0
for name in $(ls -A | grep -xE '[0-9A-Za-z][0-9A-Za-z_.-]{{0,63}}' | sort -r | head -n 8); do
  [ -f "./$name/samples.jsonl" ] && [ ! -L "./$name/samples.jsonl" ] && [ ! -L "./$name" ] || continue
  case $1 in
    unfetched) [ ! -e "./$name/fetched" ] || continue;;
    unended) ! tail -c 4096 "./$name/samples.jsonl" | tail -n 1 | grep -q '"end":' || continue;;
  esac
  echo "recording $name"
  echo "boot $(cat /proc/sys/kernel/random/boot_id)"
  awk '/^btime /{{print "booted " $2}}' /proc/stat
  [ "$(cat {PROGRAM}/folder 2>/dev/null)" != "$name" ] || ! systemctl is-active -q {UNIT} || echo running
  cd "./$name" || exit 1
  echo "header $(head -n 1 samples.jsonl | head -c 32768 | tr -d '\\000')"
  [ ! -f marks.jsonl ] || tail -c 262144 marks.jsonl | tr -d '\\000' | sed 's/^/mark /'
  older=samples.1.jsonl; [ -f "$older" ] || older=
  size=$(cat $older samples.jsonl | wc -c)
  echo "size $size"
  if [ "$size" -le {PLAIN_BYTES} ]; then echo plain; cat $older samples.jsonl | tr -d '\\000'
  else echo gzip; cat $older samples.jsonl | tail -c {READ_BYTES} | gzip | base64 -w 1000
  fi
  exit 0
done; :
"""


def _read(result: Result) -> Recording | None:
    head, plain, rest = result.stdout.partition(b"\nplain\n")
    if not plain:
        head, _, packed = result.stdout.partition(b"\ngzip\n")
        rest = host_text.unzipped(packed, READ_BYTES) if packed else b""
    if not head.strip():
        return None
    said: dict[str, str] = {}
    marks: list[str] = []
    for line in host_text.lines(head.decode("utf-8", "replace")):
        word, _, value = line.partition(" ")
        if word == "mark":
            marks.append(value)
        else:
            said.setdefault(word, value)
    return journal(said, marks, rest)


def journal(said: Mapping[str, str], marks: Sequence[str], data: bytes) -> Recording:
    """The recording in the text of a journal. `said`: what the host says about it, by word: recording, boot, booted,
    header, size.

    Raises ValueError if it has no first line that describes it.
    """
    name, boot, booted = (said.get(word, "") for word in ("recording", "boot", "booted"))
    if not _NAME.fullmatch(name) or not _BOOT_ID.fullmatch(boot):
        raise ValueError("no name of a recording, or no id of the boot")
    made = Lines(said.get("header", ""))
    size = host_text.integer(said.get("size", "0"))
    lines = data.decode("utf-8", "replace").split("\n", MOST_LINES)[:MOST_LINES]
    if size > READ_BYTES:
        lines = lines[1:]
    for line in lines:
        if line:
            made.add(line)
    return replace(
        made.recording(name),
        marks=tuple(_marks(marks)),
        left_out_bytes=max(0, size - READ_BYTES),
        now_boot_id=boot,
        booted_t=float(booted) if re.fullmatch(r"\d{1,11}", booted, re.ASCII) else None,
        running="running" in said,
    )


def _no_constant(word: str) -> float:
    raise ValueError(f"{word} is no number")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)


def _object(line: str) -> dict[str, Any] | None:
    """The JSON object of a line; None if the line is no JSON object or too long."""
    if len(line) > 4 * LONGEST_LINE:
        return None
    try:
        found = _DECODER.decode(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _text(value: Any, most: int) -> str:
    return one_line(value)[:most] if isinstance(value, str) else ""


def _gpus(value: Any) -> tuple[RecordedGpu, ...]:
    gpus = []
    for number, gpu in enumerate(value[:MOST_GPUS] if isinstance(value, list) else []):
        given = gpu if isinstance(gpu, dict) else {}
        bus_id, limit_w = _text(given.get("bus_id"), 20), number_within(given.get("limit_w"), 0, 1e5)
        uuid, name, power = (_text(given.get(key), most) for key, most in (("uuid", 48), ("name", 64), ("power", 40)))
        gpus.append(RecordedGpu(number, bus_id if _BUS_ID.fullmatch(bus_id) else "", uuid, name, limit_w, power))
    return tuple(gpus)


def _marks(lines: Sequence[str]) -> Iterator[Mark]:
    for line in lines[:MOST_MARKS]:
        given = _object(line) or {}
        t, event = number_within(given.get("t"), 0, 1e11), given.get("event")
        if t is None or event not in ("begin", "end"):
            continue
        numbers = given.get("gpus")
        gpus = (
            [number_within(number, 0, MOST_GPUS) for number in numbers[:MOST_GPUS]] if isinstance(numbers, list) else []
        )
        yield Mark(t, _text(given.get("stage"), 80), event, tuple(int(gpu) for gpu in gpus if gpu is not None))


_RANGES = ((0, 1e5), (0, 1e5), (0, 1e5), (-100, 1000), (-100, 1000))


class Lines:
    """The lines of a journal, one after the other, as a recorder writes them. `header`: the first line; raises
    ValueError if it is no JSON object."""

    def __init__(self, header: str) -> None:
        given = _object(header)
        if given is None or given.get("schema") != 1:
            raise ValueError("a journal without its first line")
        self._header = given
        self.gpus = _gpus(given.get("gpus"))
        self.hz = number_within(given.get("hz"), 1, 50) or 10.0
        self.series = Series.of(len(self.gpus))
        self.limits_w = [gpu.limit_w for gpu in self.gpus]
        self.voltages: list[Voltage] = []
        self.sensors: Sensors | None = None
        self.xids: list[RecordedXid] = []
        self.gaps: list[Pause] = []
        self.jumps: list[Pause] = []
        self.end = ""
        self.hung = self.damaged = 0
        self.first_t = self.last_t = 0.0

    def recording(self, name: str) -> Recording:
        """The recording as far as it has been read; it is still running."""
        boot_id = self._header.get("boot_id")
        return Recording(
            name=name,
            boot_id=boot_id if isinstance(boot_id, str) and _BOOT_ID.fullmatch(boot_id) else "",
            utc_offset_s=int(number_within(self._header.get("utc_offset_s"), -86400, 86400) or 0),
            hz=self.hz,
            power=_text(self._header.get("power"), 40),
            without_gpus=_text(self._header.get("nvml"), 200),
            gpus=self.gpus,
            series=self.series,
            voltages=tuple(self.voltages),
            sensors=self.sensors,
            sensors_hung=self.hung,
            xids=tuple(self.xids),
            gaps=tuple(self.gaps),
            jumps=tuple(self.jumps),
            end=self.end,
            first_t=self.first_t,
            last_t=self.last_t,
            damaged=self.damaged,
        )

    def add(self, line: str) -> None:
        """Takes a line; a line that is no JSON object counts as damaged."""
        given = _object(line)
        if given is None:
            self.damaged += 1
            return
        if "schema" in given:
            return
        t, m = number_within(given.get("t"), 0, 1e11), number_within(given.get("m"), 0, 1e11)
        if t is None or m is None:
            self.damaged += 1
            return
        self.end = ""
        if "g" in given:
            self._sample(t, m, given["g"])
        elif "ipmi" in given:
            self._ipmi(t, m, given["ipmi"], _text(given.get("from"), 10))
        elif "xid" in given:
            self._xid(t, m, given)
        elif "limits" in given:
            self._limits(given["limits"])
        elif "end" in given:
            self.end = _text(given["end"], 20) or "end"
        self.first_t = self.first_t or t
        self.last_t = t

    def _sample(self, t: float, m: float, gpus: Any) -> None:
        series = self.series
        if not isinstance(gpus, list) or len(gpus) != len(series.state) or (series.m and m <= series.m[-1]):
            self.damaged += 1
            return
        if series.m:
            apart, jump = m - series.m[-1], (t - series.t[-1]) - (m - series.m[-1])
            if apart > GAP_S and len(self.gaps) < MOST_XIDS:
                self.gaps.append(Pause(series.t[-1], round(apart, 3)))
            if abs(jump) > JUMP_S and len(self.jumps) < MOST_XIDS:
                self.jumps.append(Pause(series.t[-1], round(jump, 3)))
        series.t.append(t)
        series.m.append(m)
        columns = (series.power_w, series.sm_mhz, series.memory_mhz, series.temperature_c, series.memory_c)
        for number, gpu in enumerate(gpus):
            values = gpu if isinstance(gpu, list) and len(gpu) == len(READINGS) else [None] * len(READINGS)
            for column, value, (low, high) in zip(columns, values, _RANGES, strict=False):
                checked = number_within(value, low, high)
                column[number].append(math.nan if checked is None else checked)
            bits = values[5]
            series.reasons[number].append(bits if type(bits) is int and 0 <= bits < 1 << 63 else 0)
            series.state[number].append({"hung": HUNG, "lost": LOST}.get(gpu, 0) if isinstance(gpu, str) else 0)

    def _ipmi(self, t: float, m: float, given: Any, source: str) -> None:
        if given == "hung":
            self.hung += 1
            return
        if not isinstance(given, dict):
            self.damaged += 1
            return
        volts = number_within(given.get("12V"), 0, 100)
        if volts is not None:
            self.voltages.append(Voltage(t, m, volts))
        if "fans" in given:
            words = given.get("psu")
            supplies = list(words.items())[:MOST_SENSORS] if isinstance(words, dict) else []
            texts = {_text(name, 40): _text(f"{value}", 80) for name, value in supplies}
            rails, fans, temps = (_numbers(given.get(key)) for key in ("rails", "fans", "temps"))
            self.sensors = Sensors(t, source, rails, fans, temps, texts)

    def _limits(self, given: Any) -> None:
        if isinstance(given, list) and len(given) == len(self.gpus):
            self.limits_w = [number_within(value, 0, 1e5) for value in given]
        else:
            self.damaged += 1

    def _xid(self, t: float, m: float, given: Mapping[str, Any]) -> None:
        pair = given["xid"]
        bus_id = _text(pair[0], 20) if isinstance(pair, list) and len(pair) == 2 else ""
        code = number_within(pair[1], 0, 1e6) if bus_id else None
        if not _BUS_ID.fullmatch(bus_id) or code is None:
            self.damaged += 1
        elif len(self.xids) < MOST_XIDS:
            self.xids.append(RecordedXid(t, m, bus_id, int(code), _text(given.get("text"), 200)))


def _numbers(given: Any) -> dict[str, float]:
    items = list(given.items())[:MOST_SENSORS] if isinstance(given, dict) else []
    return {_text(name, 40): value for name, raw in items if (value := number_within(raw, -1e6, 1e6)) is not None}


unended = Fact("recording.unended", script(_READ, "unended", timeout_s=60, reads=True), _read)
"""The newest recording on the host without an end: the machine went down, its recorder was killed, or it is at work.
None: no recording is without an end."""

unfetched = Fact("recording.unfetched", script(_READ, "unfetched", timeout_s=60, reads=True), _read)
"""The newest recording on the host that no run has fetched; None without one."""
