"""What `verify` says of a host, in this process: the checks of playbooks/provision.yml over one connection."""

from __future__ import annotations

from rigwright import fleet, inventory, playbook
from rigwright.checks import Finding
from rigwright.hostrun import Options
from tests.lab.rw import CHECKOUT, INVENTORY

OF_PROVISION = ("driver.pin_in_force", "cuda.compiler", "gpu.limits_in_force", "boot.limits_unit_ready")
"""Checks that only a host can pass that rigwright itself provisioned."""


def findings(name: str, *without: str) -> list[Finding]:
    """The findings of a host that somebody else installed, root causes first; `without` those checks besides."""
    found = inventory.read(INVENTORY)
    bound = playbook.bind(CHECKOUT / "playbooks/provision.yml", found, found.hosts[name], checks_only=True)
    checks = tuple(one for one in bound.checks if one.check not in (*OF_PROVISION, *without))
    (work,) = fleet.prepare([playbook.Bound(bound.host, (), checks)], Options("test"), lambda _event: None)
    try:
        fleet.run_hosts([work], fleet.check_all)
    finally:
        fleet.close([work])
    assert work.report.error is None, work.report.error
    return list(work.report.findings)
