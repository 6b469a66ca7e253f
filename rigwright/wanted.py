"""What a host should have, as types: the inventory's `driver`, `cuda`, `limits` and `cuda_repository`."""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NewType, get_args, get_origin, get_type_hints

from rigwright.errors import InputError
from rigwright.yamlfile import Mapping as YamlMapping
from rigwright.yamlfile import Sequence as YamlSequence
from rigwright.yamlfile import did_you_mean, only_keys


@dataclass(frozen=True)
class Driver:
    """A driver branch ('535'), or one `version` of it; `source`: auto, distribution, cuda, or a directory of .debs on the host."""

    branch: str
    version: str = ""
    source: str = "auto"

    def __post_init__(self) -> None:
        if self.source not in ("auto", "distribution", "cuda") and not re.fullmatch(r"/[^\s'\"]+", self.source):
            hint = did_you_mean(self.source, ("auto", "distribution", "cuda"))
            raise ValueError(
                f"source '{self.source}'{hint}",
                "auto, distribution, cuda, or a directory on the host that begins with /",
            )
        if self.branch.count(".") and not self.version:
            object.__setattr__(self, "version", self.branch)
        object.__setattr__(self, "branch", self.branch.split(".")[0])
        if not self.branch.isdigit() or (self.version and not self.version.startswith(f"{self.branch}.")):
            found = f"branch '{self.branch}', version '{self.version}'"
            raise ValueError(found, "a branch such as '535', or a version of it such as '535.183.01'")


@dataclass(frozen=True)
class Cuda:
    """A CUDA toolkit ('12.2')."""

    toolkit: str


@dataclass(frozen=True)
class CudaSource:
    """A repository laid out as NVIDIA's: a mirror inside the house, say. Its key must have the fingerprint."""

    url: str
    key: str = ""
    fingerprint: str = ""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"(https?|file)://[^\s'\"]+", self.url):
            raise ValueError(f"url '{self.url}'", "http://..., https://... or file:///...")
        object.__setattr__(self, "fingerprint", self.fingerprint.replace(" ", "").upper())
        if self.fingerprint and not re.fullmatch(r"[0-9A-Fa-f]{40}", self.fingerprint):
            raise ValueError(f"fingerprint '{self.fingerprint}'", "40 hexadecimal digits, without spaces")


@dataclass(frozen=True)
class Clocks:
    """Application clocks: the pair that `nvidia-smi -ac MEMORY,GRAPHICS` takes."""

    memory_mhz: int
    graphics_mhz: int

    def __post_init__(self) -> None:
        if self.memory_mhz <= 0 or self.graphics_mhz <= 0:
            raise ValueError(f"{self.memory_mhz},{self.graphics_mhz} MHz", "two clocks in MHz, such as 877 and 1005")


@dataclass(frozen=True)
class Limits:
    """What every GPU of a host is held to; None is left as it is."""

    persistence: bool | None = None
    power_limit_w: int | None = None
    application_clocks: Clocks | None = None

    def __post_init__(self) -> None:
        if self.power_limit_w is not None and self.power_limit_w <= 0:
            raise ValueError(f"power_limit_w {self.power_limit_w}", "watts, such as 200")


AbsolutePath = NewType("AbsolutePath", str)
"""A path from the root."""

OctalMode = NewType("OctalMode", str)
"""A file's mode: three or four octal digits, in quotes."""

KernelWord = NewType("KernelWord", str)
"""One word of a kernel command line."""

FILE_MODE, DIRECTORY_MODE = OctalMode("0644"), OctalMode("0755")

_FORMS: dict[object, tuple[str, str, str]] = {
    AbsolutePath: (r"/[^\0\n]*", "no path from the root", "a path that begins with /"),
    OctalMode: (r"[0-7]{3,4}", "no mode", "octal digits in quotes, such as '0644'"),
    KernelWord: (r"[A-Za-z0-9_.:,/=+@%-]+", "no kernel parameter", "NAME or NAME=VALUE, without spaces and quotes"),
}


def convert(value: Any, wanted: Any, where: str, name: str) -> Any:
    """A value from YAML as the type that a parameter's annotation wants.

    Raises InputError: another type, an unknown key (with the nearest one), a missing key, a value that its type refuses.
    """
    origin = get_origin(wanted)
    if isinstance(wanted, typing.NewType):
        text = convert(value, wanted.__supertype__, where, name)
        pattern, wrong, meant = _FORMS.get(wanted, (r"(?s).*", "", ""))
        if not re.fullmatch(pattern, text):
            raise InputError(where, f"'{name}': {text!r} is {wrong}", meant)
        return text
    if origin in (types.UnionType, typing.Union):
        choices = [choice for choice in get_args(wanted) if choice is not type(None)]
        return None if value is None else convert(value, choices[0], where, name)
    if dataclasses.is_dataclass(wanted) and isinstance(wanted, type):
        return _dataclass(value, wanted, where, name)
    if origin is list:
        if isinstance(value, str) or not isinstance(value, (list, tuple)):
            raise _wrong(value, "a list", where, name)
        lines = (
            [value.where(at) for at in range(len(value))] if isinstance(value, YamlSequence) else [where] * len(value)
        )
        return [convert(item, get_args(wanted)[0], line, name) for item, line in zip(value, lines, strict=True)]
    if origin is dict:
        if not isinstance(value, Mapping):
            raise _wrong(value, "{NAME: VALUE, ...}", where, name)
        return {key: convert(item, get_args(wanted)[1], where, f"{name}.{key}") for key, item in value.items()}
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if (
        not isinstance(wanted, type)
        or not isinstance(value, wanted)
        or (isinstance(value, bool) and wanted is not bool)
    ):
        words = {str: "a text (in quotes)", bool: "true or false", int: "a whole number", float: "a number"}
        raise _wrong(value, words.get(wanted, str(wanted)), where, name)
    return value


def _dataclass(value: Any, wanted: type, where: str, name: str) -> Any:
    fields = {field.name: field for field in dataclasses.fields(wanted)}
    if not isinstance(value, Mapping):
        raise _wrong(value, "{" + ", ".join(f"{field}: ..." for field in fields) + "}", where, name)
    if isinstance(value, YamlMapping):
        where = value.where()
        only_keys(value, fields, f"key of '{name}'")
    hints = get_type_hints(wanted)
    given = {}
    for key, item in value.items():
        line = value.where(key) if isinstance(value, YamlMapping) else where
        given[key] = convert(item, hints[key], line, f"{name}.{key}")
    missing = [key for key, field in fields.items() if key not in given and field.default is dataclasses.MISSING]
    if missing:
        raise InputError(
            where, f"'{name}' lacks {', '.join(missing)}", "{" + ", ".join(f"{key}: ..." for key in fields) + "}"
        )
    try:
        return wanted(**given)
    except ValueError as error:
        found, meant = error.args
        raise InputError(where, f"'{name}': {found}", meant) from None


def _wrong(value: Any, wanted: str, where: str, name: str) -> InputError:
    return InputError(where, f"'{name}' is {value!r}", wanted)


VARIABLES = {
    "driver": Driver,
    "cuda": Cuda,
    "limits": Limits,
    "cuda_repository": CudaSource,
    "kernel_cmdline": list[KernelWord],
    "rig": str,
}
"""The inventory variables that rigwright knows, and their types."""
