"""Reads YAML with line numbers. Every mapping and list stores its line, and errors contain FILE:LINE."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping as AnyMapping
from pathlib import Path
from typing import Any, ClassVar

import yaml
from yaml.composer import Composer

from rigwright.core.errors import InputError


class Mapping(dict[str, Any]):
    """A mapping that stores its file, its line and the line of each key."""

    path: str = ""
    line: int = 0
    lines: dict[str, int]

    def where(self, key: str | None = None) -> str:
        """`FILE:LINE` of a key, or of the mapping."""
        return f"{self.path}:{self.lines.get(key, self.line) if key is not None else self.line}"

    def with_values(self, values: dict[str, Any]) -> Mapping:
        """A mapping of these values with the places of this one."""
        mapping = Mapping(values)
        mapping.path, mapping.line, mapping.lines = self.path, self.line, self.lines
        return mapping


class Sequence(list[Any]):
    """A list that stores its file, its line and the line of each item."""

    path: str = ""
    line: int = 0
    lines: list[int]

    def where(self, index: int) -> str:
        """`FILE:LINE` of an item."""
        return f"{self.path}:{self.lines[index]}"

    def with_items(self, items: Iterable[Any]) -> Sequence:
        """A list of these items with the places of this one."""
        sequence = Sequence(items)
        sequence.path, sequence.line, sequence.lines = self.path, self.line, self.lines
        return sequence


Tags = AnyMapping[str, Callable[[Any, str], Any]]
"""By tag (`!secret`) the function that returns the value for a tagged value and its FILE:LINE."""

MOST_BYTES = 16 << 20
"""The size of the largest file that is read. An inventory of 10000 hosts has 1 to 2 MiB."""
MOST_VALUES = 500_000
"""The most keys, values, lists and mappings of a document; each use of an anchor counts all that it stands for."""
DEEPEST = 100
"""The most lists and mappings inside each other."""
_LONGEST_PLAIN = 256
"""A longer value without quotes is a text: no number or date has so many characters."""


def load(path: Path, shown: str | None = None, tags: Tags | None = None) -> Any:
    """The document of a YAML file; None when the file is empty. Messages call the file `shown`.

    Raises InputError for a file that is unreadable, larger than 16 MiB or not UTF-8, a tab in the indentation, a syntax
    error, a duplicate key, a key that is not a text, a tag that is not in `tags`, more than 500000 values, or more than
    100 levels.
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
        loader = _Loader(text, name, tags or {})
        try:
            return loader.document()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        lines = text.splitlines()
        if line <= len(lines) and "\t" in lines[line - 1]:
            raise InputError(f"{name}:{line}", "a tab", "spaces: YAML knows no tabs in indentation") from None
        found = (error.problem or "not YAML").removeprefix("but found ")
        raise InputError(f"{name}:{line}", found, "valid YAML, one document in a file") from None
    except yaml.YAMLError as error:
        raise InputError(name, f"not YAML: {error}", "valid YAML") from None


_TAG = "tag:yaml.org,2002:"
"""The beginning of the tags of YAML's own types."""
_KINDS: dict[type[yaml.Node], tuple[str, ...]] = {
    yaml.MappingNode: ("map",),
    yaml.SequenceNode: ("seq",),
    yaml.ScalarNode: ("str", "int", "float", "bool", "null", "timestamp", "binary"),
}
"""The types that a value may have. Python builds no other object for a tag."""
_LOADERS = (Composer, yaml.CSafeLoader) if yaml.__with_libyaml__ else (yaml.SafeLoader,)
"""The readers of YAML. The composer is that of Python: that of libyaml crashes on lists nested too deep."""


