"""The facts of a host as text: a line for each value, and what equal things have in common once."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from rich.console import Console

from rigwright.core.control_characters import one_line
from rigwright.core.shortening import shortened
from rigwright.report.labels import as_is
from rigwright.report.wrapping import hanging


def show(console: Console, facts: Mapping[str, Any]) -> None:
    """Writes the facts of a host by name; one that cannot be read says why."""
    for name, value in facts.items():
        if isinstance(value, Exception):
            hanging(console, f"  [bold]{name}[/] [yellow]unavailable: {as_is(str(value))}[/]", 4)
            continue
        rows = list(_rows(value))
        if len(rows) == 1 and not rows[0][0]:
            hanging(console, f"  [bold]{name}[/]  {rows[0][1]}", 4)
            continue
        size = f"  [dim]{len(value)}[/]" if _is_list(value) else ""
        console.print(f"  [bold]{name}[/]{size}", soft_wrap=True)
        width = max(len(label) for label, _ in rows)
        indent = 6 + width
        if console.is_terminal and indent > console.width // 2:
            width, indent = 0, 8
        for label, text in rows:
            hanging(console, f"    [dim]{as_is(label):{width}}[/]  {text}", indent)


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _rows(value: object) -> Iterator[tuple[str, str]]:
    """Labels and texts (rich markup). A list of records has a row for each field; equal values are one."""
    if _is_list(value) and value and all(isinstance(item, Struct) for item in value):  # type: ignore[attr-defined]
        for name in value[0].__struct_fields__:  # type: ignore[index]
            texts = [_text(getattr(item, name)) for item in value]  # type: ignore[attr-defined]
            separator = "; " if any(", " in text for text in texts) else ", "
            yield name, texts[0] if len(set(texts)) == 1 else separator.join(texts)
        return
    yield from _fields(value)


def _fields(value: object, above: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Struct):
        for name in value.__struct_fields__:
            yield from _fields(getattr(value, name), f"{above}.{name}" if above else name)
    elif isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _fields(item, f"{above}.{key}" if above else str(key))
    else:
        yield above, _text(value)


def _text(value: object) -> str:
    """A value as a reader writes it: `yes`, `none`, items joined by commas."""
    if value is None or value == "" or (isinstance(value, (Mapping, Sequence, frozenset, set)) and not value):
        return "[dim]none[/]"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (frozenset, set)):
        return ", ".join(_text(item) for item in sorted(value, key=str))
    if _is_list(value):
        return ", ".join(_text(item) for item in value)  # type: ignore[attr-defined]
    if isinstance(value, Struct):
        return ", ".join(f"{as_is(label)} {text}" for label, text in _fields(value))
    if isinstance(value, datetime.datetime):
        return value.isoformat(" ", "seconds")
    return as_is(shortened(one_line(str(value)), 400))
