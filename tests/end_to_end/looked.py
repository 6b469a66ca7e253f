"""Runs the checks of playbooks/provision.yml in this process over one connection, as `verify` does."""

from __future__ import annotations

import secrets

from rigwright import inventory
from rigwright.checks import Finding
from rigwright.engine import playbook
from rigwright.engine.host_run import Options
from rigwright.fleet import actions, host_runs, pool
from rigwright.history import History
from rigwright.report import json_document
from tests.end_to_end.rw import INVENTORY
from tests.paths import ROOT

OF_PROVISION = ("driver.pin_in_force", "cuda.compiler", "gpu.limits_in_force", "boot.limits_unit_ready")
"""Checks that pass only on a host that rigwright provisioned."""


def findings(name: str, *without: str) -> list[Finding]:
    """Returns the findings of a host, root causes first; `without` names checks to skip.

    Compares with the last run in the history and records the result there, as `verify` does.
    """
    found = inventory.read(INVENTORY)
    bound = playbook.bind(ROOT / "playbooks/provision.yml", found, found.hosts[name], checks_only=True)
    checks = tuple(one for one in bound.checks if one.check not in (*OF_PROVISION, *without))
    (run,) = host_runs.prepare([playbook.BoundPlaybook(bound.host, (), checks)], Options("test"), lambda _event: None)
    host_runs.load_recorded([run])
    try:
        pool.run_hosts([run], actions.verify_host)
    finally:
        pool.close([run])
    assert run.report.error is None, run.report.error
    with History.open() as history:
        history.record(json_document.document("verify", secrets.token_hex(8), 0, None, [run.report]))
    return list(run.report.findings)
