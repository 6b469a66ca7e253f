"""Reads what earlier runs measured of the GPUs of the hosts of a run: stresses, and peer-to-peer tests of pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rigwright.cli import fleet_check
from rigwright.cli.fleet_check import RecordedIds
from rigwright.engine.host_run import HostRun
from rigwright.features.stress import measured_before
from rigwright.features.stress.measured_before import Figures, MeasuredPairs


def read(runs: Sequence[HostRun], text: Any, ids: RecordedIds | None = None) -> dict[str, Figures]:
    """By host the figures of earlier stresses of its GPUs; {} and a warning if the history cannot be read. `ids`: the
    ids of these hosts, if they are read already."""
    return fleet_check.remembered(runs, text, measured_before.recorded, "stresses", ids)


def pairs(runs: Sequence[HostRun], text: Any) -> dict[str, MeasuredPairs]:
    """By host the figures of earlier peer-to-peer tests; {} and a warning if the history cannot be read."""
    return fleet_check.remembered(runs, text, measured_before.pairs, "peer-to-peer tests")
