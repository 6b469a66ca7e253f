"""Differences between two values of a fact. List items (GPUs, DIMMs) are matched by identifier, not by position."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

IDENTIFIERS = ("uuid", "serial", "bus_id", "locator", "name")
"""The keys that identify an item of a list, the most reliable first."""


def leaves(value: Any, above: str = "") -> dict[str, str]:
    """The leaves of a value as texts, by path such as `[GPU-531aad71].power_limit_w`. A plain value has the path ""."""
    if isinstance(value, Mapping):
        texts: dict[str, str] = {}
        for key, inner in value.items():
            texts.update(leaves(inner, f"{above}.{key}" if above else str(key)))
        return texts
    if isinstance(value, list) and any(isinstance(item, (Mapping, list)) for item in value):
        texts = {}
        for place, item in zip(_places(value), value, strict=True):
            texts.update(leaves(item, f"{above}[{place}]"))
        return texts
    return {above: _text(value)}


def _places(items: list[Any]) -> list[str]:
    """The name of each item: its first identifier that all items have and that is unique, else its index."""
    for key in IDENTIFIERS:
        names = [str(item.get(key) or "") if isinstance(item, Mapping) else "" for item in items]
        if all(names) and len(set(names)) == len(names):
            return names
    return [str(number) for number in range(len(items))]


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return ", ".join(_text(item) for item in value)
    if isinstance(value, float):
        return f"{value:g}"
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def compared(before: Any, after: Any) -> list[tuple[str, str, str]]:
    """(path, text before, text after) of every leaf that differs, in the order of the later value.

    A missing leaf has the text "". A list item that was added or removed is a single entry with the path of the item.
    """
    old, new = leaves(before), leaves(after)
    changes: dict[str, tuple[str, str]] = {}
    for path in dict.fromkeys([*new, *old]):
        if old.get(path, "") == new.get(path, ""):
            continue
        item = path[: path.rfind("]") + 1]
        gone, came = (item and not any(_within(item, path_inside) for path_inside in side) for side in (new, old))
        if gone or came:
            changes[item] = ("there", "gone") if gone else ("", "new")
        else:
            changes[path] = (old.get(path, ""), new.get(path, ""))
    return [(path, *words) for path, words in changes.items()]


def _within(item: str, path: str) -> bool:
    return path == item or path.startswith(f"{item}.")
