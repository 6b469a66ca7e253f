"""The GPUs of a machine compared with its description; its files with changed values and the same comments."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from msgspec import Struct

from rigwright.catalogue import Model, Rig, model
from rigwright.cli.init_draft import socket
from rigwright.core.errors import InputError
from rigwright.core.yaml_source import loads
from rigwright.inventory.secrets import TAGS


class Comparison(Struct, frozen=True):
    """The GPUs of the machine against its description.

    `slots`: the position of each GPU that is there, by bus id. `gpus`: the key of its model, by position. `lines`: what
    changed, one sentence each; () if nothing. `rig_fits`: the rig has exactly these GPUs at these positions.
    """

    slots: Mapping[str, str]
    gpus: Mapping[str, str]
    lines: tuple[str, ...]
    rig_fits: bool


def compare(rig: Rig | None, slots: Mapping[str, str], gpus: Mapping[str, Model]) -> Comparison:
    """Compares the GPUs of a machine, models by bus id, with the rig and the slots of its host.

    A bus id keeps its position. A new GPU gets the first free position of the rig that has its model, else a new name.
    """
    kept = {bus_id: slots[bus_id] for bus_id in gpus if bus_id in slots}
    positions, lines = dict(kept), []
    for bus_id, card in sorted(gpus.items()):
        expected = rig.gpus.get(kept.get(bus_id, "")) if rig else None
        if bus_id not in kept:
            positions[bus_id] = _position(rig, card, set(positions.values()))
            lines.append(f"{positions[bus_id]} {bus_id}: {card.label} is new")
        elif expected and expected != card.key:
            lines.append(f"{kept[bus_id]} {bus_id}: {card.label} is in the place of {model(expected).label}")
    lines += [f"{position} {bus_id}: no GPU there now" for bus_id, position in slots.items() if bus_id not in gpus]
    if rig is None:
        lines.append("no rig: the inventory names none for it")
    by_position = {positions[bus_id]: card.key for bus_id, card in sorted(gpus.items())}
    fits = rig is not None and by_position == dict(rig.gpus)
    if rig and not fits and not lines:
        have, wanted = Counter(by_position.values()), Counter(rig.models)
        for key in sorted(have | wanted):
            if have[key] != wanted[key]:
                lines.append(f"{have[key]} x {model(key).label}, and {wanted[key]} in the rig {rig.key}")
    return Comparison(positions, by_position, tuple(lines), fits)


def _position(rig: Rig | None, card: Model, taken: set[str]) -> str:
    free = (at for at, key in (rig.gpus if rig else {}).items() if key == card.key and at not in taken)
    named = (f"{socket(card)}-{number}" for number in itertools.count(1))
    known = rig.gpus if rig else {}
    return next(free, None) or next(name for name in named if name not in taken and name not in known)


def with_value(text: str, shown: str, key: str, value: Any) -> str:
    """The text of a YAML file with another value of a top-level key; all other keys and all comments are as they were.

    A line of a block that is no longer wanted becomes a comment. Raises InputError if the file is laid out so that the
    value cannot be replaced, with the line to write.
    """
    with contextlib.suppress(InputError, yaml.YAMLError):
        fresh = _edit(text, key, value)
        before, after = loads(text, shown, TAGS) or {}, loads(fresh, shown, TAGS)
        if isinstance(before, Mapping) and after == {**before, key: value}:
            return fresh
    fix = f"write this into it yourself: {flow(key, value)}"
    raise InputError(shown, f"is laid out so that '{key}' cannot be replaced", f"{key}: on lines of its own", fix)


def _edit(text: str, key: str, value: Any) -> str:
    """The text with the value; "" where that is not possible."""
    end = "\r\n" if "\r\n" in text else "\n"
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    pairs = root.value if isinstance(root, yaml.MappingNode) else []
    node = next((item for name, item in pairs if name.value == key), None)
    if node is None:
        return f"{text}{'' if not text or text.endswith(end) else end}{flow(key, value)}{end}"
    first, last = node.start_mark.index, node.end_mark.index
    if not isinstance(value, Mapping) or not isinstance(node, yaml.MappingNode) or node.flow_style:
        if "#" in text[first:last]:
            return ""
        return text[:first] + flow(key, value).removeprefix(f"{key}:").lstrip() + text[last:]
    if not all(isinstance(item, str) for item in value.values()):
        return ""
    return "".join(_block(text.splitlines(keepends=True), node, value, end))


def _block(lines: list[str], node: yaml.MappingNode, value: Mapping[str, str], end: str) -> Iterator[str]:
    """The lines of the file; those of the mapping changed, commented out or added after its last."""
    at = {name.start_mark.line: (name, item) for name, item in node.value}
    indent = " " * node.value[0][0].start_mark.column
    added = {name: item for name, item in value.items() if name not in [name.value for name, _ in node.value]}
    for number, line in enumerate(lines):
        name, item = at.get(number, (None, None))
        if name is None or item is None:
            yield line
        elif name.value not in value:
            yield f"{indent}# {line[len(indent) :]}"
        elif item.value != value[name.value]:
            yield line[: item.start_mark.column] + value[name.value] + line[item.end_mark.column :]
        else:
            yield line
        if number == max(at):
            if not line.endswith("\n"):
                yield end
            for fresh, position in added.items():
                yield f"{indent}{flow(fresh, position)}{end}"


def flow(key: str, value: Any) -> str:
    """The key with its value in braces or brackets; a value with more levels has a line for each of the first."""
    style = None if isinstance(value, (Mapping, list, tuple)) else False
    return yaml.safe_dump({key: _plain(value)}, default_flow_style=style, width=100_000, sort_keys=False).strip()


def _plain(value: Any) -> Any:
    """The value with Python's own dict and list in place of others."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
