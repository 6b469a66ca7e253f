"""The speed of a fleet under full load at the terminal."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from rigwright.core.process.program_name import as_typed
from rigwright.core.typed_json import typed
from rigwright.engine.machine import MachineResult, MeasuredGpu, MeasuredGpus
from rigwright.features.fleet_report import speed_table as fleet_speed
from rigwright.inventory.model import Host
from tests import reports
from tests.report import fleet_documents


def shown(hosts: dict[str, Any], columns: int) -> str:
    all_reports = []
    for name, host in hosts.items():
        measured = MeasuredGpus(typed(host["measured"] or [], tuple[MeasuredGpu, ...]))
        all_reports.append(reports.report(Host(name, (), {}), MachineResult(host["machine"] or {}), measured))
    out = io.StringIO()
    fleet_speed.show(Console(file=out, width=columns, force_terminal=True, color_system=None), all_reports)
    assert max(map(len, out.getvalue().splitlines()), default=0) <= columns, out.getvalue()
    return out.getvalue()


@pytest.mark.parametrize("columns", [80, 120])
def test_machines_and_the_slowest_gpus_first(columns: int) -> None:
    text = shown(fleet_documents.a_fleet(20)["hosts"], columns)
    lines = text.splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith("machine"))
    assert lines[head + 1].split() == ["node-15", "58%", "77%", "4", "2026-05-12"]
    assert "and 6 machines more, which are faster" in text
    words = " ".join(text.split())
    assert "! node-15 SXM2-1: 58% in FP32: 31% slower than" in words
    assert as_typed("to do its cooler: fan, dust, screws, paste; then invoke stress --host node-15 again") in words
    assert "of 5 machines: " in words
    assert "node-04,node-08,node-12,node-16,node-20" in words


def test_without_measurements_one_line_says_which_command_measures() -> None:
    hosts = fleet_documents.a_fleet(4)["hosts"]
    for host in hosts.values():
        host["measured"] = []
    text = " ".join(shown(hosts, 80).split())
    assert text == as_typed("no speed under full load is known of any machine: invoke stress --host 'node-[01:04]' measures it")  # fmt: skip
    hosts = fleet_documents.a_fleet(2)["hosts"]
    for host in hosts.values():
        host |= {"measured": [], "machine": None}
    assert shown(hosts, 80) == ""
