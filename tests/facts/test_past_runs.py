"""What the runs of a host say together: which are in force, where a rollback began, what did not end."""

from __future__ import annotations

from typing import Any

import pytest

from rigwright.facts import past_runs
from rigwright.facts.run_record import Run


def runs(*given: str, by: str = "") -> tuple[Run, ...]:
    """Returns runs from words: `a`; `b>a`, a rollback to before a; `c!`, which did not end; `d?`, a try that is not
    decided; `e~`, under another machine-id. `by`: the process of
    the tries."""
    made = []
    for number, word in enumerate(given, 1):
        name, _, to = word.rstrip("!?~").partition(">")
        more: dict[str, Any] = {"done": "!" not in word, "to": to, "tried": "driver: 580" if "?" in word else ""}
        more["tried_by"] = by
        made.append(Run(name, number, f"2026-11-22T{number:02}:00:00Z", here="~" not in word, sound=True, **more))
    return tuple(made)


@pytest.mark.parametrize(
    ("given", "force", "stands"),
    [
        ("", "", "no run that changed it is on record"),
        ("a b", "a b", "as run b left it"),
        ("a b!", "a b", "as run b left it, which did not end"),
        ("a b c>b", "a", "as before run b, since the rollback c"),
        ("a b c>a", "", "as before run a, since the rollback c"),
        ("a b c>b d", "a d", "as run d left it"),
        ("a b c>b d>c", "a b", "as before run c, since the rollback d"),
        ("a b c>a! d>a", "", "as before run a, since the rollback c"),
        ("a b c>a! d>a e>c", "a b", "as before run c, since the rollback e"),
        ("a b c>b!", "a b", "in the middle of a rollback to before run b; the same command goes on"),
        ("a b?", "a b", "the try of driver: 580 (run b) ended before anybody decided on it"),
        ("a b>gone", "a", "as before run gone, since the rollback b"),
    ],
)
def test_what_is_in_force(given: str, force: str, stands: str) -> None:
    made = runs(*given.split())
    assert " ".join(past_runs.in_force(made)) == force
    assert past_runs.standing(made) == stands


@pytest.mark.parametrize(
    ("given", "cut"),
    [
        ("", None),
        ("a b", None),
        ("a b?", "b"),
        ("a b?!", "b"),
        ("a b? c", None),
        ("a b? c>b!", "b"),  # its way back was cut too
        ("a b? c>b", None),
        ("a? b c>b!", None),
    ],
)
def test_a_try_that_nobody_decided_on(given: str, cut: str | None) -> None:
    run = past_runs.cut_try(runs(*given.split()))
    assert (run.run if run else None) == cut


@pytest.mark.parametrize(
    ("given", "first"),
    [("a b", "b"), ("a b>a", "b"), ("a b>a! c>a! d>a", "b"), ("a b>a c>a", "c"), ("a b>a! c>b", "c")],
)
def test_where_a_rollback_began(given: str, first: str) -> None:
    made = runs(*given.split())
    assert past_runs.beginning(made, made[-1]).run == first
