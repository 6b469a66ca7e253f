"""The figures of earlier stresses that a command reads from the history."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from rigwright.features.stress import earlier_figures
from rigwright.history import History, differences
from tests.features.fleet_report.test_command import a_host
from tests.features.stress.test_measured_before import kept
from tests.history.test_history import run_of


def test_by_host_and_gpu_also_of_a_machine_that_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "history.sqlite"
    monkeypatch.setenv("RIGWRIGHT_HISTORY", str(path))
    with History.open(path) as past:
        made = run_of(0, {differences.FIGURES: kept()})
        made["hosts"] = {
            "known": {**made["hosts"]["servbadge"], "address": "192.0.2.5"}
        }  # the address of a host of that name
        past.record(made)
    lines: list[str] = []
    text = SimpleNamespace(warn=lines.append)
    found = earlier_figures.read([a_host("known"), a_host("new")], text)
    assert [one.run for one in found["known"]["GPU-0"]] == ["r0"]
    assert found["new"] == {}
    assert lines == []


def test_a_history_that_is_damaged_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "history.sqlite"
    path.write_bytes(b"no database " * 100)
    monkeypatch.setenv("RIGWRIGHT_HISTORY", str(path))
    lines: list[str] = []
    text = SimpleNamespace(warn=lines.append)
    assert earlier_figures.read([a_host("known")], text) == {}
    (line,) = lines
    assert line.startswith(f"nothing is known of earlier stresses: {path}: is damaged")