class _Loader(*_LOADERS):  # type: ignore[misc]
    """Reads the only document of a text, and stops where it exceeds a limit."""

    def __init__(self, text: str, name: str, tags: Tags) -> None:
        _LOADERS[-1].__init__(self, text)
        self.anchors: dict[str, yaml.Node] = {}
        self._name, self._tags = name, tags
        self._values = self._level = self._line = 0

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        """The tag of a value without one."""
        tag: str = _TAG + "str" if value and len(value) > _LONGEST_PLAIN else super().resolve(kind, value, implicit)
        return _TAG + "str" if tag == _TAG + "value" else tag  # the text =

    def document(self) -> Any:
        """The value of the document; None when there is none. Raises InputError, YAMLError."""
        node = self.get_single_node()
        self._values = self._line = 0
        return None if node is None else self._value(node)

    def compose_node(self, parent: Any, index: Any) -> Any:
        """The next node. Raises InputError, YAMLError."""
        event = self.peek_event()
        if event.anchor in self.anchors and not isinstance(event, yaml.AliasEvent):
            raise self._error(event, f"the anchor &{_short(event.anchor)} a second time", "each anchor once")
        self._count(event)
        node = super().compose_node(parent, index)
        self._level -= 1
        return node

    def _count(self, at: Any) -> None:
        """Counts a value and a level. Raises InputError above a limit, with the last line that was read."""
        self._line = max(self._line, at.start_mark.line + 1)
        self._values += 1
        self._level += 1
        if self._level > DEEPEST + 1:
            expected = f"{DEEPEST} levels at most"
            raise InputError(f"{self._name}:{self._line}", "lists and mappings nested too deep", expected)
        if self._values > MOST_VALUES:
            problem = f"more than {MOST_VALUES} values, each use of an anchor counted"
            raise InputError(f"{self._name}:{self._line}", problem, "a smaller document")

    def _where(self, at: Any) -> str:
        return f"{self._name}:{at.start_mark.line + 1}"

    def _error(self, at: Any, found: str, expected: str, fix: str = "") -> InputError:
        return InputError(self._where(at), found, expected, fix)

    def _value(self, node: yaml.Node) -> Any:
        kinds = _KINDS[type(node)]
        if own := self._tags.get(node.tag):
            plain = type(node)(_TAG + kinds[0], node.value, node.start_mark, node.end_mark)
            return own(self._value(plain), self._where(node))
        if node.tag.removeprefix(_TAG) not in kinds:
            problem = f"the tag {_short(node.tag.replace(_TAG, '!!'))}, which rigwright cannot read"
            secret = "put the secret into a variable of the inventory, and use that one here"
            raise self._error(node, problem, "a plain value", secret if node.tag in ("!vault", "!secret") else "")
        self._count(node)
        value = self._READERS[type(node)](self, node)
        self._level -= 1
        return value

    def _mapping(self, node: yaml.Node) -> Mapping:
        mapping = Mapping()
        mapping.path, mapping.line, mapping.lines = self._name, node.start_mark.line + 1, {}
        for key_node, value_node in node.value:
            key = self._key(key_node)
            if key in mapping:
                problem = f"the key '{_short(key)}' a second time (first in line {mapping.lines[key]})"
                raise self._error(key_node, problem, "each key once")
            mapping[key] = self._value(value_node)
            mapping.lines[key] = key_node.start_mark.line + 1
        return mapping

    def _key(self, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise self._error(node, "a key that is a list or a mapping", "a key that is a text")
        if node.tag == _TAG + "merge":
            raise self._error(node, "the merge key <<", "the keys themselves, written out")
        key = self._value(node)
        if not isinstance(key, str):
            problem = f"the key {_short(repr(key))}, which YAML reads as no text"
            raise self._error(node, problem, f"'{_short(node.value)}' in quotes")
        return key

    def _sequence(self, node: yaml.Node) -> Sequence:
        sequence = Sequence(map(self._value, node.value))
        sequence.path, sequence.line = self._name, node.start_mark.line + 1
        sequence.lines = [item.start_mark.line + 1 for item in node.value]
        return sequence

    def _scalar(self, node: yaml.Node) -> Any:
        if node.tag == _TAG + "str":
            return node.value
        try:
            return self.construct_object(node, deep=True)
        except (ValueError, KeyError, AttributeError, TypeError, OverflowError):
            problem = f"'{_short(node.value)}', which is no {node.tag.removeprefix(_TAG)}"
            raise self._error(node, problem, "a plain value, or one in quotes") from None

    _READERS: ClassVar = {yaml.MappingNode: _mapping, yaml.SequenceNode: _sequence, yaml.ScalarNode: _scalar}


def _short(text: str) -> str:
    """The text, or its first 80 characters, for a message."""
    return text if len(text) <= 80 else f"{text[:80]}..."


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The text `; did you mean 'X'?` with the most similar known word; "" when no known word is similar."""
    import difflib

    near = difflib.get_close_matches(word[:_LONGEST_PLAIN], list(known)[:1000], n=1, cutoff=0.6)
    return f"; did you mean '{near[0]}'?" if near else ""


def misspelt(where: str, found: str, word: str, known: Iterable[str]) -> InputError:
    """The error for an unknown word, with the most similar known word and all known words."""
    names = list(known)
    return InputError(where, f"{found}{did_you_mean(word, names)}", f"{'one of ' * (len(names) > 1)}{', '.join(names)}")


def only_keys(mapping: Mapping, known: Iterable[str], kind: str) -> None:
    """Raises InputError for the first unknown key of a mapping, with the most similar known key."""
    known = list(known)
    for key in mapping:
        if key not in known:
            raise misspelt(mapping.where(key), f"unknown {kind} '{key}'", key, sorted(known))
