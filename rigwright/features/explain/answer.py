"""The answer of `invoke explain` to a name or a text, typed or on stdin."""

from __future__ import annotations

import datetime
import io
from pathlib import Path
from typing import BinaryIO

from rigwright.features.explain import topics
from rigwright.features.explain.topics import Explanation

LONGEST_NAME = 400
"""A text with more characters is what programs printed, and no name or topic."""


def explain(text: str, today: datetime.date, rigs: Path | None = None) -> tuple[Explanation, ...]:
    """The explanations of a typed name or text, as of one on stdin. Raises UsageError."""
    if not text.strip():
        raise topics.unknown("")
    return explain_stream(io.BytesIO(text.encode("utf-8", "replace")), today, rigs)


def explain_stream(stream: BinaryIO, today: datetime.date, rigs: Path | None = None) -> tuple[Explanation, ...]:
    """The explanations of a name (a GPU, a rig, a driver, a toolkit, a topic, a symptom, an Xid), or of the problems in
    a text. `rigs`: the folder of the user's own rigs.

    An exact name wins over the messages of a text, which win over names that contain the text. Raises UsageError with
    the most similar names and texts if nothing is known of it.
    """
    start = stream.read(4 * LONGEST_NAME + 1)
    name = start.decode("utf-8", "replace").strip()
    is_name = 0 < len(name) <= LONGEST_NAME and len(start) <= 4 * LONGEST_NAME and name.isprintable()
    if is_name and (named := topics.named(name, today, rigs)):
        return named

    from rigwright.features.explain import pasted_table, pasted_text

    text = pasted_text.read(stream, today, start)
    if text.parts or text.problems or text.normal:
        return pasted_table.explanations(text)
    if is_name and (listed := topics.containing(name, today, rigs)):
        return listed
    raise topics.unknown(name[:LONGEST_NAME], text.lines)
