"""Reads YAML with line numbers. Every mapping and list stores its line, and errors contain FILE:LINE."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from collections.abc import Mapping as AnyMapping
from pathlib import Path
from typing import Any

import yaml

from rigwright.core.errors import InputError
from rigwright.core.lazy_dataclasses import dataclass


class Mapping(dict[str, Any]):
    """A mapping that stores its file, its line and the line of each key."""

    path: str = ""
    line: int = 0
    lines: dict[str, int]

    def where(self, key: str | None = None) -> str:
        """`FILE:LINE` of a key, or of the mapping."""
        return f"{self.path}:{self.lines.get(key, self.line) if key is not None else self.line}"


class Sequence(list[Any]):
    """A list that stores its file, its line and the line of each item."""

    path: str = ""
    line: int = 0
    lines: list[int]

    def where(self, index: int) -> str:
        """`FILE:LINE` of an item."""
        return f"{self.path}:{self.lines[index]}"


_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Tags = AnyMapping[str, Callable[[Any, str], Any]]
"""Functions by tag (`!secret`); each gets the value that has the tag and its FILE:LINE, and returns what it stands for."""

MOST_BYTES = 16 << 20
"""The size of the largest file that is read. An inventory of 10000 hosts has 1 to 2 MiB."""
MOST_VALUES = 500_000
"""The most keys, values, lists and mappings of a document; each use of an anchor counts all that it stands for."""
MOST_CHARACTERS = 4 * MOST_BYTES
"""The most characters of a document's values, with each use of an anchor counted."""
DEEPEST = 100
"""The most lists and mappings inside each other."""
_LONGEST_PLAIN = 256
"""A longer value without quotes is a text: no number or date has so many characters."""


def load(path: Path, shown: str | None = None, tags: Tags | None = None) -> Any:
    """The document of a YAML file; None when the file is empty. Messages call the file `shown`.

    Raises InputError for a file that is unreadable, larger than 16 MiB or not UTF-8, a tab in the indentation, a syntax
    error, a duplicate key, a key that is not a text, a tag that is not in `tags`, more than 500000 values, or more than 100 levels.
    """
    name = shown or str(path)
    return loads(text(path, name), name, tags)


