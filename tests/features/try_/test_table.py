"""The table of a try that the history has from another version of rigwright."""

from __future__ import annotations

import io

from msgspec.structs import replace
from rich.console import Console

from rigwright.features.try_ import table as attempt
from rigwright.features.try_.attempt import Attempt, Measurement, compare


def test_a_quantity_of_another_version_is_left_out() -> None:
    before = Measurement("2026-11-22T19:28:27Z", rounds={"products": (90.0, 91.0, 92.0, 91.5)})
    after = Measurement("2026-11-22T19:38:27Z", rounds={"products": (80.0, 81.0, 82.0, 81.5)})
    comparison = compare(before, after)
    other = replace(comparison.rows[0], quantity="bf16")
    comparison = replace(comparison, rows=(*comparison.rows, other))
    console = Console(file=io.StringIO(), width=100)
    attempt.show(console, Attempt("driver: 580", before=before, after=after, comparison=comparison))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "products, all GPUs" in text
    assert "bf16" not in text
