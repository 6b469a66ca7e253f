"""Error texts from public threads (error_texts.yml) and what `invoke explain` answers to each.

`python -m tests.catalogue.error_texts` prints them as a table in Markdown.
"""

from __future__ import annotations

import datetime
import re
from pathlib import Path

from msgspec import Struct

from rigwright.core.errors import UsageError
from rigwright.core.schema import convert
from rigwright.core.yaml_source import load
from rigwright.features.explain.answer import explain
from rigwright.features.explain.topics import Explanation

FILE = Path(__file__).with_name("error_texts.yml")


class ErrorText(Struct, frozen=True):
    """A text, and what must be, and must not be, in the answer to it; error_texts.yml documents the keys."""

    text: str
    source: str
    cause: str
    first: tuple[str, ...]
    says: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    shows: str = ""
    never: tuple[str, ...] = ()
    likely: bool = False


class Answer(Struct, frozen=True):
    """The entries that explain a text, first cause first: keys of symptoms, xid.NUMBER, or titles."""

    keys: tuple[str, ...]
    explanations: tuple[Explanation, ...]

    def words(self, count: int | None = None) -> str:
        """The words of the first `count` explanations, or of all."""
        return "\n".join(line.text for entry in self.explanations[:count] for line in entry.lines)

    def shown(self) -> tuple[str, ...]:
        """The causes of the first explanation that the text itself shows."""
        return tuple(line.text for line in self.explanations[0].lines if line.label == "text shows")


def error_texts() -> tuple[ErrorText, ...]:
    """All texts of the file. Raises InputError."""
    document = load(FILE, FILE.name)
    texts: tuple[ErrorText, ...] = convert(document["texts"], tuple[ErrorText, ...], FILE.name, "texts")
    return texts


def answer(text: str) -> Answer:
    """The answer of `invoke explain`; without entries where nothing is known."""
    try:
        explanations = explain(text, datetime.date(2026, 11, 22))
    except UsageError:
        return Answer((), ())
    explanations = tuple(each for each in explanations if each.lines[0].label != "read")  # without the summary
    return Answer(tuple(map(_key, explanations)), explanations)


def wrong(row: ErrorText) -> list[str]:
    """What is wrong or harmful in the answer to a text."""
    given = answer(row.text)
    if not given.keys:
        return ["nothing is known"]
    wrongs = [] if given.keys[0] in row.first else [f"first is {given.keys[0]}"]
    wrongs += [f"the first explanation lacks {words!r}" for words in row.says if words not in given.words(1)]
    wrongs += [f"the answer lacks {words!r}" for words in row.answers if words not in given.words()]
    if row.shows and not any(row.shows in cause for cause in given.shown()):
        wrongs.append(f"the cause {row.shows!r} is not shown, but {given.shown()}")
    return wrongs + harmful(row)


def harmful(row: ErrorText) -> list[str]:
    """What is harmful in the answer to a text."""
    given = answer(row.text)
    return [f"harmful: {words}" for words in row.never if words in given.keys or words in given.words()]


def _key(explanation: Explanation) -> str:
    first = explanation.lines[0]
    if first.label == "symptom":
        return first.text.split()[0]
    title = re.sub(r"^\d+\. | \(a consequence of \d+\)$", "", explanation.title)
    return title.lower().replace(" ", ".")


def table() -> str:
    """The texts, their sources, proven causes and answers as a table in Markdown."""
    rows = ["| text | source | cause | answered by |", "|---|---|---|---|"]
    for row in error_texts():
        cells = [
            f"`{row.text.splitlines()[0].strip()[:110]}`",
            row.source,
            row.cause + (" (likely)" if row.likely else ""),
            ", ".join(answer(row.text).keys) + ("; " + "; ".join(wrong(row)) if wrong(row) else ""),
        ]
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    right = sum(not wrong(row) for row in error_texts())
    bad = sum(bool(harmful(row)) for row in error_texts())
    return "\n".join([*rows, "", f"{right} of {len(error_texts())} are answered rightly, {bad} harmfully."])


if __name__ == "__main__":
    print(table())
