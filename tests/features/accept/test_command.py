"""`invoke accept` with the figures of earlier stresses; what it does on a host is in tests/end_to_end."""

from __future__ import annotations

import io
from typing import Any

import pytest

from rigwright.engine.machine import MachineResult, MeasuredGpus
from rigwright.engine.report import HostReport
from rigwright.facts.gpu.figures import Dated, GpuFigures
from rigwright.features.accept import command
from rigwright.features.accept.options import AcceptOptions
from rigwright.features.stress import earlier_figures
from rigwright.inventory.model import Host
from rigwright.report import json_document
from rigwright.report.terminal import Text
from tests import reports
from tests.host_runs import host_run
from tests.report import run_documents as made


def accepted(monkeypatch: pytest.MonkeyPatch, fp32: dict[int, float]) -> tuple[HostReport, str]:
    """Returns the report on a machine with four GPUs, and the text; `fp32`: TFLOPS that the last stress measured, by
    GPU."""
    before = {
        made.uuid(at): (Dated("2026-05-12T10:00:00+00:00", "r1", GpuFigures(made.uuid(at), "V100", 300.0, "535", "12.2",
            600.0, {"fp32": rate}, {"fp32": 1500.0})),)
        for at, rate in fp32.items()
    }  # fmt: skip
    host = Host("servbadge", (), {})
    run = host_run({}, host=host, report=reports.report(host, MachineResult(made.healthy()["machine"]), status="ok"))
    monkeypatch.setattr(earlier_figures, "read", lambda _jobs, _text: {"servbadge": before})
    out = io.StringIO()
    text = Text(out, "", False)
    command._judge([run], text, AcceptOptions(host="servbadge"))
    return run.report, out.getvalue()


def test_a_gpu_that_was_slow_under_full_load_is_a_minor_flaw(monkeypatch: pytest.MonkeyPatch) -> None:
    report, text = accepted(monkeypatch, {0: 14.0, 1: 14.1, 2: 9.9, 3: 14.0})
    assert [(one.subject, one.verdict) for one in report.findings] == [("SXM2-3 0000:08:00.0", "warn")]
    assert "63% of its model's figure in FP32 on 2026-05-12: 29% slower than 3 other GPUs" in report.findings[0].seen
    assert report.exit_code == 0
    assert "minor flaw  SXM2-3" in text
    document: dict[str, Any] = json_document.document("accept", "r", 0, None, [report])["hosts"]["servbadge"]
    assert [row["position"] for row in document["measured"]] == ["SXM2-1", "SXM2-2", "SXM2-3", "SXM2-4"]
    assert document["measured"][0]["shares"] == {"fp32": pytest.approx(0.8917, abs=1e-3)}


def test_gpus_that_are_well_and_gpus_that_nobody_stressed(monkeypatch: pytest.MonkeyPatch) -> None:
    report, text = accepted(monkeypatch, {0: 14.0, 1: 14.1, 3: 14.0})
    assert report.findings == ()
    assert "no flaw found" in text
    assert "known: " not in text
    report, text = accepted(monkeypatch, {})
    assert report.last(MeasuredGpus).gpus == ()
    assert "no speed under full load is known" in text
