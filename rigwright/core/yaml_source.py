"""Reads YAML with line numbers. Every mapping and list stores its line, and errors contain FILE:LINE."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from collections.abc import Mapping as AnyMapping
from pathlib import Path
from typing import Any

import yaml

from rigwright.core.errors import InputError


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


def load(path: Path, shown: str | None = None, tags: Tags | None = None) -> Any:
    """The document of a YAML file; None when the file is empty. Messages call the file `shown`.

    Raises InputError for a file that is unreadable or not UTF-8, a tab in the indentation, a syntax error, a duplicate
    key, a key that is not a text, or a tag that is not in `tags`.
    """
    name = shown or str(path)
    return loads(text(path, name), name, tags)


def text(path: Path, shown: str, encoding: str = "utf-8") -> str:
    """The text of a file. Messages call the file `shown`. Raises InputError when it is unreadable or not UTF-8."""
    try:
        return path.read_text(encoding=encoding)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(shown, f"cannot be read: {error}", "a readable UTF-8 file") from None


def loads(text: str, name: str, tags: Tags | None = None) -> Any:
    """Like `load`, but parses a text. Messages call it `name`."""
    _shallow(text, name)
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            return None if node is None else _build(loader, node, name, tags or {})
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


_DEEPEST = 100


def _shallow(text: str, name: str) -> None:
    """Raises InputError for nesting of more than 100 levels, which could overflow the parser's stack."""
    depth = 0
    for number, line in enumerate(text.splitlines(), 1):
        indent = len(line) - len(line.lstrip(" -?:"))
        deepest = depth
        for bracket in re.findall(r"[\[\]{}]", line):
            depth = max(0, depth + (1 if bracket in "[{" else -1))
            deepest = max(deepest, depth)
        if indent > 2 * _DEEPEST or deepest > _DEEPEST:
            raise InputError(f"{name}:{number}", "lists and mappings nested too deep", f"{_DEEPEST} levels at most")


def _build(loader: Any, node: yaml.Node, name: str, tags: Tags, above: tuple[int, ...] = ()) -> Any:
    line = node.start_mark.line + 1
    if id(node) in above:
        raise InputError(f"{name}:{line}", "an anchor that holds itself", "values without a cycle")
    above = (*above, id(node))
    if node.tag in tags:
        return tags[node.tag](_build(loader, _untagged(node), name, tags, above), f"{name}:{line}")
    if node.tag.startswith("!") or node.tag.rsplit(":", 1)[0] != "tag:yaml.org,2002":
        todo = ""
        if node.tag in ("!vault", "!secret"):
            todo = "put the secret into a variable of the inventory, and use that one here"
        raise InputError(
            f"{name}:{line}",
            f"the tag {node.tag.replace('tag:yaml.org,2002:', '!!')}, which rigwright cannot read",
            "a plain value",
            todo,
        )
    if isinstance(node, yaml.MappingNode):
        mapping = Mapping()
        mapping.path, mapping.line, mapping.lines = name, line, {}
        for key_node, value_node in node.value:
            key_line = key_node.start_mark.line + 1
            if key_node.tag == "tag:yaml.org,2002:merge":
                raise InputError(f"{name}:{key_line}", "the merge key <<", "the keys themselves, written out")
            if not isinstance(key_node, yaml.ScalarNode):
                raise InputError(f"{name}:{key_line}", "a key that is a list or a mapping", "a key that is a text")
            key = _scalar(loader, key_node, name)
            if not isinstance(key, str):
                raise InputError(
                    f"{name}:{key_line}",
                    f"the key {key!r}, which YAML reads as no text",
                    f"'{key_node.value}' in quotes",
                )
            if key in mapping:
                raise InputError(
                    f"{name}:{key_line}",
                    f"the key '{key}' a second time (first in line {mapping.lines[key]})",
                    "each key once",
                )
            mapping[key] = _build(loader, value_node, name, tags, above)
            mapping.lines[key] = key_line
        return mapping
    if isinstance(node, yaml.SequenceNode):
        sequence = Sequence(_build(loader, item, name, tags, above) for item in node.value)
        sequence.path, sequence.line = name, line
        sequence.lines = [item.start_mark.line + 1 for item in node.value]
        return sequence
    return _scalar(loader, node, name)


def _untagged(node: yaml.Node) -> yaml.Node:
    """The node as it would be without its tag; a scalar as a text."""
    kinds: dict[type[yaml.Node], str] = {yaml.MappingNode: "map", yaml.SequenceNode: "seq"}
    return type(node)(f"tag:yaml.org,2002:{kinds.get(type(node), 'str')}", node.value, node.start_mark, node.end_mark)


def _scalar(loader: Any, node: yaml.Node, name: str) -> Any:
    try:
        return loader.construct_object(node, deep=True)
    except (ValueError, KeyError, AttributeError, TypeError, OverflowError):
        where = f"{name}:{node.start_mark.line + 1}"
        raise InputError(
            where, f"'{node.value}', which is no {node.tag.rsplit(':', 1)[-1]}", "a plain value, or one in quotes"
        ) from None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The text `; did you mean 'X'?` with the most similar known word; "" when no known word is similar."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean '{near[0]}'?" if near else ""


def misspelt(where: str, found: str, word: str, known: Iterable[str]) -> InputError:
    """The error for a word that is none of the known ones, with the most similar one and all of them."""
    names = list(known)
    return InputError(where, f"{found}{did_you_mean(word, names)}", f"one of {', '.join(names)}")


def only_keys(mapping: Mapping, known: Iterable[str], kind: str) -> None:
    """Raises InputError for the first unknown key of a mapping, with the most similar known key."""
    known = list(known)
    for key in mapping:
        if key not in known:
            raise misspelt(mapping.where(key), f"unknown {kind} '{key}'", key, sorted(known))
