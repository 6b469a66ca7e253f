"""Values as JSON types and back, by the annotations of dataclasses. A document of another process is checked while it is read."""

from __future__ import annotations

import base64
import dataclasses
import functools
import json
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, Literal, NewType, get_args, get_origin, get_type_hints

from rigwright.core.lazy_dataclasses import dataclass

MAX_CHARACTERS, MAX_DEPTH = 32 << 20, 48
"""Limits of a document that `loads` reads. A report has less than 25 levels; the output of one command is up to 4 MiB."""

_LARGEST = 2**63
"""SQLite stores no larger integers."""


@dataclass(frozen=True)
class Form:
    """How one annotation is written and read, where the rules of Codec do not fit. Both raise ValueError."""

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


@dataclass(frozen=True)
class Codec:
    """Converts values to JSON types and back.

    `forms`: by annotation, or by (dataclass, field). `kinds`: by a base class the dataclasses that a value of that annotation may
    have; `kind` names it. `left_out`: (dataclass, field) that is not written and has its default afterwards. `names`: what
    annotations name and their modules import only for type checking.

    A value without annotation (Any) must consist of JSON types; a tuple in it becomes a list.
    """

    forms: Mapping[object, Form] = field(default_factory=dict)
    kinds: Mapping[type, tuple[type, ...]] = field(default_factory=dict)
    left_out: frozenset[tuple[type, str]] = frozenset()
    names: Mapping[str, Any] = field(default_factory=dict)

    def write(self, value: Any, hint: Any) -> Any:
        """The value as JSON types. Raises ValueError when it is not of that type, or of a type without a JSON form."""
        return self._convert(value, hint, reading=False)

    def read(self, value: Any, hint: Any) -> Any:
        """The value that `write` converted. Raises ValueError when the JSON value is not one of that type."""
        return self._convert(value, hint, reading=True)

    def hints(self, annotated: Any) -> dict[str, Any]:
        """The annotations of a class or function."""
        return _hints(annotated, tuple(sorted(self.names.items())))

    def _convert(self, value: Any, hint: Any, reading: bool) -> Any:
        origin, arguments = get_origin(hint), get_args(hint)
        if form := _get(self.forms, hint):
            return form.read(value) if reading else form.write(value)
        if isinstance(hint, NewType):
            return self._convert(value, hint.__supertype__, reading)
        if hint in (Any, object):
            return _plain(value)
        if origin in (types.UnionType, typing.Union):
            return self._one_of(value, arguments, reading)
        if origin is Literal:
            if not any(type(value) is type(choice) and value == choice for choice in arguments):
                raise _wrong(value, hint)
            return value
        if origin in (tuple, list, set, frozenset):
            return self._sequence(value, origin, arguments, reading)
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return self._mapping(value, arguments, reading)
        if hint is bytes:
            return _bytes(value) if reading else base64.b64encode(value).decode("ascii")
        if hint in (str, bool, int, float, None, types.NoneType):
            return _scalar(value, hint)
        if reading and typing.is_typeddict(hint):
            return self._read_object(value, hint)
        if isinstance(hint, type) and (hint in self.kinds or dataclasses.is_dataclass(hint)):
            return self._from_fields(value, hint) if reading else self._to_fields(value, hint)
        raise ValueError(f"{hint} has no JSON form")

    def _one_of(self, value: Any, choices: tuple[Any, ...], reading: bool) -> Any:
        """The value as the first of these types that it has."""
        if value is None and types.NoneType in choices:
            return None
        problem = _wrong(value, " or ".join(map(str, choices)))
        for choice in choices:
            if choice is not types.NoneType:
                try:
                    return self._convert(value, choice, reading)
                except ValueError as error:
                    problem = error
        raise problem

    def _sequence(self, value: Any, origin: type, arguments: tuple[Any, ...], reading: bool) -> Any:
        if not isinstance(value, list if reading else (list, tuple, set, frozenset)):
            raise _wrong(value, origin)
        fixed = len(arguments) > 1 and Ellipsis not in arguments
        hints = list(arguments) if fixed else [arguments[0]] * len(value)
        if len(hints) != len(value):
            raise _wrong(value, f"{len(hints)} values")
        items = [self._convert(item, hint, reading) for item, hint in zip(value, hints, strict=True)]
        return origin(items) if reading else items

    def _mapping(self, value: Any, arguments: tuple[Any, ...], reading: bool) -> Any:
        """An object for keys that are texts, else a list of pairs."""
        as_object = _is_text(arguments[0])
        if not isinstance(value, Mapping if as_object or not reading else list):
            raise _wrong(value, "a mapping")
        pairs = value.items() if isinstance(value, Mapping) else value
        converted = [self._sequence(list(pair), list, arguments, reading) for pair in pairs]
        return dict(converted) if as_object or reading else converted

    def _read_object(self, value: Any, hint: Any) -> dict[str, Any]:
        hints = self.hints(hint)
        if not isinstance(value, dict) or value.keys() != hints.keys():
            raise _wrong(value, f"an object with {', '.join(hints)}")
        return {key: self._convert_field(value, key, (hint, kind), reading=True) for key, kind in hints.items()}

    def _to_fields(self, value: Any, hint: type) -> dict[str, Any]:
        """A dataclass as an object with its fields, in which `kind` names the class if it may be one of several."""
        known = self.kinds.get(hint, (hint,))
        if type(value) not in known:
            raise _wrong(value, hint)
        fields = {
            name: self._convert_field(value, name, kind, reading=False) for name, kind in self._fields(type(value))
        }
        return {"kind": type(value).__name__, **fields} if hint in self.kinds else fields

    def _from_fields(self, value: Any, hint: type) -> Any:
        if not isinstance(value, dict):
            raise _wrong(value, hint)
        given, made = dict(value), hint
        if hint in self.kinds:
            kind = given.pop("kind", None)
            made = next((known for known in self.kinds[hint] if known.__name__ == kind), type(None))
            if made is type(None):
                raise ValueError(f"{_shown(kind)} is no class that is expected here")
        fields = dict(self._fields(made))
        if given.keys() != fields.keys():
            raise ValueError(f"{made.__name__} with the keys {_shown(sorted(given))}")
        return made(**{name: self._convert_field(given, name, kind, reading=True) for name, kind in fields.items()})

    def _convert_field(self, holder: Any, name: str, at: tuple[type, Any], reading: bool) -> Any:
        value = holder[name] if reading else getattr(holder, name)
        form = self.forms.get((at[0], name))
        try:
            if form is None:
                return self._convert(value, at[1], reading)
            return form.read(value) if reading else form.write(value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None

    def _fields(self, cls: type) -> list[tuple[str, tuple[type, Any]]]:
        """The names of the fields that are written, each with the class and the annotation."""
        hints = self.hints(cls)
        out = {name for of, name in self.left_out if issubclass(cls, of)}
        return [(each.name, (cls, hints[each.name])) for each in dataclasses.fields(cls) if each.name not in out]


@functools.lru_cache(maxsize=512)
def _hints(annotated: Any, names: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    return get_type_hints(annotated, localns=dict(names))


def dumps(document: Any) -> str:
    """The JSON text of a document of JSON types. Raises ValueError for a number that is infinite or no number."""
    return json.dumps(document, allow_nan=False, separators=(",", ":"))


def loads(text: object) -> Any:
    """The document of a JSON text from another process, within the limits of size and depth. Raises ValueError."""
    if not isinstance(text, str):
        raise ValueError(f"{type(text).__name__}, which is no text")
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"{len(text) >> 20} MiB of text, more than {MAX_CHARACTERS >> 20} MiB")
    try:
        document = json.loads(text)
    except RecursionError:
        raise ValueError("nested without end") from None
    level = [document]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for holder in level
            if isinstance(holder, (list, dict))
            for item in (holder.values() if isinstance(holder, dict) else holder)
        ]
    if level:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    return document


