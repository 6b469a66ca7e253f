"""The figures of earlier stresses that a command reads from the history."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rigwright.features.stress import earlier_figures
from rigwright.history import History, differences
from tests.features.fleet_report.test_command import a_host
from tests.features.stress.test_measured_before import kept
from tests.history.test_history import run_of


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the path of the history."""
    monkeypatch.setenv("RIGWRIGHT_HISTORY", str(tmp_path / "history.sqlite"))
    return tmp_path / "history.sqlite"


def test_by_host_and_gpu_also_of_a_machine_that_is_new(path: Path) -> None:
    with History.open(path) as past:
        made = run_of(0, {differences.FIGURES: kept()}, address="192.0.2.5")  # the address of a host of that name
        past.record({**made, "hosts": {"known": made["hosts"]["servbadge"]}})
    warnings: list[str] = []
    figures = earlier_figures.read([a_host("known"), a_host("new")], SimpleNamespace(warn=warnings.append))
    assert [one.run for one in figures["known"]["GPU-0"]] == ["r0"]
    assert (figures["new"], warnings) == ({}, [])


@pytest.mark.parametrize(
    ("read", "measurements"), [(earlier_figures.read, "stresses"), (earlier_figures.pairs, "peer-to-peer tests")]
)
def test_a_history_that_is_damaged_is_a_warning(path: Path, read: Callable[..., Any], measurements: str) -> None:
    path.write_bytes(b"no database " * 100)
    warnings: list[str] = []
    assert read([a_host("known")], SimpleNamespace(warn=warnings.append)) == {}
    (line,) = warnings
    assert line.startswith(f"nothing is known of earlier {measurements}: {path}: is damaged")
