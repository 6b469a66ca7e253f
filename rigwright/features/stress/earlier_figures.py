"""Reads what earlier runs measured of the GPUs of the hosts of a run: stresses, and peer-to-peer tests of pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from rigwright.cli.fleet_check import RecordedIds
from rigwright.core.errors import HistoryError
from rigwright.engine.host_run import HostRun
from rigwright.features.stress import measured_before
from rigwright.features.stress.measured_before import Figures, MeasuredPairs
from rigwright.history import History

T = TypeVar("T")


def read(runs: Sequence[HostRun], text: Any, ids: RecordedIds | None = None) -> dict[str, Figures]:
    """By host the figures of earlier stresses of its GPUs; {} and a warning if the history cannot be read. `ids`: the
    ids of these hosts, if they are read already."""
    return _read(runs, text, ids, measured_before.recorded, "stresses")


def pairs(runs: Sequence[HostRun], text: Any) -> dict[str, MeasuredPairs]:
    """By host the figures of earlier peer-to-peer tests; {} and a warning if the history cannot be read."""
    return _read(runs, text, None, measured_before.pairs, "peer-to-peer tests")


def _read(
    runs: Sequence[HostRun],
    text: Any,
    ids: RecordedIds | None,
    figures_of: Callable[[History, int | None], T],
    measurements: str,
) -> dict[str, T]:
    try:
        with History.open() as past:
            machines = (ids or RecordedIds(runs)).of(past)
            return {name: figures_of(past, machine) for name, machine in machines.items()}
    except HistoryError as error:
        text.warn(f"nothing is known of earlier {measurements}: {error}")
        return {}
