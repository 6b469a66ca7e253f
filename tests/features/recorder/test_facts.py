"""What a recording tells: peaks in a part of it, how long the sum was above a level, gaps and jumps; and its bounds."""

from __future__ import annotations

import base64
import gzip
import json
import time

import pytest

from rigwright.core.command import Result
from rigwright.facts import Unreadable, parsed
from rigwright.features.recorder.facts import READ_BYTES, Recording, unended, unfetched
from tests.features.recorder.recordings import NEXT_BOOT, Line, T, followed, header, read, tick, volts
from tests.machine_speed import within

RAMP = [
    tick(0.0, 40.0, 40.0),
    volts(0.05, 12.24),
    tick(0.1, 150.0, 40.0),
    tick(0.2, 299.0, 301.0),
    tick(0.3, 310.0, 300.0),
    volts(0.35, 11.31),
    tick(0.4, 310.0, None),
    tick(0.5, 40.0, 40.0),
]


def test_peaks_of_a_part_are_those_of_its_time() -> None:
    found = read(RAMP, header(2))
    assert (found.peak(0).most_w, found.peak(0).most_w_t) == (310.0, T + 0.3), "the first time that it was reached"
    early = found.rows(T, T + 0.15)
    assert list(early) == [0, 1]
    assert found.peak(0, early).most_w == 150.0
    assert list(found.rows(T + 60, T + 70)) == []
    assert found.peak(0, found.rows(T + 60)).most_w is None
    assert found.highest_sum() == (610.0, T + 0.3)
    assert found.highest_sum(early) == (190.0, T + 0.1)


def test_how_long_the_sum_was_above_a_level() -> None:
    found = read(RAMP, header(2))
    assert found.seconds_above(600) == pytest.approx(0.2)
    assert found.seconds_above(300) == pytest.approx(0.3)
    assert found.seconds_above(1000) == 0
    gap = read([tick(0.0, 300.0, 300.0), tick(5.0, 300.0, 300.0)], header(2))
    assert gap.seconds_above(500) == pytest.approx(0.3), "the time of a gap does not count"


def test_the_lowest_voltage_of_a_time() -> None:
    found = read(RAMP, header(2))
    lowest, early = found.lowest_voltage(), found.lowest_voltage(T, T + 0.1)
    assert lowest is not None
    assert early is not None
    assert (lowest.volts, early.volts) == (11.31, 12.24)
    assert found.lowest_voltage(T + 60) is None


def test_a_clock_that_is_set_is_a_jump_and_no_gap() -> None:
    back = read([tick(0.0, 1.0, 1.0), tick(0.1, 1.0, 1.0, jump_s=-7200), tick(0.2, 1.0, 1.0, jump_s=-7200)], header(2))
    assert [round(jump.seconds) for jump in back.jumps] == [-7200]
    assert back.gaps == ()
    assert back.seconds_above(2) == pytest.approx(0.3)
    gap = read([tick(0.0, 1.0, 1.0), tick(2.5, 1.0, 1.0)], header(2))
    assert [pause.seconds for pause in gap.gaps] == [2.5]
    assert gap.jumps == ()


def test_a_growing_journal_is_the_same_as_a_whole_one() -> None:
    grown = followed([*RAMP, {"t": T + 1, "m": 101.0, "limits": [200.0, None]}], header(2))
    assert grown.limits_w == [200.0, None]
    found, whole = grown.recording(name="r"), read(RAMP, header(2))
    assert found.peak(0) == whole.peak(0)
    assert found.voltages == whole.voltages


def packed(lines: list[Line], size: int | None = None) -> Result:
    body = "".join(json.dumps(line) + "\n" for line in lines).encode()
    head = f"recording r\nboot {NEXT_BOOT}\nheader {json.dumps(lines[0])}\nsize {size or len(body)}\ngzip\n"
    return Result(0, head.encode() + base64.encodebytes(gzip.compress(body)))


def test_an_hour_of_four_gpus_is_read_in_seconds() -> None:
    lines = [header(), *(tick(number / 10, 298.4, 299.1, 297.7, 298.0) for number in range(36_000))]
    began = time.process_time()
    found = parsed(unended, packed(lines))
    assert isinstance(found, Recording), found
    assert len(found.series) == 36_000
    assert within(time.process_time() - began, 10)


def test_the_end_of_a_longer_journal_begins_in_the_middle_of_a_line() -> None:
    result = packed([header(), tick(0.0, 1.0, 1.0, 1.0, 1.0)], READ_BYTES + 1000)
    found = parsed(unfetched, result)
    assert isinstance(found, Recording), found
    assert found.left_out_bytes == 1000
    assert (len(found.series), found.damaged) == (1, 0)


def test_a_bomb_is_refused_before_it_fills_the_memory() -> None:
    bomb = base64.encodebytes(gzip.compress(b" " * (READ_BYTES + 10)))
    head = f"recording r\nboot {NEXT_BOOT}\nheader {json.dumps(header())}\nsize 10\ngzip\n".encode()
    found = parsed(unended, Result(0, head + bomb))
    assert isinstance(found, Unreadable)
    assert "gzip that is cut, or of more than" in str(found)


@pytest.mark.parametrize(
    "line", ["[" * 8000, '{"t":' + "9" * 8000 + ',"m":1}', "{" * 100, '"' + "x" * 90_000 + '"', "1e999"]
)
def test_odd_lines_count_as_damaged(line: str) -> None:
    made = followed([])
    made.add(line)
    assert made.damaged == 1
