"""The text of `fleet.check` and `fleet.report`: a line for each of few hosts, and of many hosts their problems by
cause."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from rigwright.checks import Finding
from rigwright.core.errors import Unreachable
from rigwright.engine.report import HostReport
from rigwright.inventory.model import Host
from rigwright.report.tables import fleet
from rigwright.report.terminal import Text
from tests import reports


def a_report(number: int, *findings: Finding, **more: Any) -> HostReport:
    """Returns the report of the host gpu<number>."""
    status = "failed" if any(each.verdict in ("fail", "unknown") for each in findings) else "ok"
    return reports.report(Host(f"gpu{number:04}", ("gpu",), {}), **{"status": status, "findings": findings, **more})


def a_thousand() -> list[HostReport]:
    """Returns a thousand reports: 31 with a warning, 20 that do not answer, 12 hot ones, 30 that drift, one with many
    differences."""
    patched = Finding("security", "warn", "driver 535.261.03", "a branch with fixes",
                      "535 has no fixes since 2026-06-30", check="driver.patched", symptom="driver.ended")  # fmt: skip
    reports = []
    for number in range(1, 1001):
        name = f"gpu{number:04}"
        if number <= 31:
            reports.append(a_report(number, patched))
        elif number <= 51:
            error = Unreachable(name, f"the connection was refused (10.0.0.{number}, port 22)", "sshd that answers", "")
            reports.append(a_report(number, status="unreachable", error=error))
        elif number <= 63:
            hot = Finding(f"SXM2-1 0000:06:00.{number % 8}", "warn", f"{30 + number} C under load", check="health.heat")
            reports.append(a_report(number, hot))
        elif number <= 93:
            subject = f"Limits: SXM2-1 0000:06:00.{number % 8}"
            reports.append(a_report(number, Finding(subject, "fail", f"{number + 200} W", "200 W", check="plan")))
        elif number == 94:
            steps = (Finding(f"step {step}", "fail", "absent", check="plan") for step in range(9))
            reports.append(a_report(number, *steps))
        else:
            reports.append(a_report(number, Finding("swap", "pass", "none", check="swap.off")))
    return reports


def text_of(reports: list[HostReport], columns: int, terminal: bool = False) -> str:
    """Returns the text at a width."""
    console = Console(file=io.StringIO(), width=columns, force_terminal=terminal, color_system=None)
    fleet.check(console, reports)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("columns", [80, 120])
def test_the_text_of_a_thousand_hosts_is_short(columns: int) -> None:
    text = text_of(a_thousand(), columns, terminal=True)
    assert text.count("\n") < 30
    assert all(len(line) <= columns for line in text.splitlines())


def test_a_cause_stands_once_with_the_number_of_its_hosts_and_their_names() -> None:
    lines = text_of(a_thousand(), 200).splitlines()
    for first, second in (
        ("away    20 hosts: the connection was refused (ADDRESS, port 22)", "gpu[0032:0051]"),
        ("fail    30 hosts: Limits: 264 to 293 W, not 200 W  playbook", "gpu[0064:0093]"),
        ("fail    1 host: 9 differences from the playbook  playbook", "gpu0094"),
        ("warn    31 hosts: security: driver 535.261.03", "gpu[0001:0031]"),
        ("warn    12 hosts: 82 to 93 C under load", "gpu[0052:0063]"),
    ):
        at = next((number for number, line in enumerate(lines) if line.startswith(first)), None)
        assert at is not None, (first, lines)
        assert lines[at + 1].strip() == second
    assert lines[-1] == "1000 hosts: 949 as expected, 31 drifting, 20 unreachable"


def test_a_host_whose_test_did_not_run_is_not_proved_and_does_not_drift() -> None:
    unknown = Finding("peer-to-peer test", "unknown", "not run: the GPUs are in use", check="p2p.ran")
    differs = Finding("Limits", "fail", "264 W", "200 W", check="plan")
    found = [a_report(1, unknown), a_report(2, unknown, differs), a_report(3)]
    assert [each.exit_code for each in found] == [2, 2, 0]
    assert [each.verdict.level for each in found if each.verdict] == ["unknown", "fail"]
    lines = text_of(found, 200).splitlines()
    assert "?      gpu0001  1 in its checks" in lines
    assert lines[-1] == "3 hosts: 1 as expected, 1 drifting, 1 not proved"


def test_of_several_hosts_it_says_what_is_lost_and_few_have_a_line_each() -> None:
    lost = Finding("SXM2-1 0000:06:00.0", "fail", "GPU is lost", check="gpu.answering", symptom="gpu.off_bus")
    text = text_of([a_report(number, lost) for number in range(fleet.MANY + 1)], 200)
    assert f"fail    {fleet.MANY + 1} hosts: GPU lost\n" in text
    text = text_of(a_thousand()[: fleet.MANY], 120)
    assert all(f"gpu{number:04}" in text for number in range(1, fleet.MANY + 1))


def test_causes_come_in_the_order_of_their_weight_and_are_cut() -> None:
    marks = [
        line.split()[0:2] for line in text_of(a_thousand(), 200).splitlines() if " host" in line and line[0] != " "
    ][:-1]
    assert marks == [["away", "20"], ["fail", "30"], ["fail", "1"], ["warn", "31"], ["warn", "12"]]
    reports = [
        a_report(number, Finding(f"unit u{number}", "fail", "failed", check="machine.units")) for number in range(100)
    ]
    text = text_of(reports, 100)
    assert f"and {100 - fleet.CAUSES} more causes" in text
    assert text.count("\n") < 3 * fleet.CAUSES


def test_the_errors_of_many_hosts_with_other_addresses_are_one() -> None:
    out = io.StringIO()
    text = Text(out, "", True)
    text.errors([(report.host.name, report.error) for report in a_thousand() if report.error])
    assert out.getvalue().count("error") == 1
    assert "gpu[0032:0051]" in out.getvalue()
    assert "(ADDRESS, port 22)" in out.getvalue()
