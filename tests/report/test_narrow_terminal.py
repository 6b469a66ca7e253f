"""What commands print on terminals of 40, 80 and 120 columns: no line is too wide, its rest is indented, words stay
whole."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from rigwright import catalogue
from rigwright.checks import Finding
from rigwright.core.host_result import HostResult
from rigwright.engine import events
from rigwright.engine.machine import MachineResult
from rigwright.engine.plan import PlannedStep
from rigwright.engine.playbook import Step
from rigwright.engine.report import HostReport, PlanResult
from rigwright.facts.gpu.health import Card
from rigwright.facts.nccl.document import Versions
from rigwright.facts.nccl.p2p_test import CopyResult, Counts, Document, Grant, Pair, Row as Scaled, SendRecvResult
from rigwright.features.accept import table as accept
from rigwright.features.explain import answer as explained, table as explain
from rigwright.features.fleet_report.changes import ComparisonResult, over_time
from rigwright.features.power import table as power
from rigwright.features.power.draw import setting_of
from rigwright.features.power.plan import plan
from rigwright.features.try_ import table as attempt
from rigwright.features.try_.attempt import QUANTITIES, Attempt, Measurement, compare
from rigwright.inventory.model import Host
from rigwright.report.tables import fleet, limits, nccl
from rigwright.report.terminal import Text
from tests import reports
from tests.checks.test_problems import recorded
from tests.paths import CASES
from tests.report import run_documents as made
from tests.report.test_live import Terminal

_, FINDINGS = recorded(CASES / "problems" / "gpu_lost_and_ecc.yml")
WORDS = " ".join(f"word{number}" for number in range(40))
COPIED = ("sudo ", "invoke ", ".venv/bin/invoke ", "nvidia-smi ", "application_clocks: ")
"""The beginnings of lines that a reader copies, which stay whole."""
LIMIT = {"in_force": "200 W", "expected": "200 W", "supported": "150-300 W", "set_by": "", "drift": False}


def _report(*results: HostResult, **more: Any) -> HostReport:
    return reports.report(Host("h" * 30, (), {}), *results, status="failed", findings=FINDINGS, **more)


def _planned() -> HostReport:
    step = Step("CUDA held", "apt.held", lambda _facts: iter(()), {}, "play.yml:1")
    return _report(PlanResult((PlannedStep(step, "unknown", reason=WORDS),)))


def _accept(console: Console) -> None:
    lost = Card(made.bus_id(2), "", "", lost="GPU is lost")
    accept.show(console, [_report(MachineResult(made.a_machine(made.known((made.a_card(0), made.a_card(1), lost,
        made.a_card(3))))))])  # fmt: skip


def _limits(console: Console) -> None:
    none = {**LIMIT, "in_force": "", "expected": ""}
    values = dict.fromkeys(("persistence", "power", "application_clocks"), LIMIT)
    values |= dict.fromkeys(("locked_graphics", "locked_memory"), none)
    rows = [
        {"position": f"SXM2-{number}", "bus_id": made.bus_id(number), "uuid": made.uuid(number),
         "name": "Tesla V100-SXM2-16GB",
         "lost": "GPU is lost" if number == 2 else "", **values}
        for number in range(4)
    ]  # fmt: skip
    limits.show(console, rows)


def _measured() -> Document:
    done = CopyResult(True, "ok", 47.9)
    sent = SendRecvResult(True, "ok", 44.4, transport="P2P/direct pointer", kind="P2P")
    pairs = tuple(Pair(a, b, Grant(True, None, None), done, done, sent) for a in range(4) for b in range(4) if a != b)
    scaling = tuple(Scaled(number, 1602.4, 1588.2, 14.2, number * 0.98, 0.98, None) for number in (1, 2, 3, 4))
    return Document(
        1, False, "ok", "", 1.0, Versions("535.261.03", "12.2", "12.2", "2.21.5"), {}, Counts(4, 4), (), pairs, None,
        scaling,
        None, (), (), (), (),
    )  # fmt: skip


def _over_time(console: Console) -> None:
    end = {"date": "2026-06-30", "name": "driver 535", "state": "ended", "words": WORDS}
    since = {"since": "2026-11-20T18:30:00+00:00", "became": [], "new": [], "gone": [], "ends": [end]}
    over_time(console, [_report(ComparisonResult(since))])


def _power(console: Console) -> None:
    rig = catalogue.rig("servbadge", "a test")
    power.show(console, plan(rig, "a test", setting_of(rig.limits), 0.3))


def _check(console: Console) -> None:
    drift = Finding("driver", "fail", "580", expected="535", cause=WORDS, check="fleet.past")
    other = Finding("identity", "warn", "another machine", "", WORDS, "correct ansible_host", check="history.machine")
    fleet.check(console, [_report(), _report(PlanResult((), "a lab")).with_findings((drift, other))])


def _explain(console: Console) -> None:
    explain.show(console, explained.explain("gpu.off_bus", datetime.date(2026, 11, 22)))


def _try(console: Console) -> None:
    conditions = {"driver": "535.261.03", "kernel command line": WORDS}
    rounds = dict.fromkeys(QUANTITIES, (1705.25, 1710.0, 1715.5, 1712.0))
    before = Measurement("2026-11-22T19:28:27Z", conditions, 16, {}, "P2P", rounds)
    failures = {f"GPU {number} to 1, NCCL": "hang" for number in range(9)}
    slower = {name: tuple(value / 3 for value in values) for name, values in rounds.items()}
    after = Measurement("2026-11-22T19:38:27Z", {"driver": "580.178.04"}, 7, failures, "SHM", slower, {"load": WORDS})
    for tried in (
        Attempt("driver: {branch: '580'}", before=before),
        Attempt("driver: {branch: '580'}", "", before, after, "", compare(before, after)),
        Attempt("", "BIOS 4.11", after, before, "", compare(after, before)),
        Attempt("", "BIOS 4.11", before, before, "", compare(before, before), failure=WORDS),
    ):
        attempt.show(console, tried)


TABLES: dict[str, Callable[[Console], None]] = {
    "accept": _accept,
    "limits": _limits,
    "fleet.check": _check,
    "fleet.report": _over_time,
    "power.plan": _power,
    "explain": _explain,
    "try": _try,
}
RUNS: dict[str, Callable[[Text], None]] = {
    "heading": lambda text: text.event(events.Connected("h", "192.0.2.1", f"simulated {WORDS}")),
    "note": lambda text: text.event(events.Note("h", WORDS)),
    "output": lambda text: text.event(events.OutputLine("h", "a step", WORDS)),
    "plan": lambda text: text.plans([_planned()]),
    "problems": lambda text: text.problems(_report()),
    "findings": lambda text: text.findings(_report()),
    "nccl": lambda text: [text.line(line) for line in nccl.lines(_measured(), text.console.width)] and None,
}
DRAWN = ("output", "power.plan", "nccl")
"""What is shortened or drawn to the terminal's width."""


