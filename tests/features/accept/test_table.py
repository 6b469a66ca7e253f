"""`invoke accept` at the terminal: the figures of the last stress of each GPU, or the command that measures them."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from rigwright.core.process.program_name import as_typed
from rigwright.core.typed_json import typed
from rigwright.engine.machine import MachineResult, MeasuredGpu, MeasuredGpus
from rigwright.features.accept import table as accept
from rigwright.inventory.model import Host
from tests import reports
from tests.report import run_documents as made


def shown(host: dict[str, Any], measured: list[dict[str, Any]], columns: int) -> str:
    rows = typed(measured, tuple[MeasuredGpu, ...])
    report = reports.report(Host("servbadge", (), {}), MachineResult(host["machine"]), MeasuredGpus(rows), status="ok")
    out = io.StringIO()
    accept.show(Console(file=out, width=columns, force_terminal=True, color_system=None), [report])
    return out.getvalue()


@pytest.mark.parametrize("columns", [80, 120])
def test_each_gpu_has_its_share_of_its_models_figure(columns: int) -> None:
    host = made.healthy()
    text = shown(host, made.stressed(host, without=1), columns)
    assert max(map(len, text.splitlines())) <= columns, text
    words = " ".join(text.split())
    assert "Stressed 2026-05-12, power limit 200 W, driver 535.261.03 (SXM2-1, SXM2-2, SXM2-3)" in words
    assert "FP32 13.4 TFLOPS, 85% of its model's figure (SXM2-1, SXM2-2, SXM2-3)" in words
    assert "Memory speed 742 GB/s, 82% of its model's figure" in words
    assert "full load is known" not in words


@pytest.mark.parametrize("columns", [80, 120])
def test_a_share_that_was_measured_with_limited_clocks_says_so(columns: int) -> None:
    host = made.healthy()
    limited = {"tflops": {"fp32": 9.26}, "clocks_mhz": {"fp32": 1005.0}, "slowed_by": "application clocks"}
    words = " ".join(shown(host, made.stressed(host, **limited), columns).split())
    assert "FP32 9.3 TFLOPS, 59% of its model's figure; its clocks are limited: 90% at that clock" in words


@pytest.mark.parametrize("columns", [80, 120])
def test_without_a_stress_one_line_says_which_command_measures(columns: int) -> None:
    text = shown(made.healthy(), [], columns)
    line = as_typed("no speed under full load is known: invoke stress --host servbadge measures it")
    assert " ".join(text.split()).count(line) == 1
