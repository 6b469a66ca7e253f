"""`invoke explain -`: what is wrong in a text, as explanations."""

from __future__ import annotations

from collections.abc import Iterator

from rigwright import catalogue
from rigwright.core.control_characters import one_line
from rigwright.core.numbers import count
from rigwright.features.explain.pasted_text import PastedText, Problem
from rigwright.features.explain.topics import Explanation, Line, cause_lines


def explanations(text: PastedText) -> tuple[Explanation, ...]:
    """A summary of what was read, with the notes, and an explanation of each problem."""
    found = (_summary(text), *(_problem(number, problem) for number, problem in enumerate(text.problems, 1)))
    return tuple(Explanation(one_line(each.title), tuple(map(_harmless, each.lines))) for each in found)


def _harmless(line: Line) -> Line:
    """The line without control characters that the pasted text may have had."""
    return Line(line.label, one_line(line.text), line.source)


def _summary(text: PastedText) -> Explanation:
    parts = (
        ", ".join(text.parts)
        or "nothing that the catalogue can read (nvidia-smi, nvidia-smi -q, dmesg, NCCL log, traceback)"
    )
    lines = [Line("read", f"{count(text.lines, 'line')}: {parts}"), *(Line("note", note) for note in text.notes)]
    return Explanation(_title(text), tuple(lines))


def _title(text: PastedText) -> str:
    if text.problems:
        return count(len(text.problems), "problem")
    return "Nothing is wrong in it that the catalogue knows" if text.parts else "Nothing in it that the catalogue knows"


def _problem(number: int, problem: Problem) -> Explanation:
    after = f" (a consequence of {problem.after})" if problem.after else ""
    return Explanation(f"{number}. {problem.title}{after}", tuple(_lines(problem)))


def _lines(problem: Problem) -> Iterator[Line]:
    symptom = catalogue.all_symptoms().get(problem.key)
    if symptom:
        yield Line("symptom", f"{symptom.key} ({symptom.kind}, {problem.level})")
    yield Line("seen", problem.seen)
    yield from (Line("code", code, catalogue.init_failure_source()) for code in problem.codes)
    yield from cause_lines(problem.cause, problem.fix, problem.causes)
    if problem.source:
        yield Line("source", problem.source)
