"""`invoke facts` as text: no Python expressions, equal fields once, whole words at 40, 80 and 120 columns."""

from __future__ import annotations

import io
from collections.abc import Mapping

import pytest
from rich.console import Console

from rigwright.facts import Unavailable
from rigwright.facts.gpu.gpus import ClockPair, Gpu
from rigwright.facts.system import OsRelease
from rigwright.report.tables import facts

GPUS = tuple(
    Gpu(at, f"GPU-0000000{at}", f"0000:0{at}:00.0", "Tesla V100", True, 300.0, 150.0, 300.0, 300.0, pair, None)
    for at, pair in enumerate([ClockPair(877, 1005), ClockPair(877, 1005), ClockPair(877, 1380), None])
)
FACTS = {
    "system.os_release": OsRelease("ubuntu", "22.04", "jammy", "Ubuntu 22.04.5 LTS"),
    "system.kernel": "6.8.0-50-generic",
    "system.free_mib": {"/": 90000, "/boot": 500},
    "driver.loaded_version": None,
    "dpkg.audit": (),
    "gpu.gpus": GPUS,
    "gpu.processes": Unavailable("nvidia-smi is not installed"),
    "hostile": "[bold]\x1b[2J",
}


def _shown(values: Mapping[str, object], columns: int, terminal: bool = True) -> str:
    stream = io.StringIO()
    facts.show(Console(file=stream, width=columns, force_terminal=terminal, no_color=True, highlight=False), values)
    return stream.getvalue().replace("\x1b[1m", "").replace("\x1b[2m", "").replace("\x1b[0m", "")


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_no_line_is_longer_than_the_terminal(columns: int) -> None:
    text = _shown(FACTS, columns)
    assert [line for line in text.splitlines() if len(line) > columns] == []
    assert [word for word in ("Gpu(", "None", "True", "OsRelease", "{", "'") if word in text] == []
    assert "\x1b" not in text


def test_values_are_written_for_a_reader() -> None:
    lines = _shown(FACTS, 120, terminal=False).splitlines()
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in lines}
    assert rows["pretty_name"] == "Ubuntu 22.04.5 LTS"
    assert rows["system.kernel"] == "6.8.0-50-generic"
    assert rows["/boot"] == "500"
    assert rows["driver.loaded_version"] == rows["dpkg.audit"] == "none"
    assert rows["gpu.processes"] == "unavailable: nvidia-smi is not installed"
    assert rows["hostile"] == "[bold]\N{REPLACEMENT CHARACTER}[2J"


def test_gpus_are_one_group_and_equal_fields_are_shown_once() -> None:
    lines = _shown({"gpu.gpus": GPUS}, 120, terminal=False).splitlines()
    assert lines[0].split() == ["gpu.gpus", "4"]
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in lines}
    assert rows["name"] == "Tesla V100"
    assert rows["index"] == "0, 1, 2, 3"
    assert rows["persistence"] == "yes"
    pair = "memory_mhz 877, graphics_mhz"
    assert rows["application_clocks"] == f"{pair} 1005; {pair} 1005; {pair} 1380; none"
    assert len(lines) == 1 + len(Gpu.__struct_fields__)
