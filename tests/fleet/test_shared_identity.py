"""Hosts of one run with the same identity: each gets a warning, and the run a message."""

from __future__ import annotations

from rigwright.checks import Finding
from rigwright.core.machine_identity import MachineIdentity
from rigwright.engine.host_run import HostRun
from rigwright.fleet.shared_identity import name_shared
from rigwright.history.machines import CHECK
from rigwright.inventory.model import Host
from tests import reports
from tests.host_runs import host_run

EARLIER = (Finding("machine", "warn", "was gpu1", check=CHECK), Finding("memory", "pass", "all", check="t.memory"))


def host_with(name: str, identity: object) -> HostRun:
    host = Host(name, (), {})
    report = reports.report(host, status="pending", findings=EARLIER, kept={"system.identity": identity})
    return host_run({}, host=host, report=report)


def test_hosts_with_one_identity() -> None:
    same, other = MachineIdentity(board_serial="MH19S00123"), MachineIdentity(board_serial="MH19S00999")
    given = {"a": same, "b": other, "c": same, "d": MachineIdentity(), "e": None, "f": MachineIdentity()}
    runs = [host_with(name, identity) for name, identity in given.items()]
    (message,) = name_shared(runs)
    assert message.startswith("a, c have the same identity (board serial MH19S00123)")
    findings = {each.host.name: each.report.findings for each in runs}
    assert [finding.check for finding in findings["a"]] == [CHECK, "t.memory"], "it replaces the other finding"
    assert findings["a"][0].seen == "c has the same"
    assert [findings[name] for name in "bdef"] == [EARLIER] * 4
    assert {each.report.status for each in runs} == {"pending"}