def text(path: Path, shown: str, encoding: str = "utf-8") -> str:
    """The text of a file, read up to the first 16 MiB. Messages call the file `shown`.

    Raises InputError when the file is unreadable, larger than 16 MiB or not UTF-8.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise InputError(shown, f"more than {MOST_BYTES >> 20} MiB", f"a file of at most {MOST_BYTES >> 20} MiB")
        return io.TextIOWrapper(io.BytesIO(content), encoding=encoding).read()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(shown, f"cannot be read: {error}", "a readable UTF-8 file") from None


def loads(text: str, name: str, tags: Tags | None = None) -> Any:
    """Like `load`, but parses a text. Messages call it `name`."""
    try:
        loader = _Loader(text)
        try:
            return _Document(loader, name, tags or {}).value()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        lines = text.splitlines()
        if line <= len(lines) and "\t" in lines[line - 1]:
            raise InputError(f"{name}:{line}", "a tab", "spaces: YAML knows no tabs in indentation") from None
        raise InputError(f"{name}:{line}", error.problem or "not YAML", "valid YAML") from None
    except yaml.YAMLError as error:
        raise InputError(name, f"not YAML: {error}", "valid YAML") from None


@dataclass
class _Size:
    """What an anchor stands for: its values, their characters, and its levels of lists and mappings."""

    values: int
    characters: int
    levels: int


class _Document:
    """Builds a document from the parser's events, so that a limit stops the parser where the document exceeds it."""

    def __init__(self, loader: Any, name: str, tags: Tags) -> None:
        self._loader = loader
        self._name = name
        self._tags = tags
        self._values = self._characters = self._level = self._deepest = 0
        self._anchors: dict[str, tuple[Any, _Size] | None] = {}
        """The value of each anchor, and its size; None while the value is being read."""

    def value(self) -> Any:
        """The only document of the text; None when there is none. Raises InputError, YAMLError."""
        events = self._loader
        events.get_event()
        if events.check_event(yaml.StreamEndEvent):
            return None
        events.get_event()
        value = self._build(events.get_event())
        events.get_event()
        if not events.check_event(yaml.StreamEndEvent):
            event: Any = events.peek_event()
            raise self._error(event, "another document", "one document in a file")
        return value

    def _error(self, event: Any, found: str, expected: str, fix: str = "") -> InputError:
        return InputError(f"{self._name}:{_line(event)}", found, expected, fix)

    def _build(self, event: Any) -> Any:
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        self._count(event, _Size(1, 0, 0))
        before = _Size(self._values - 1, self._characters, self._deepest)
        if event.anchor:
            if event.anchor in self._anchors:
                raise self._error(event, f"the anchor &{_short(event.anchor)} a second time", "each anchor once")
            self._anchors[event.anchor] = None
            self._deepest = self._level
        own_tag = event.tag if event.tag in self._tags else None
        if own_tag:
            event.tag = _TAG + _TAGS[type(event)][0]
        if isinstance(event, yaml.ScalarEvent):
            value = self._scalar(event)
        else:
            self._level += 1
            self._count(event, _Size(0, 0, 0))
            value = self._mapping(event) if isinstance(event, yaml.MappingStartEvent) else self._sequence(event)
            self._level -= 1
        if own_tag:
            value = self._tags[own_tag](value, f"{self._name}:{_line(event)}")
        if event.anchor:
            levels = self._deepest - self._level
            size = _Size(self._values - before.values, self._characters - before.characters, levels)
            self._anchors[event.anchor] = value, size
            self._deepest = max(self._deepest, before.levels)
        return value

    def _alias(self, event: Any) -> Any:
        if event.anchor not in self._anchors:
            raise self._error(event, f"undefined alias *{_short(event.anchor)}", "an anchor before it")
        anchor = self._anchors[event.anchor]
        if anchor is None:
            raise self._error(event, "an anchor that holds itself", "values without a cycle")
        value, size = anchor
        self._count(event, size)
        return value

    def _count(self, event: Any, size: _Size) -> None:
        """Adds what an event stands for. Raises InputError above a limit."""
        self._values += size.values
        self._characters += size.characters
        self._deepest = max(self._deepest, self._level + size.levels)
        if self._deepest > DEEPEST:
            raise self._error(event, "lists and mappings nested too deep", f"{DEEPEST} levels at most")
        if self._values > MOST_VALUES:
            found = f"more than {MOST_VALUES} values, each use of an anchor counted"
            raise self._error(event, found, "a smaller document")
        if self._characters > MOST_CHARACTERS:
            found = f"values of more than {MOST_CHARACTERS >> 20} million characters, each use of an anchor counted"
            raise self._error(event, found, "a smaller document")

    def _mapping(self, event: Any) -> Mapping:
        self._tag(event)
        mapping = Mapping()
        mapping.path, mapping.line, mapping.lines = self._name, _line(event), {}
        while not isinstance(key_event := self._loader.get_event(), yaml.MappingEndEvent):
            if not isinstance(key_event, (yaml.ScalarEvent, yaml.AliasEvent)):
                raise self._error(key_event, "a key that is a list or a mapping", "a key that is a text")
            if isinstance(key_event, yaml.ScalarEvent) and self._resolved(key_event) == _TAG + "merge":
                raise self._error(key_event, "the merge key <<", "the keys themselves, written out")
            key = self._build(key_event)
            if isinstance(key, (Mapping, Sequence)):
                raise self._error(key_event, "a key that is a list or a mapping", "a key that is a text")
            if not isinstance(key, str):
                written = key_event.value if isinstance(key_event, yaml.ScalarEvent) else str(key)
                found = f"the key {_short(repr(key))}, which YAML reads as no text"
                raise self._error(key_event, found, f"'{_short(written)}' in quotes")
            if key in mapping:
                found = f"the key '{_short(key)}' a second time (first in line {mapping.lines[key]})"
                raise self._error(key_event, found, "each key once")
            mapping[key] = self._build(self._loader.get_event())
            mapping.lines[key] = _line(key_event)
        return mapping

    def _sequence(self, event: Any) -> Sequence:
        self._tag(event)
        sequence = Sequence()
        sequence.path, sequence.line, sequence.lines = self._name, _line(event), []
        while not isinstance(item := self._loader.get_event(), yaml.SequenceEndEvent):
            sequence.lines.append(_line(item))
            sequence.append(self._build(item))
        return sequence

    def _scalar(self, event: Any) -> Any:
        tag = self._tag(event)
        self._count(event, _Size(0, len(event.value), 0))
        if tag == _TAG + "str":
            return event.value
        node = yaml.ScalarNode(tag, event.value, event.start_mark, event.end_mark)
        try:
            return self._loader.construct_object(node, deep=True)
        except (ValueError, KeyError, AttributeError, TypeError, OverflowError):
            found = f"'{_short(event.value)}', which is no {tag.removeprefix(_TAG)}"
            raise self._error(event, found, "a plain value, or one in quotes") from None

    def _tag(self, event: Any) -> str:
        """The tag of a value. Raises InputError for one that is not of a plain value of this kind."""
        tag = self._resolved(event)
        if tag.removeprefix(_TAG) not in _TAGS[type(event)]:
            shown = _short(tag.replace("tag:yaml.org,2002:", "!!"))
            todo = ""
            if tag in ("!vault", "!secret"):
                todo = "put the secret into a variable of the inventory, and use that one here"
            raise self._error(event, f"the tag {shown}, which rigwright cannot read", "a plain value", todo)
        return tag

    def _resolved(self, event: Any) -> str:
        """The tag that is written at a value, or the one that YAML gives to a value without a tag."""
        if event.tag not in (None, "!"):
            tag: str = event.tag
        elif isinstance(event, yaml.ScalarEvent):
            long = len(event.value) > _LONGEST_PLAIN
            tag = _TAG + "str" if long else self._loader.resolve(yaml.ScalarNode, event.value, event.implicit)
            tag = _TAG + "str" if tag == _TAG + "value" else tag  # the text =
        else:
            tag = _TAG + ("map" if isinstance(event, yaml.MappingStartEvent) else "seq")
        return tag


