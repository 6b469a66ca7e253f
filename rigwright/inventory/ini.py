"""Reads inventories in Ansible's INI format: `[group]`, `[group:children]`, `[group:vars]`, one host per line."""

from __future__ import annotations

import ast
import shlex
import warnings
from typing import Any

from rigwright.core import lazy_re
from rigwright.core.errors import InputError
from rigwright.core.yaml_source import did_you_mean
from rigwright.inventory import names
from rigwright.inventory.groups import Declared, Given

_SECTION = lazy_re.compile(r"\[([^:\]\s]+)(?::(\w+))?\]\s*(?:#.*)?")
_NAME = lazy_re.compile(r"([^:\]\s]+)\s*(?:#.*)?")
_KINDS = ("hosts", "children", "vars")
_LONGEST = 16384
"""The most characters of a line."""
_LONGEST_LITERAL = 4096
"""A longer value is a text. Python's parser needs a level of its stack for each bracket and sign."""


def declare(text: str, file: str, declared: Declared) -> None:
    """Adds the content of an INI text to `declared`. Raises InputError when the text is not a valid inventory."""
    group, kind = "ungrouped", "hosts"
    sections: set[str] = set()
    wanted: list[tuple[str, str]] = []
    seen: dict[tuple[str, str], int] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line, where = raw.strip(), f"{file}:{number}"
        if len(line) > _LONGEST:
            raise InputError(where, f"a line of {len(line)} characters", f"at most {_LONGEST}")
        if not line or line[0] in "#;":
            continue
        if line.startswith("[") and (section := _section(line, where)):
            group, kind = section
            declared.group(group)
            if kind != "vars":
                sections.add(group)
            else:
                wanted.append((group, where))
        elif kind == "hosts":
            name = line.split()[0]
            if (first := seen.setdefault((group, name), number)) != number:  # the second line would silently win
                problem = f"the host '{name}' a second time in [{group}] (first in line {first})"
                raise InputError(where, problem, "each host once")
            _host(line, group, where, declared)
        elif kind == "vars":
            key, equals, value = (part.strip() for part in line.partition("="))
            if not equals:
                raise InputError(where, f"'{line}' in a section of variables", "NAME = VALUE")
            names.variable(key, where)
            declared.variables(group, {key: (_value(value), where)})
        else:
            child = _NAME.fullmatch(line)
            if not child:
                raise InputError(where, f"'{line}' in a section of children", "the name of a group")
            wanted.append((child[1], where))
            declared.child(group, child[1], where)
    later = dict(wanted)
    elsewhere = {name for name, group in declared.groups.items() if group.hosts or group.children or name not in later}
    known = {*sections, *elsewhere, "all", "ungrouped"}
    for name, where in wanted:
        names.group(name, known, where)


def _section(line: str, where: str) -> tuple[str, str] | None:
    """Group and kind of a section header; None for a host that begins with a bracket. Raises InputError."""
    match = _SECTION.fullmatch(line)
    if match:
        kind = match[2] or "hosts"
        if kind not in _KINDS:
            hint = did_you_mean(kind, _KINDS)
            raise InputError(
                where, f"'{kind}' is no kind of section{hint}", "[GROUP], [GROUP:children] or [GROUP:vars]"
            )
        return match[1], kind
    if line.partition("#")[0].rstrip().endswith("]"):
        raise InputError(where, f"'{line}' is no section", "[GROUP], [GROUP:children] or [GROUP:vars], without spaces")
    return None


def _host(line: str, group: str, where: str, declared: Declared) -> None:
    try:
        name, *words = shlex.split(line, comments=True)
    except ValueError as error:
        raise InputError(where, f"{str(error).lower()} in '{line}'", "quotes in pairs") from None
    if name == "---":
        raise InputError(where, "'---', which begins YAML", "an INI inventory, or a name that ends with .yml")
    hosts, port = names.hosts(name, where)
    variables: Given = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise InputError(where, f"'{word}' behind the host '{name}'", "NAME=VALUE", "one host a line")
        names.variable(key, where)
        variables[key] = (_value(value), where)
    for host in hosts:
        declared.host(host, group, where, port, variables)


def _value(text: str) -> Any:
    """Parses a Python literal (number, list, True, quoted text); returns any other text unchanged."""
    try:
        if len(text) > _LONGEST_LITERAL:
            return text
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text
    return _plain(value, text)


def _plain(value: Any, text: str) -> Any:
    """Converts tuples to lists, and values that YAML does not have (sets, bytes, complex) to the original text."""
    if isinstance(value, dict):
        return {str(key): _plain(inner, text) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner, text) for inner in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else text
