"""Reports about hosts for tests."""

from __future__ import annotations

from typing import Any

from rigwright.core.host_result import HostResult
from rigwright.engine.report import CheckResult, HostReport
from rigwright.inventory.model import Host


def report(host: Host, *results: HostResult, findings: Any = (), **fields: Any) -> HostReport:
    """A report with these results and fields as they are, and with findings of checks, if there are any."""
    if findings:
        results = (*results, CheckResult(tuple(findings)))
    return HostReport(host, results={type(result): result for result in results}, **fields)
