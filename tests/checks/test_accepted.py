"""Warnings that the owner accepts until a date: they do not count, and every report names them."""

from __future__ import annotations

import datetime
import io
from typing import Any

import pytest
from rich.console import Console

from rigwright.checks import Finding, accepted
from rigwright.core.desired import Acceptance
from rigwright.engine.report import HostReport
from rigwright.features.fleet_report import page as fleet_page
from rigwright.inventory.model import Host
from rigwright.report.html.host_page import page
from rigwright.report.json_document import document
from rigwright.report.tables import fleet
from rigwright.report.terminal import Text
from tests import reports
from tests.report.fleet_documents import a_document as a_fleet, a_node

TODAY = datetime.date(2026, 11, 27)
PATCHED = Finding("security", "warn", "driver 535.261.03", "a branch that gets fixes", check="driver.patched")
SWAP = Finding("swap", "pass", "none", check="swap.off")
DECISION = Acceptance(datetime.date(2027, 3, 1), "535 for P2P")
TEXT = "until 2027-03-01, because 535 for P2P"


def narrow(position: str, verdict: Any = "warn") -> Finding:
    """Returns a finding about the link of a GPU."""
    return Finding(f"{position} 0000:06:00.0", verdict, "x8", "x16", check="pcie.link", symptom="pcie.narrow")


@pytest.mark.parametrize(
    ("finding", "decision", "verdict", "text"),
    [
        (PATCHED, {"driver.patched": DECISION}, "info", TEXT),
        (PATCHED, {"driver.patched": Acceptance(TODAY, "today")}, "info", "until 2026-11-27, because today"),
        (PATCHED, {"driver.patched": Acceptance(datetime.date(2026, 11, 26), "old")}, "warn",
         "ended on 2026-11-26, the warning counts again"),
        (PATCHED, {"driver.loaded": DECISION}, "warn", ""),
        (narrow("PCIE-1"), {"pcie.narrow": DECISION}, "info", TEXT),
        (narrow("PCIE-1"), {"pcie.link": Acceptance(DECISION.until, "a riser", ("PCIE-2",))}, "warn", ""),
        (narrow("PCIE-2"), {"pcie.link": Acceptance(DECISION.until, "a riser", ("PCIE-2",))}, "info",
         "until 2027-03-01, because a riser"),
        (narrow("PCIE-1", "fail"), {"pcie.link": DECISION}, "fail", "only its warnings are accepted; this one counts"),
        (narrow("PCIE-1", "unknown"), {"pcie.link": DECISION}, "unknown",
         "only its warnings are accepted; this one counts"),
        (SWAP, {"swap.off": DECISION}, "pass", ""),
        (Finding("test", "warn", "required", check="p2p.ran"), {"p2p.ran": DECISION}, "warn", ""),
    ],
)  # fmt: skip
def test_only_a_warning_is_accepted_and_until_its_day(
    finding: Finding, decision: dict[str, Acceptance], verdict: str, text: str
) -> None:
    (judged,) = accepted.with_decisions((finding,), decision, TODAY)
    assert (judged.verdict, judged.accepted) == (verdict, text)
    assert accepted.with_decisions((judged,), decision, TODAY) == (judged,)


def a_report(*findings: Finding) -> HostReport:
    """Returns the report of a host with these findings, and a check that passes."""
    return reports.report(Host("servbadge", (), {}), findings=(*findings, SWAP), status="ok")


def test_a_host_whose_warnings_are_accepted_is_fit_and_every_report_names_them() -> None:
    report = a_report(*accepted.with_decisions((PATCHED,), {"driver.patched": DECISION}, TODAY))
    assert report.problems == ()
    assert report.verdict is not None
    assert report.verdict.level == "pass"
    assert report.verdict.sentence == "Fit for work: 1 check holds, 1 warning accepted"

    stream = io.StringIO()
    text = Text(stream, "inventory", many=False)
    text.problems(report)
    assert f"info  security: driver 535.261.03\n        accepted: {TEXT}" in stream.getvalue()
    text.findings(report)
    assert stream.getvalue().count(TEXT) == 2

    console = Console(file=io.StringIO(), width=200, color_system=None)
    fleet.check(console, [report])
    assert f"accepted  security: driver 535.261.03, {TEXT}" in console.file.getvalue()  # type: ignore[attr-defined]
    fleet.check(console, [report] * 41)
    assert f"info    1 host: security: driver 535.261.03, accepted {TEXT}" in console.file.getvalue()  # type: ignore[attr-defined]

    written = document("verify", "20261127-030000-0a1b", 0, None, [report])
    assert [(each["verdict"], each["accepted"]) for each in written["hosts"]["servbadge"]["findings"]] == [
        ("info", TEXT), ("pass", ""),
    ]  # fmt: skip
    html = page([written])
    assert TEXT in html
    assert "Everything is as expected" in html


def test_the_fleet_page_names_accepted_warnings_beside_the_problems() -> None:
    html = fleet_page.page(a_fleet(gpu1=_with_warning("info", TEXT), gpu2=a_node(2)))
    assert "driver 535.261.03" in html
    assert TEXT in html
    assert "2 as expected" in html


def _with_warning(verdict: str, text: str) -> dict[str, Any]:
    row = {"check": "driver.patched", "subject": "security", "verdict": verdict, "seen": "driver 535.261.03"}
    return a_node(1, findings=[{**row, "accepted": text}])


def test_what_counts_although_its_name_is_accepted_says_why() -> None:
    decision = {"driver.patched": Acceptance(datetime.date(2026, 11, 1), "old")}
    report = a_report(*accepted.with_decisions((PATCHED,), decision, TODAY))
    ended = "ended on 2026-11-01, the warning counts again"
    assert report.verdict is not None
    assert report.verdict.sentence == "Fit, with 1 warning"
    stream = io.StringIO()
    Text(stream, "inventory", many=False).problems(report)
    assert f"accepted: {ended}" in stream.getvalue()
    assert ended in page([document("verify", "20261127-030000-0a1b", 0, None, [report])])
