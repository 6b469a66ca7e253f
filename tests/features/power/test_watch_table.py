"""The text of power.watch: on a terminal of 80 and of 120 columns, in a file, and the peaks at the end."""

from __future__ import annotations

import io
from typing import Any

import pytest

from rigwright.features.power import watch_table as table
from rigwright.features.power.watch_table import Extremes
from rigwright.features.recorder.facts import Lines
from rigwright.report.terminal import Text
from tests.features.recorder.recordings import BUS_IDS, SLOTS, followed, tick, volts

PEAK = [
    tick(0.0, 40.0, 40.0, 40.0, 40.0, reasons=1),
    volts(0.05, 12.24),
    tick(0.1, 349.6, 340.0, 339.0, 338.0),
    tick(0.2, 298.0, 297.0, 296.0, 295.0, reasons=4),
    volts(0.25, 11.9),
    {"t": 1795352602.2, "m": 100.3, "xid": [BUS_IDS[3], 79], "text": "x"},
    tick(0.3, 290.0, None, "hung", "lost", reasons=4),
]


def shown(lines: Lines, width: int, fancy: bool = True) -> list[str]:
    recording, extremes = lines.recording(name="r"), Extremes()
    extremes.learn(recording)
    return table.page("servbadge", recording, extremes, lines.limits_w, SLOTS, width, fancy)


@pytest.mark.parametrize("width", [80, 120])
def test_a_page_fits_and_says_now_and_peak(width: int) -> None:
    rows = shown(followed(PEAK), width)
    assert max(map(len, rows)) < width
    assert rows[0] == "servbadge  14:03:22.2  587 W together (peak 1367 W at 14:03:22.0)"
    assert rows[1] == "12 V 11.90 V (lowest 11.90 V at 14:03:22), fans 7500 to 8100 RPM, inlet 22 C"
    words = {row.split()[0]: row.split() for row in rows if row.startswith("SXM2-")}
    assert words["SXM2-1"][1:4] == ["290.0", "349.6", "300"]
    assert words["SXM2-1"][-2:] == ["power", "limit"]
    assert words["SXM2-2"][1:4] == ["297.0", "340.0", "300"], "a tick without a sample shows the one before"
    assert words["SXM2-3"][1] == "silent"
    assert words["SXM2-4"][1] == "LOST"
    assert "14:03:22.2 Xid 79 on SXM2-4" in rows
    assert ("█" in rows[4]) == (width == 120)
    assert ("#################..|" in shown(followed(PEAK), width, fancy=False)[4]) == (width == 120)


def test_peaks_are_learnt_from_what_is_new() -> None:
    lines, extremes = followed(PEAK[:3]), Extremes()
    extremes.learn(lines.recording(name="r"))
    assert (extremes.most_w[0], extremes.together) == (349.6, (1366.6, 1795352602.0))
    lines.add('{"t": 1795352603.0, "m": 101.0, "g": [[10, 1, 1, 1, 1, 0], null, null, null]}')
    extremes.learn(lines.recording(name="r"))
    assert extremes.most_w == [349.6, 340.0, 339.0, 338.0]
    assert extremes.lowest is not None
    assert extremes.lowest.volts == 12.24


def test_elsewhere_a_line_a_second_and_a_table_at_the_end() -> None:
    out = io.StringIO()
    screen = table.Screen(Text(out, "", False), "servbadge", SLOTS)
    screen.show(followed(PEAK))
    assert (
        out.getvalue() == "14:03:22 290/297/silent/LOST W, 587 W together, 12 V 11.90 V, 60 C, Xid 79 on 0000:0b:00.0\n"
    )
    rows = table.summary(followed(PEAK).recording(name="r"), SLOTS, 80)
    assert rows[0] == "14:03:21 to 14:03:22, 4 samples: at most 1367 W together, at 14:03:22.0"
    assert rows[2].split() == ["SXM2-1", "244", "350", "at", "14:03:22.0", "60", "1530", "power", "limit"]
    assert rows[5].split()[-3:] == ["LOST,", "power", "limit"]


def test_a_changed_limit_is_shown() -> None:
    lines = followed([*PEAK, {"t": 1795352603.0, "m": 101.0, "limits": [200.0, 300.0, None, 300.0]}])
    words = [row.split()[3] for row in shown(lines, 80) if row.startswith("SXM2-")]
    assert words == ["200", "300", "-", "300"]


def test_a_terminal_is_redrawn_in_place() -> None:
    stream: Any = io.StringIO()
    stream.isatty = lambda: True
    screen = table.Screen(Text(stream, "", False), "servbadge", SLOTS)
    for _ in range(2):
        screen.show(followed(PEAK))
    assert stream.getvalue().count("\x1b[2J") == 1
    assert stream.getvalue().count("\x1b[H") >= 2
    assert stream.getvalue().count("servbadge") == 2
