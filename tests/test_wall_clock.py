"""No test proves a speed by the clock of the wall: beside other work everything takes longer."""

from __future__ import annotations

import ast

from tests.paths import ROOT

HANG_S = 60
"""A limit that only ends a hang is at least so long. Speeds are processor time (tests/machine_speed.py), ratios in one
run, or counts of work."""
CLOCKS = ("time.monotonic() -", "time.perf_counter() -", "time.time() -")
TESTS = sorted(path.relative_to(ROOT) for path in (ROOT / "tests").rglob("*.py"))


def short_limits(text: str) -> list[str]:
    """Returns the asserts of a Python file, as LINE: SOURCE, that elapsed time is below a number of less than HANG_S
    seconds."""
    short: list[str] = []
    if not any(clock in text for clock in CLOCKS):
        return short
    for proof in (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Assert)):
        for node in (node for node in ast.walk(proof.test) if isinstance(node, ast.Compare)):
            sides = [node.left, *node.comparators]
            for taken, sign, limit in zip(sides, node.ops, sides[1:], strict=False):
                is_limit = isinstance(sign, (ast.Lt, ast.LtE)) and ast.unparse(limit).replace(".", "").isdigit()
                if is_limit and ast.unparse(taken).startswith(CLOCKS) and float(ast.unparse(limit)) < HANG_S:
                    short.append(f"{proof.lineno}: {ast.unparse(proof.test)}")
    return short


def test_limits_of_wall_time_only_end_a_hang() -> None:
    short = {str(path): found for path in TESTS if (found := short_limits((ROOT / path).read_text(encoding="utf-8")))}
    assert short == {}


def test_a_short_limit_is_seen() -> None:
    text = (
        "assert 1 < time.monotonic() - began < 5\nassert time.monotonic() - began < 60\n"
        "assert time.process_time() - began < 5\n"
    )
    assert short_limits(text) == ["1: 1 < time.monotonic() - began < 5"]
