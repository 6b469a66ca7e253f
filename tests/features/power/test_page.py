"""The page of a recording: peaks are in its plots, however long it is; and in a real browser it can be read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rigwright.features.power import page as power_page
from tests.features.recorder.recordings import SLOTS, header, read, tick, volts
from tests.report.chromium import Chromium


def a_recording(seconds: float = 60, peak_at_s: float = 40.0) -> list[dict[str, object]]:
    """Returns the lines of four GPUs at 200 W, with a peak of 0.3 s and a gap of three seconds."""
    lines: list[dict[str, object]] = []
    for number in range(int(seconds * 10)):
        at = number / 10
        if 50 <= at < 53:
            continue
        watts = 412.0 if peak_at_s <= at < peak_at_s + 0.3 else 200.0
        lines.append(tick(at, watts, 199.0, 201.0, 200.0))
        if not number % 10:
            lines.append(volts(at + 0.01, 11.4 if int(at) == 41 else 12.06))
    return lines


def heights(line: str) -> list[float]:
    return [float(y) for _, y in re.findall(r"[ML](\S+?) ([\d.]+)", line)]


@pytest.mark.parametrize("seconds", [60, pytest.param(7200, marks=pytest.mark.nightly)])
def test_a_peak_of_three_samples_is_in_the_plot(seconds: int) -> None:
    plots = power_page.plots(read(a_recording(seconds)), SLOTS)
    assert [plot.title for plot in plots] == ["SXM2-1", "SXM2-2", "SXM2-3", "SXM2-4", "All GPUs together", "12 V rail"]
    first, rail = plots[0], plots[-1]
    assert first.spot.text.startswith("412 W at 14:04:0")
    assert min(heights(first.line)) == first.spot.y
    assert first.spot.y < first.limit < max(heights(first.line))
    assert len(first.line) < 20_000
    assert first.line.count("M") == (2 if seconds == 60 else 1), "a gap of several columns breaks the line"
    assert rail.spot.text.startswith("11.40 V")
    assert max(heights(rail.line)) == rail.spot.y


def test_the_page_names_peaks_gaps_and_the_simulation() -> None:
    page = power_page.page("servbadge", read(a_recording()), SLOTS, "simulated host")
    for words in ("at most 1012 W at 14:04:01.9", "no sample for 3.1 s", "SIMULATED"):
        assert words in page
    assert "<script" not in page
    assert re.findall(r"https?://[^\"' ]+", page) == []


def test_a_host_cannot_write_html() -> None:
    hostile = header(1)
    hostile["gpus"][0]["name"] = "<img src=x onerror=alert(1)>\x1b[31m"
    page = power_page.page("<b>", read([tick(0.0, 40.0), tick(0.1, 41.0)], hostile), {})
    assert [text for text in ("<img", "<b>", "\x1b") if text in page] == []


def test_short_and_empty_recordings_have_a_page_too() -> None:
    empty = power_page.page("h", read([], header(0, nvml="Driver Not Loaded")), {})
    assert "0 samples" in empty
    assert "Driver Not Loaded" in empty
    assert "1 samples" in power_page.page("h", read([tick(0.0, 40.0, None, "hung", "lost")]), {})


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280, 1600])
def test_it_can_be_read(chromium: Chromium, tmp_path: Path, width: int, scheme: str) -> None:
    path = tmp_path / "power.html"
    path.write_text(power_page.page("servbadge", read(a_recording()), SLOTS, "simulated host"), encoding="utf-8")
    assert chromium.hard_to_read(path, width, scheme) == []
