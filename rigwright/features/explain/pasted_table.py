"""`invoke explain -`: the problems in a text, as explanations."""

from __future__ import annotations

from rigwright import catalogue
from rigwright.core.control_characters import one_line
from rigwright.core.numbers import count
from rigwright.features.explain.pasted_text import PastedText, Problem
from rigwright.features.explain.topics import Explanation, Line, cause_lines


def explanations(text: PastedText) -> tuple[Explanation, ...]:
    """A summary of what was read, with the notes, and an explanation of each problem. Control characters of the text
    are replaced."""
    every = (_summary(text), *(_problem(number, problem) for number, problem in enumerate(text.problems, 1)))
    return tuple(
        Explanation(
            one_line(each.title), tuple(Line(line.label, one_line(line.text), line.source) for line in each.lines)
        )
        for each in every
    )


def _summary(text: PastedText) -> Explanation:
    known = "nvidia-smi, nvidia-smi -q, dmesg, NCCL log, traceback"
    parts = ", ".join(text.parts) or f"nothing that the catalogue can read ({known})"
    if text.problems:
        title = count(len(text.problems), "problem")
    else:
        title = f"Nothing {'is wrong ' if text.parts else ''}in it that the catalogue knows"
    notes = (Line("note", note) for note in text.notes)
    return Explanation(title, (Line("read", f"{count(text.lines, 'line')}: {parts}"), *notes))


def _problem(number: int, problem: Problem) -> Explanation:
    lines = [Line("seen", problem.seen)]
    if symptom := catalogue.all_symptoms().get(problem.key):
        lines.insert(0, Line("symptom", f"{symptom.key} ({symptom.kind}, {problem.level})"))
    lines += [Line("code", code, catalogue.init_failure_source()) for code in problem.codes]
    lines += cause_lines(problem.cause, problem.fix, problem.causes)
    if problem.source:
        lines.append(Line("source", problem.source))
    after = f" (a consequence of {problem.after})" if problem.after else ""
    return Explanation(f"{number}. {problem.title}{after}", tuple(lines))
