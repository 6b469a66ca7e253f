"""The table and the goals of `scripts/bench --load`."""

from __future__ import annotations

from dataclasses import replace

from lab.bench.load import Cost, goals, lines

RECORDER = Cost("recorder, at rest", 30.0, 1.5, samples=301, longest_gap_s=0.21, seen=20, peaks=20)
GUARD = Cost("guard, at rest", 30.0, 0.27)


def test_the_table_and_the_goals() -> None:
    made = lines([RECORDER, GUARD])
    assert made[1].split() == ["recorder,", "at", "rest", "30", "10.03", "0.21", "20", "of", "20", "5.0"]
    assert made[2].split() == ["guard,", "at", "rest", "30", "0.9"]
    assert [one.split()[0] for one in goals([RECORDER, GUARD])] == ["met"] * 3
    slow = replace(RECORDER, samples=280, seen=19)
    assert [one.split()[0] for one in goals([slow, replace(GUARD, cpu_s=0.31)])] == ["MISSED"] * 3
