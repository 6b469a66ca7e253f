"""`invoke explain` without a word lists every topic, machine and GPU, also on a narrow terminal."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from rigwright import catalogue
from rigwright.catalogue.topics import topics
from rigwright.features.explain.overview import overview
from rigwright.features.explain.table import show


@pytest.mark.parametrize("columns", [80, 120])
def test_every_name_is_listed_within_the_width_of_a_terminal(tmp_path: Path, columns: int) -> None:
    (tmp_path / "attic-box.yml").write_text("title: Mine\n", encoding="utf-8")
    stream = io.StringIO()
    show(Console(file=stream, width=columns, force_terminal=True, color_system=None), overview(tmp_path))
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= columns
    assert len(lines) < 60
    listed = {word.strip(",") for line in lines for word in line.split()}
    names = (*topics(), *catalogue.all_rigs(), *catalogue.gpu_keys(), *catalogue.branches(), *catalogue.toolkits())
    assert {*names, "attic-box"} <= listed
