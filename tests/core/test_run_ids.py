"""The ids of runs."""

from __future__ import annotations

import pytest

from rigwright.core import run_ids
from rigwright.core.errors import UsageError
from rigwright.engine import rollback


def test_a_new_id_is_one_that_rollback_accepts() -> None:
    made = run_ids.new()
    assert made != run_ids.new()
    for text in (made, made[:-4], made[:8], run_ids.EXAMPLE, "2", "2026", "20261122-", "20261122-141753-13"):
        assert run_ids.is_beginning(text), text
        rollback.require_run(text, "gpu1")


@pytest.mark.parametrize(
    "text", ["yesterday", "20261122-141753-136a7c05a", "20261122-141753-136A", "2026-11-22", "../etc"]
)
def test_other_texts_are_none(text: str) -> None:
    assert not run_ids.is_beginning(text)
    with pytest.raises(UsageError, match=r"such as 20261122-141753-136a7c05"):
        rollback.require_run(text, "gpu1")
