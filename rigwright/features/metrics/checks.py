"""Metrics for Prometheus: node_exporter serves what the guard read."""

from __future__ import annotations

from collections.abc import Iterator

from rigwright.checks import Finding, check
from rigwright.facts import Facts
from rigwright.features.guard import checks as guard
from rigwright.features.guard.variables import Metrics
from rigwright.features.metrics import facts as served

FRESH_S = 60.0
"""The guard writes the file each 15 s; four were missed (assumed)."""


@check(follows=("module.", "run.", guard.runs))
def exported(facts: Facts, *, metrics: Metrics) -> Iterator[Finding]:
    """node_exporter on the host serves the guard's metrics, and their reading is fresh."""
    age_s = facts(served.reading_age_s)
    right = age_s is not None and age_s <= FRESH_S
    seen = "no rigwright_guard_* on port 9100" if age_s is None else f"a reading {age_s:.0f} s old"
    wanted, fix = (
        f"a reading within {FRESH_S:.0f} s",
        "invoke verify --tags guard; then sudo systemctl restart gpu-guard",
    )
    yield Finding(f"metrics: {metrics}", "pass" if right else "fail", seen, wanted, "", fix, "host")