def _get(forms: Mapping[object, Form], hint: Any) -> Form | None:
    try:
        return forms.get(hint)
    except TypeError:  # an annotation without a hash
        return None


def _is_text(hint: Any) -> bool:
    """Whether an annotation is a text: str, a NewType of it, or a Literal of texts."""
    while isinstance(hint, NewType):
        hint = hint.__supertype__
    return hint is str or (get_origin(hint) is Literal and all(isinstance(choice, str) for choice in get_args(hint)))


def _scalar(value: Any, hint: Any) -> Any:
    if hint in (None, types.NoneType):
        if value is not None:
            raise _wrong(value, hint)
        return None
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(_plain(value))
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise _wrong(value, hint)
    return _plain(value)


def _plain(value: Any) -> Any:
    """A value of JSON types; tuples become lists. Raises ValueError for another type, and for what cannot be printed or stored."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        value.encode("utf-8")  # UnicodeEncodeError, a ValueError, for half of a surrogate pair
        return value
    if isinstance(value, int):
        if not -_LARGEST <= value < _LARGEST:
            raise ValueError("an integer of more than 64 bits")
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} is no finite number")
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise ValueError("a mapping whose keys are no texts")
        return {_plain(key): _plain(item) for key, item in value.items()}
    raise ValueError(f"a value of the type {type(value).__name__}")


def _bytes(value: Any) -> bytes:
    if not isinstance(value, str):
        raise _wrong(value, bytes)
    return base64.b64decode(value, validate=True)


def _wrong(value: Any, wanted: Any) -> ValueError:
    name = wanted.__name__ if isinstance(wanted, type) else str(wanted)
    return ValueError(f"{_shown(value)} in place of {name}")


def _shown(value: Any) -> str:
    """The beginning of a text or number; the type of another value."""
    if isinstance(value, (str, int, float, bool, type(None))):
        return repr(value)[:60]
    return f"a {type(value).__name__}"
