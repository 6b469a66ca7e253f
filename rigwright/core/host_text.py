"""The limits of what is read from a host, and the readers that keep them: lines, JSON, XML and numbers.

A host may answer anything. Every limit is far above what a real host prints; a longer answer is refused with a message
that names the limit, or cut with a message that says what is left out. So no answer needs more than a second of this
process, and no single step stops the threads of other hosts.
"""

from __future__ import annotations

import itertools
import math
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xml.etree import ElementTree

ANSWER_BYTES = 4 << 20
"""The output of a command."""
ERROR_BYTES = 64 << 10
"""The error output of a command; more is cut in the middle."""
SCRIPT_BYTES = 32 << 20
"""The output of all commands of a script."""
LOGIN_BYTES = 64 << 10
"""What a host may say before the first script runs, such as questions of sudo."""
LINES = 100_000
LINE_CHARACTERS = 1 << 16
VALUES = 200_000
"""Values of a JSON document, elements of an XML document."""
NESTING = 64
"""Levels of a JSON or XML document."""
DIGITS = 18


_LONG = re.compile(rf"[0-9]{{{DIGITS + 1}}}")


def lines(text: str) -> list[str]:
    """The lines of a text, which only newlines end. Raises ValueError for too many lines, and for a line too long."""
    if text.count("\n") > LINES:
        raise ValueError(f"more than {LINES} lines")
    parts = text.removesuffix("\n").split("\n") if text else []
    if len(text) > LINE_CHARACTERS and max(map(len, parts), default=0) > LINE_CHARACTERS:
        raise ValueError(f"a line of more than {LINE_CHARACTERS} characters")
    return parts


def paragraphs(text: str) -> list[list[str]]:
    """The lines of each paragraph; an empty line separates two. Raises ValueError as `lines`."""
    groups = itertools.groupby(lines(text), key=bool)
    return [list(group) for is_text, group in groups if is_text]


def integer(word: str | int, base: int = 10) -> int:
    """A whole number of at most DIGITS digits. Raises ValueError for other text."""
    if len(str(word).strip()) > DIGITS + 2:
        raise ValueError(f"a number of more than {DIGITS} digits")
    return int(word, base) if isinstance(word, str) else int(word)


def _real(word: str) -> float:
    value = float(word)
    if not math.isfinite(value):
        raise ValueError(f"{word[:40]} is no number")
    return value


def json_value(text: str) -> Any:
    """The value of a JSON text. Raises ValueError also for too many values, too deep nesting and too long numbers."""
    import json

    if sum(map(text.count, ",:[{")) > 2 * VALUES:
        raise ValueError(f"JSON of more than {VALUES} values")
    try:
        whole = integer if _LONG.search(text) else None  # the standard reader of numbers is the faster one
        value = json.loads(text, parse_int=whole, parse_float=_real, parse_constant=_real)
    except RecursionError:
        raise ValueError(f"JSON nested deeper than {NESTING} levels") from None
    if text.count("[") + text.count("{") > NESTING:
        level = [value]
        for _ in range(NESTING):
            groups = (
                item.values() if isinstance(item, dict) else item for item in level if isinstance(item, (dict, list))
            )
            level = [item for group in groups for item in group]
        if level:
            raise ValueError(f"JSON nested deeper than {NESTING} levels")
    return value


def xml(text: str) -> ElementTree.Element:
    """The root of an XML text. Raises ValueError also for entities, too many elements and too deep nesting."""
    from xml.etree import ElementTree

    if "<!ENTITY" in text:
        raise ValueError("an entity in its XML")
    if text.count("<") > 2 * VALUES:
        raise ValueError(f"XML of more than {VALUES} elements")
    reader = ElementTree.XMLParser()
    try:
        for at in range(0, len(text), LINE_CHARACTERS):  # in parts, so that other threads go on
            reader.feed(text[at : at + LINE_CHARACTERS])
        root: ElementTree.Element = reader.close()
    except ElementTree.ParseError as error:
        raise ValueError(f"XML that cannot be read ({error})") from None
    level = [root]
    for _ in range(NESTING):
        level = [inner for element in level for inner in element]
    if level:
        raise ValueError(f"XML nested deeper than {NESTING} levels")
    return root


def unzipped(text: bytes, most: int) -> bytes:
    """What `gzip | base64` made of at most so many bytes. Raises ValueError for other text, also one that is cut."""
    import base64
    import zlib

    reader = zlib.decompressobj(31)
    try:
        data = reader.decompress(base64.b64decode(text), most + 1)
    except zlib.error as error:
        raise ValueError(f"gzip that cannot be read ({error})") from None
    if len(data) > most or not reader.eof:
        raise ValueError(f"gzip that is cut, or of more than {most} bytes")
    return data


def number_within(value: object, low: float, high: float) -> float | None:
    """A number of JSON within these limits; None for anything else."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and low <= value <= high else None  # type: ignore[arg-type, operator]


def without_middle(text: bytes, most: int) -> bytes:
    """The beginning and the end of a long text, and between them the number of bytes that are left out."""
    if len(text) <= most:
        return text
    return text[: most // 2] + f"\n... ({len(text) - most} bytes omitted) ...\n".encode() + text[-(most // 2) :]
