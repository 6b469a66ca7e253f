"""Converts values from YAML to types: Structs, lists, texts of a given form. Errors contain file and line."""

from __future__ import annotations

import contextlib
import datetime
import re
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NewType, get_args, get_origin

from msgspec import Struct, structs

from rigwright.core.errors import InputError
from rigwright.core.secrets import Secret
from rigwright.core.yaml_source import Mapping as YamlMapping, Sequence as YamlSequence, misspelt, only_keys

# Texts of a form, which _FORMS describes
AbsolutePath = NewType("AbsolutePath", str)
OctalMode = NewType("OctalMode", str)
KernelWord = NewType("KernelWord", str)
Word = NewType("Word", str)
FileName = NewType("FileName", str)
PciId = NewType("PciId", str)
BusId = NewType("BusId", str)
Branch = NewType("Branch", str)
Release = NewType("Release", str)
"""A version with dots, in quotes. Without quotes YAML reads 12.10 as 12.1."""

LONGEST_EXAMPLE = 60
"""Longer texts are not repeated as an example of a list, characters."""

FILE_MODE, SECRET_FILE_MODE, DIRECTORY_MODE = OctalMode("0644"), OctalMode("0600"), OctalMode("0755")

_FORMS: dict[object, tuple[str, str, str]] = {
    AbsolutePath: (r"/[^\0\n]*", "no path from the root", "a path that begins with /"),
    Word: (r"[^\s\0-\x1f\x7f]+", "not one word", "a text without spaces and line ends"),
    FileName: (r"[A-Za-z0-9_-]+", "no part of a file name", "letters, digits, - and _"),
    OctalMode: (r"[0-7]{3,4}", "no mode", "octal digits in quotes, such as '0644'"),
    PciId: (r"[0-9a-f]{4}", "no PCI device id", "four hexadecimal digits in lower case and quotes, such as '1db1'"),
    BusId: (r"[0-9a-f]{4}:[0-9a-f]{2}:[0-1][0-9a-f]\.[0-7]", "no bus id", "as lspci -D writes it: '0000:06:00.0'"),
    Branch: (r"[0-9]{3}", "no driver branch", "three digits in quotes, such as '535'"),
    Release: (r"[0-9]+(\.[0-9]+)+", "no version", "numbers with dots, in quotes, such as '12.2'"),
    KernelWord: (r"[A-Za-z0-9_.:,/=+@%-]+", "no kernel parameter", "NAME or NAME=VALUE, without spaces and quotes"),
}


def bus_id(text: str) -> BusId:
    """Converts 00000000:06:00.0, 0000:06:00.0 or 06:00.0 to the form 0000:06:00.0; "" stays ""."""
    return BusId(f"0000:{text.lower()}"[-12:] if text else "")


_LEAVES = {
    str: "a text (in quotes)", bool: "true or false", int: "a whole number", float: "a number",
    datetime.date: "a date, YYYY-MM-DD",
}  # fmt: skip