def _lines(name: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns what a command writes to a terminal of that many columns, without colours."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    if name in RUNS:
        RUNS[name](Text(stream, "inventory", many=False))
    else:
        TABLES[name](Console(file=stream, emoji=False))
    return re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue()).splitlines()


@pytest.mark.parametrize("columns", [40, 80, 120])
@pytest.mark.parametrize("name", [*TABLES, *RUNS])
def test_no_line_is_wider_than_the_terminal(name: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a single long word may be, and a command that a reader copies."""
    lines = _lines(name, columns, monkeypatch)
    too_wide = [line for line in lines if len(line.rstrip()) > columns]
    texts = [re.sub(r"^ *((fix: +)?\d+\. |UUID +)?", "", line) for line in too_wide]
    assert [text for text in texts if " " in text and not text.startswith(COPIED)] == []


@pytest.mark.parametrize("name", sorted({*TABLES, *RUNS} - {*DRAWN}))
def test_a_narrow_terminal_shows_the_same_words(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A word is never broken; what does not fit into a line is indented, so no line begins with it."""
    wide, narrow = ([line.split() for line in _lines(name, columns, monkeypatch)] for columns in (400, 40))
    known = {word for line in wide for word in line}
    assert [word for line in narrow for word in line if word not in known] == []


def test_the_rest_of_a_line_is_indented(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("heading", "note", "plan", "fleet.check", "fleet.report"):
        words = [line for line in _lines(name, 40, monkeypatch) if line.startswith("word")]
        assert words == [], name


def test_tables_of_80_and_120_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = _lines("try", 80, monkeypatch)
    at = [line.split() for line in lines].index(["measured", "unit", "before", "after", "change"])
    assert [line.split() for line in lines[at + 1 : at + 3]] == [
        ["peer-to-peer", "test", "passed", "16", "of", "16", "7", "of", "16", "fails"],
        ["products,", "all", "GPUs", "TFLOPS", "1711", "±", "5", "570.3", "±", "1.7", "-66.7", "%", "worse"],
    ]
    lines = _lines("limits", 80, monkeypatch)
    assert [line.split()[0] for line in lines[:5]] == ["position", "SXM2-0", "SXM2-1", "SXM2-2", "SXM2-3"]
    assert "GPU is lost" in lines[3]
    text = "\n".join(_lines("accept", 120, monkeypatch))
    assert "ECC                on\n" in text
    assert "Answer             ✗ GPU is lost (SXM2-3)" in text


def test_a_line_to_copy_gets_no_line_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    line = f"CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=GPU-{'0' * 32},[red]GPU-{'1' * 32}"
    Text(stream, "inventory", many=False).copied(line)
    assert re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue()) == f"{line}\n"
