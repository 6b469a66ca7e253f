"""`invoke stress` on the command line; what it does on a host is in tests/end_to_end/test_stress.py."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from rigwright.cli import runner
from rigwright.core.command import Result
from rigwright.core.errors import RigwrightError
from rigwright.core.schema import BusId
from rigwright.features.stress import table
from rigwright.features.stress.command import stress
from rigwright.features.stress.facts import Stress, measured
from rigwright.features.stress.options import StressOptions
from tests.test_cases import case_named

SLOTS = {BusId("0000:06:00.0"): "SXM2-1", BusId("0000:07:00.0"): "SXM2-2"}


@pytest.mark.parametrize(
    ("given", "where", "found"),
    [
        ({"wheels": "/nowhere"}, "--wheels", "'/nowhere' is no directory"),
        ({"executor": "tls://one:8786"}, "--executor", "watched from this machine"),
    ],
)
def test_what_is_refused_before_connecting(
    given: dict[str, str], where: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "run", lambda _options, prepare: prepare("id"))
    with pytest.raises(RigwrightError) as caught:
        stress(StressOptions(host="frame", **given))
    assert caught.value.where == where
    assert found in caught.value.found


def shown(document: str) -> str:
    """Returns the table of the document of a stress."""
    stress = measured.parse(Result(0, document.encode()))
    assert isinstance(stress, Stress)
    out = io.StringIO()
    table.show(Console(file=out, width=160), stress, SLOTS)
    return out.getvalue()


def test_the_table_has_a_row_for_each_gpu_and_what_went_wrong() -> None:
    text = shown(case_named("checks", "load.survived", "lost_when_together")["facts"]["stress.measured"])
    assert "SXM2-1 0000:06:00.0  14.0         -            110.0" in text
    assert "12.6 / 12.5" in text
    assert "All-reduce: 125.4 GB/s" in text
    assert "lost after 21 s, together, 3 GPUs: 0000:0a:00.0: GPU 2 no longer works: error 719" in text


def test_a_host_with_markup_in_its_words_is_shown_as_it_is() -> None:
    given: Any = case_named("facts", "stress.measured", "measured")["answer"]
    text = given.replace("GPU 0 no longer works", "[bold]x[/]")
    assert json.loads(text)["events"][0]["text"] == "[bold]x[/]"
    assert "[bold]x[/]" in shown(text)
