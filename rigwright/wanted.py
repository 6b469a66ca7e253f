"""What a host should have, as types: the inventory's `driver`, `cuda`, `limits` and `cuda_repository`."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args, get_origin, get_type_hints

from rigwright.errors import InputError
from rigwright.yamlfile import Mapping as YamlMapping
from rigwright.yamlfile import did_you_mean, only_keys


@dataclass(frozen=True)
class Driver:
    """A driver branch ('535'), or one `version` of it; `source`: auto, distribution or cuda."""

    branch: str
    version: str = ""
    source: str = "auto"

    def __post_init__(self) -> None:
        if self.source not in ("auto", "distribution", "cuda"):
            raise ValueError(
                f"source '{self.source}'{did_you_mean(self.source, ('auto', 'distribution', 'cuda'))}; auto, distribution or cuda"
            )
        if self.branch.count(".") and not self.version:
            object.__setattr__(self, "version", self.branch)
        object.__setattr__(self, "branch", self.branch.split(".")[0])
        if not self.branch.isdigit() or (self.version and not self.version.startswith(f"{self.branch}.")):
            raise ValueError(
                f"branch '{self.branch}', version '{self.version}'; a branch such as '535', or a version of it such as '535.183.01'"
            )


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


@dataclass(frozen=True)
class Clocks:
    """Application clocks: the pair that `nvidia-smi -ac MEMORY,GRAPHICS` takes."""

    memory_mhz: int
    graphics_mhz: int


@dataclass(frozen=True)
class Limits:
    """What every GPU of a host is held to; None is left as it is."""

    persistence: bool | None = None
    power_limit_w: int | None = None
    application_clocks: Clocks | None = None


def convert(value: Any, wanted: Any, where: str, name: str) -> Any:
    """A value from YAML as the type that a parameter's annotation wants.

    Raises InputError: another type, an unknown key (with the nearest one), a missing key, a value that its type refuses.
    """
    origin = get_origin(wanted)
    if isinstance(wanted, typing.NewType):
        wanted = wanted.__supertype__
    if origin in (types.UnionType, typing.Union):
        choices = [choice for choice in get_args(wanted) if choice is not type(None)]
        return None if value is None else convert(value, choices[0], where, name)
    if dataclasses.is_dataclass(wanted) and isinstance(wanted, type):
        return _dataclass(value, wanted, where, name)
    if origin is list:
        if isinstance(value, str) or not isinstance(value, (list, tuple)):
            raise _wrong(value, "a list", where, name)
        return [convert(item, get_args(wanted)[0], where, name) for item in value]
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
        raise InputError(where, f"'{name}': {error}") from None


def _wrong(value: Any, wanted: str, where: str, name: str) -> InputError:
    return InputError(where, f"'{name}' is {value!r}", wanted)


VARIABLES = {
    "driver": Driver,
    "cuda": Cuda,
    "limits": Limits,
    "cuda_repository": CudaSource,
    "kernel_cmdline": list[str],
    "rig": str,
}
"""The inventory variables that rigwright knows, and their types."""
