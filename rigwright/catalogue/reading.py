"""Reads the catalogue's files: every key known, every value of its type, every number with its source."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from rigwright.errors import InputError
from rigwright.typed import convert
from rigwright.yamlfile import Mapping as YamlMapping
from rigwright.yamlfile import did_you_mean, load, only_keys

FOLDER = Path(__file__).parent
T = TypeVar("T")


def document(path: Path) -> YamlMapping:
    """The mapping in a file of the catalogue. Raises InputError."""
    within = path.is_relative_to(FOLDER)
    found = load(path, f"catalogue/{path.relative_to(FOLDER)}" if within else str(path))
    if not isinstance(found, YamlMapping):
        name = f"catalogue/{path.relative_to(FOLDER)}" if within else str(path)
        raise InputError(name, "no mapping", "KEY: VALUE")
    return found


def record(path: Path, wanted: type[T], below: YamlMapping | None = None) -> T:
    """A file as the dataclass `wanted`, with the file's name as its `key`; what it does not say, `below` says.

    Raises InputError: an unknown key, a value of another type, a number without a source, a source of nothing.
    """
    given = document(path)
    found = given if below is None else _over(below, given)
    known = {field.name for field in dataclasses.fields(wanted)}  # type: ignore[arg-type]
    only_keys(given, known - {"key"}, "key")
    sourced(found, known)
    made: T = convert(found, wanted, found.where(), "")
    return dataclasses.replace(made, key=path.stem)  # type: ignore[type-var]


def _over(below: YamlMapping, given: YamlMapping) -> YamlMapping:
    """Both, the upper one's keys winning whole; sources one by one."""
    found = YamlMapping({**below, **given})
    found.path, found.line = given.path, given.line
    found.lines = {**dict.fromkeys(below, given.line), **given.lines}
    upper = given.get("sources")
    if upper is not None and not isinstance(upper, YamlMapping):
        raise InputError(given.where("sources"), f"'sources' is {upper!r}", "{KEY: where its number comes from}")
    sources = YamlMapping({**(below.get("sources") or {}), **(upper or {})})
    sources.path, sources.line = given.path, given.line
    sources.lines = {**dict.fromkeys(sources, given.line), **(upper.lines if isinstance(upper, YamlMapping) else {})}
    found["sources"] = sources
    return found


def sourced(found: YamlMapping, known: set[str] | None = None) -> None:
    """Raises InputError for a key that holds a number and has no line under `sources`, or a source of no key."""
    sources = found.get("sources")
    if not isinstance(sources, YamlMapping):
        raise InputError(found.where("sources"), "no 'sources'", "sources: {KEY: where its number comes from}")
    for key, value in found.items():
        if key not in ("sources", "notes") and holds_number(value) and key not in sources:
            raise InputError(
                found.where(key), f"'{key}' has no source", "one under sources:, 'assumed' where none is known"
            )
    for key in sources:
        if key not in (known or found) or key == "sources":
            names = sorted(known or found)
            raise InputError(
                sources.where(key), f"a source of '{key}', which is no key here{did_you_mean(key, names)}", ""
            )


def rows_sourced(found: YamlMapping, table: str) -> None:
    """As `sourced`, for a file of rows: every key of a row has a line under the file's `sources`. Raises InputError."""
    sources = found.get("sources")
    rows = found.get(table)
    if not isinstance(sources, YamlMapping):
        raise InputError(found.where("sources"), "no 'sources'", "sources: {KEY: where its values come from}")
    if not isinstance(rows, YamlMapping):
        raise InputError(found.where(table), f"no '{table}'", f"{table}: {{NAME: ...}}")
    for name, row in rows.items():
        if not isinstance(row, YamlMapping):
            raise InputError(rows.where(name), f"'{name}' is {row!r}", "KEY: VALUE")
        for key in row:
            if key not in (*sources, "notes", "source"):
                raise InputError(row.where(key), f"'{key}' has no source", f"{key}: ... under sources: of this file")


def holds_number(value: Any) -> bool:
    """Whether there is a number in a value, however deep."""
    if isinstance(value, Mapping):
        return any(holds_number(item) for item in value.values())
    if isinstance(value, list):
        return any(holds_number(item) for item in value)
    return isinstance(value, (int, float)) and not isinstance(value, bool)
