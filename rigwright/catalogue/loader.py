"""Reads the catalogue's files; checks keys, types, and that every number has a source."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from rigwright.core.errors import InputError
from rigwright.core.schema import convert
from rigwright.core.yaml_source import Mapping as YamlMapping, load, misspelt, only_keys

FOLDER = Path(__file__).parent
T = TypeVar("T", bound=Struct)


def document(path: Path) -> YamlMapping:
    """The mapping in a file of the catalogue. Raises InputError."""
    name = f"catalogue/{path.relative_to(FOLDER)}" if path.is_relative_to(FOLDER) else str(path)
    content = load(path, name)
    if not isinstance(content, YamlMapping):
        raise InputError(name, "no mapping", "KEY: VALUE")
    return content


def table(file: str, table_type: type[T], rows: str) -> T:
    """The Struct of a file with many rows; `rows` is their key. Raises InputError also for a key without a source."""
    source = document(FOLDER / file)
    require_row_sources(source, rows)
    return whole(source, table_type)


def whole(source: YamlMapping, row_type: type[T]) -> T:
    """The Struct of a whole document. Raises InputError for an unknown key and a wrong type."""
    result: T = convert(source, row_type, source.where(), "")
    return result


def record(path: Path, row_type: type[T], base: YamlMapping | None = None) -> T:
    """The Struct of a file, with the file's name as `key`. Missing keys are taken from `base`.

    Raises InputError for an unknown key, a wrong type, a number without a source, and a source for an unknown key.
    """
    own = document(path)
    merged = own if base is None else _over(base, own)
    known = set(row_type.__struct_fields__)
    only_keys(own, known - {"key"}, "key")
    require_sources(merged, known)
    return replace(whole(merged, row_type), key=path.stem)


def _over(base: YamlMapping, own: YamlMapping) -> YamlMapping:
    """The keys of `base` with those of `own` in their place; `sources` are merged key by key."""
    upper = own.get("sources") or {}
    if not isinstance(upper, Mapping):
        raise InputError(own.where("sources"), f"'sources' is {upper!r}", "{KEY: where its number comes from}")
    merged, sources = YamlMapping({**base, **own}), YamlMapping({**(base.get("sources") or {}), **upper})
    for mapping, lines in ((merged, own.lines), (sources, getattr(upper, "lines", {}))):
        mapping.path, mapping.line, mapping.lines = own.path, own.line, {**dict.fromkeys(mapping, own.line), **lines}
    merged["sources"] = sources
    return merged


def require_sources(mapping: YamlMapping, known: set[str]) -> None:
    """Raises InputError for a key with a number but without a source, and for a source of an unknown key."""
    sources = mapping.get("sources")
    if not isinstance(sources, YamlMapping):
        raise InputError(mapping.where("sources"), "no 'sources'", "sources: {KEY: where its number comes from}")
    for key, value in mapping.items():
        if key not in ("sources", "notes") and holds_number(value) and key not in sources:
            raise InputError(
                mapping.where(key), f"'{key}' has no source", "one under sources:, 'assumed' where none is known"
            )
    for key in sources:
        if key not in known or key == "sources":
            raise misspelt(sources.where(key), f"a source of '{key}', which is no key here", key, sorted(known))


def require_row_sources(mapping: YamlMapping, table: str) -> None:
    """Raises InputError if a file with rows has no `sources` or no table, or if a key of a row is not in `sources`."""
    sources = mapping.get("sources")
    rows = mapping.get(table)
    if not isinstance(sources, YamlMapping):
        raise InputError(mapping.where("sources"), "no 'sources'", "sources: {KEY: where its values come from}")
    if not isinstance(rows, YamlMapping):
        raise InputError(mapping.where(table), f"no '{table}'", f"{table}: {{NAME: ...}}")
    for name, row in rows.items():
        if not isinstance(row, YamlMapping):
            raise InputError(rows.where(name), f"'{name}' is {row!r}", "KEY: VALUE")
        for key in row:
            if key not in (*sources, "notes", "source"):
                raise InputError(row.where(key), f"'{key}' has no source", f"{key}: ... under sources: of this file")


def holds_number(value: Any) -> bool:
    """Whether a value contains a number at any depth."""
    if isinstance(value, Mapping):
        return any(holds_number(item) for item in value.values())
    if isinstance(value, list):
        return any(holds_number(item) for item in value)
    return isinstance(value, (int, float)) and not isinstance(value, bool)