def convert(value: Any, wanted: Any, where: str, name: str) -> Any:
    """Converts a value from YAML to the type `wanted`.

    A secret is accepted only by a type with `| Secret`. A Struct with a class variable SHORT, the name of a field, may
    be given as the value of that field alone; with a class variable MAPPING a mapping is the value of that field. A
    class variable FORM says in errors how YAML writes such a value.
    Raises InputError for a value of another type, an unknown key (with the most similar known key), a missing key, or a
    value that the type rejects.
    """
    origin, inner = get_origin(wanted), get_args(wanted)
    if wanted is Any or (isinstance(value, Secret) and Secret in inner):
        return value
    if isinstance(value, Secret):
        problem = f"'{name}' holds a secret, and its value is shown in plans and in the list of processes of the host"
        fix = "write the secret into a file: file.present, file.template"
        raise InputError(where, problem, "a value that is no secret", fix)
    if isinstance(wanted, typing.NewType):
        text = convert(value, wanted.__supertype__, where, name)
        pattern, wrong, meant = _FORMS.get(wanted, (r"(?s).*", "", ""))
        if not re.fullmatch(pattern, text):
            raise InputError(where, f"'{name}': {text!r} is {wrong}", meant)
        return text
    if origin in (types.UnionType, typing.Union):
        (choice,) = (choice for choice in inner if choice not in (type(None), Secret))
        return None if value is None else convert(value, choice, where, name)
    if isinstance(wanted, type) and issubclass(wanted, Struct):
        return _struct(value, wanted, where, name)
    if origin is typing.Literal:
        if value not in inner or isinstance(value, bool):
            raise misspelt(where, f"'{name}' is {value!r}", str(value), map(str, inner))
        return value
    if origin in (list, tuple):
        if not isinstance(value, (list, tuple)):
            example = f": [{value!r}]" if isinstance(value, str) and len(value) <= LONGEST_EXAMPLE else ""
            raise _wrong(value, f"a list{example}", where, name)
        if origin is tuple and Ellipsis not in inner and len(value) != len(inner):
            raise _wrong(list(value), f"a list of {len(inner)}", where, name)
        place = value.where if isinstance(value, YamlSequence) else lambda _at: where
        return origin(convert(item, inner[0], place(at), name) for at, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, Mapping):
            raise _wrong(value, "{NAME: VALUE, ...}", where, name)
        place = _places(value, where)
        return {
            convert(key, inner[0], place(key), name): convert(item, inner[1], place(key), f"{name}.{key}")
            for key, item in value.items()
        }
    if wanted is datetime.date and isinstance(value, (str, datetime.datetime)):  # in quotes, or with a time of day
        with contextlib.suppress(ValueError):
            value = datetime.date.fromisoformat(str(value)[: len("YYYY-MM-DD")])
    if isinstance(value, wanted) and (wanted is bool or not isinstance(value, bool)):
        return value
    if wanted is float and type(value) is int:
        return float(value)
    raise _wrong(value, _LEAVES.get(wanted, str(wanted)), where, name)


_fields = cache(structs.fields)


def _struct(value: Any, wanted: type[Struct], where: str, name: str) -> Any:
    fields = {field.name: field for field in _fields(wanted)}
    form, shape = getattr(wanted, "FORM", ""), "{" + ", ".join(f"{field}: ..." for field in fields) + "}"
    whole = ""  # the field whose value is written alone
    if (short := getattr(wanted, "SHORT", "")) and value is not None and not isinstance(value, (Mapping, list, tuple)):
        value, whole = {short: value}, short
    elif (field := getattr(wanted, "MAPPING", "")) and isinstance(value, Mapping):
        value, whole = {field: value}, field
    if not isinstance(value, Mapping):
        raise _wrong(value, form or shape, where, name)
    if isinstance(value, YamlMapping):
        where = value.where()
        only_keys(value, fields, f"key of '{name}'" if name else "key")
    place = _places(value, where)
    values = {}
    for key, item in value.items():
        inner_name = name if key == whole else f"{name}.{key}" if name else key
        try:
            values[key] = convert(item, fields[key].type, place(key), inner_name)
        except InputError:
            if form and key == whole and not isinstance(item, Mapping):
                raise _wrong(item, form, where, name) from None
            raise
    needed = [key for key, field in fields.items() if field.required]
    if missing := [key for key in needed if key not in values]:
        expected = shape if name else f"at least {', '.join(needed)}"
        raise InputError(where, f"{repr(name) + ' lacks' if name else 'lacks'} {', '.join(missing)}", expected)
    try:
        return wanted(**values)
    except ValueError as error:
        problem, meant, *fix = error.args
        raise InputError(where, f"'{name}': {problem}" if name else problem, meant, *fix) from None


def _places(value: Mapping[str, Any], where: str) -> Callable[[str], str]:
    """FILE:LINE of each key; `where` for a mapping that is not of a file."""
    return value.where if isinstance(value, YamlMapping) else lambda _key: where


def _wrong(value: Any, wanted: str, where: str, name: str) -> InputError:
    return InputError(where, f"'{name}' is {value!r}", wanted)
