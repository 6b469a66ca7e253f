"""Metrics for Prometheus: node_exporter of the distribution, which serves the file that the guard writes."""

from __future__ import annotations

from collections.abc import Iterator

from rigwright.core.change import Change, Note
from rigwright.core.command import command, script
from rigwright.facts import Facts, systemd as units
from rigwright.facts.apt import dpkg
from rigwright.features.guard.variables import Metrics
from rigwright.features.metrics.facts import PACKAGE, UNIT
from rigwright.operations import apt, operation, systemd

_AGAIN = 'systemctl cat "$1" >/dev/null 2>&1 || exit 0; exec systemctl try-restart "$1"'
_OTHERS = "node_exporter.service"
"""The unit of a node_exporter that somebody installed by hand."""


@operation()
def textfile(facts: Facts, *, metrics: Metrics | None = None) -> Iterator[Change | Note]:
    """node_exporter of the host's distribution is installed, enabled and runs; its textfile collector serves the
    guard's metrics.

    A node_exporter that somebody else installed is left as it is, with a note. Without `metrics` nothing is changed.
    """
    if metrics is None:
        return
    theirs, now = facts.all(units.unit(_OTHERS), dpkg.packages(PACKAGE))
    if theirs.active == "active":
        text = "of somebody else runs: guard.textfile names a file in its --collector.textfile.directory"
        yield Note(f"{_OTHERS} {text}")
        return
    changes = list(apt.packages(facts, names=[PACKAGE]))
    yield from changes
    if changes:
        text = "node_exporter listens on port 9100 of every address: a firewall, or ARGS in"
        yield Note(f"{text} /etc/default/{PACKAGE}")
        # The guard's unit can write only into folders that were there when it was started.
        restart = script(_AGAIN, units.GUARD_UNIT, timeout_s=120)
        enable, start = command("systemctl", "enable", UNIT), command("systemctl", "restart", UNIT)
        yield Change("run", UNIT, "", "enabled, running", (enable, start, restart), units=(UNIT,))
        return
    installed = now.get(PACKAGE)
    if installed and installed.installed:
        yield from systemd.service(facts, name=UNIT)
