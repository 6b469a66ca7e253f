"""The problems in a text, as explanations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rigwright import catalogue
from rigwright.core.control_characters import one_line
from rigwright.core.numbers import count
from rigwright.features.explain.pasted_text import PastedText, Problem
from rigwright.features.explain.topics import Explanation, Line, cause_lines


def explanations(text: PastedText) -> tuple[Explanation, ...]:
    """An explanation of each problem, or of what is normal if there is no problem. A summary of what was read, with the
    notes, is before them, unless the text is one line with one message. Control characters of the text are replaced."""
    shown = text.problems or text.normal
    every = [_problem(number if len(shown) > 1 else 0, problem) for number, problem in enumerate(shown, 1)]
    if text.lines > 1 or len(every) != 1:
        every.insert(0, _summary(text))
    return tuple(
        Explanation(
            one_line(each.title), tuple(Line(line.label, one_line(line.text), line.source) for line in each.lines)
        )
        for each in every
    )


def _summary(text: PastedText) -> Explanation:
    missed = [
        f"{count(number, 'line')} {what}"
        for number, what in ((text.unread_count, "not understood"), (len(text.errors), "with an unknown error"))
        if number
    ]
    if text.problems:
        title = count(len(text.problems), "problem")
    elif missed:
        title = f"Unknown: no fault that the catalogue knows, and {' and '.join(missed)}"
    else:
        title = "Nothing is wrong in it that the catalogue knows"
    lines = [Line("read", f"{count(text.lines, 'line')}: {', '.join(text.parts) or 'messages of a program'}")]
    lines += _quoted("not read", text.unread, text.unread_count)
    lines += _quoted("unknown", text.errors, len(text.errors))
    if text.problems:
        lines += [Line("normal", f"{problem.seen}: {problem.title}. {problem.cause}") for problem in text.normal]
    lines += [Line("note", note) for note in text.notes]
    return Explanation(title, tuple(lines))


def _quoted(label: str, lines: Sequence[tuple[int, str]], number: int) -> Iterator[Line]:
    """The first lines of a sort, and how many there are."""
    for at, text in lines[:3]:
        yield Line(label, f"line {at}: {one_line(text).strip()[:120]}")
    if number > 3:
        yield Line("", f"and {count(number - 3, 'more line')} like these")


def _problem(number: int, problem: Problem) -> Explanation:
    lines = [Line("seen", problem.seen)]
    if symptom := catalogue.all_symptoms().get(problem.key):
        level = "nothing is wrong" if problem.level == "info" else problem.level
        lines.insert(0, Line("symptom", f"{symptom.key} ({symptom.kind}, {level})"))
    lines += [Line("code", code, source) for code, source in problem.codes]
    lines += cause_lines(problem.cause, problem.fix, problem.causes)
    if problem.source:
        lines.append(Line("source", problem.source))
    after = f" (a consequence of {problem.after})" if problem.after else ""
    return Explanation(f"{number}. {problem.title}{after}" if number else problem.title, tuple(lines))
