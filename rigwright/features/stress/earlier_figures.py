"""Reads what earlier runs measured of the GPUs of the hosts of a run: stresses, and peer-to-peer tests of pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rigwright.cli import fleet_check
from rigwright.cli.fleet_check import RecordedIds
from rigwright.core.errors import HistoryError
from rigwright.features.stress import measured_before
from rigwright.features.stress.measured_before import Figures, MeasuredPairs
from rigwright.fleet.host_job import HostJob
from rigwright.history import History


def read(jobs: Sequence[HostJob], text: Any, ids: RecordedIds | None = None) -> dict[str, Figures]:
    """By host what earlier stresses measured of its GPUs; {} and a warning where the history cannot be read. `ids`: of
    these hosts."""
    try:
        with History.open() as past:
            machines = (ids or RecordedIds(jobs)).of(past)
            return {name: measured_before.recorded(past, machine) for name, machine in machines.items()}
    except HistoryError as error:
        text.warn(f"nothing is known of earlier stresses: {error}")
        return {}


def pairs(jobs: Sequence[HostJob], text: Any) -> dict[str, MeasuredPairs]:
    """By host what earlier peer-to-peer tests measured of its pairs of GPUs; {} and a warning where the history cannot
    be read."""
    try:
        with History.open() as past:
            machines = fleet_check.machines_of(past, jobs)
            return {name: measured_before.pairs(past, machine) for name, machine in machines.items()}
    except HistoryError as error:
        text.warn(f"nothing is known of earlier peer-to-peer tests: {error}")
        return {}
