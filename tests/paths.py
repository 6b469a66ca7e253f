"""Paths of folders in the checkout that tests read."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CASES = ROOT / "tests" / "cases"


def files(*patterns: str) -> list[Path]:
    """Returns the files of the checkout that match each glob pattern, sorted. A pattern that matches no file is an
    error."""
    found = {pattern: sorted(ROOT.glob(pattern)) for pattern in patterns}
    empty = [pattern for pattern, paths in found.items() if not paths]
    assert not empty, f"no file of the checkout matches {', '.join(empty)}"
    return [path for paths in found.values() for path in paths]