_TAG = "tag:yaml.org,2002:"
"""The beginning of the tags of YAML's own types."""
_TAGS: dict[type[yaml.Event], tuple[str, ...]] = {
    yaml.MappingStartEvent: ("map",),
    yaml.SequenceStartEvent: ("seq",),
    yaml.ScalarEvent: ("str", "int", "float", "bool", "null", "timestamp", "binary"),
}
"""The types that a value may have. Python builds no other object for a tag."""


def _line(event: Any) -> int:
    """The number of the line where the event begins."""
    number: int = event.start_mark.line + 1
    return number


def _short(text: str) -> str:
    """The text, or its first 80 characters, for a message."""
    return text if len(text) <= 80 else f"{text[:80]}..."


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The text `; did you mean 'X'?` with the most similar known word; "" when no known word is similar."""
    import difflib

    near = difflib.get_close_matches(word[:_LONGEST_PLAIN], list(known)[:1000], n=1, cutoff=0.6)
    return f"; did you mean '{near[0]}'?" if near else ""


def misspelt(where: str, found: str, word: str, known: Iterable[str]) -> InputError:
    """The error for a word that is none of the known ones, with the most similar one and all of them."""
    names = list(known)
    return InputError(where, f"{found}{did_you_mean(word, names)}", f"{'one of ' * (len(names) > 1)}{', '.join(names)}")


def only_keys(mapping: Mapping, known: Iterable[str], kind: str) -> None:
    """Raises InputError for the first unknown key of a mapping, with the most similar known key."""
    known = list(known)
    for key in mapping:
        if key not in known:
            raise misspelt(mapping.where(key), f"unknown {kind} '{key}'", key, sorted(known))
