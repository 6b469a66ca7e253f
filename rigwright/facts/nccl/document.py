"""The JSON documents that programs leave on the host, and what those of programs share that load GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar

from msgspec import Struct

from rigwright.core import host_text
from rigwright.core.command import Result, script
from rigwright.core.control_characters import visible
from rigwright.core.errors import InputError
from rigwright.core.schema import convert
from rigwright.facts import Unavailable, Unreadable

T = TypeVar("T")

FOLDER = "/run/rigwright-p2p"
"""The folder on the host with the program, its log and its document during a test. It is removed afterwards."""

READ_DOCUMENT = script('cat "$1/document" 2>/dev/null', FOLDER)


class Mistake(Struct, frozen=True):
    """An error and its place."""

    where: str
    what: str


class Versions(Struct, frozen=True):
    """Versions of the driver, of CUDA in the driver, of the CUDA runtime and of NCCL; None: unknown or not used."""

    driver: str | None
    cuda_driver: str | None
    cuda_runtime: str | None
    nccl: str | None


class MeasurementDocument(Struct, frozen=True, kw_only=True):
    """The keys that onhost/nccl_measurement.py writes. `seconds`: the duration, None for a program that was ended;
    `left_behind`: processes that it could not end."""

    schema: int
    outcome: Literal["ok", "failed", "could not run"]
    started: str
    seconds: float | None
    versions: Versions
    libraries: dict[str, str]
    errors: tuple[Mistake, ...]
    left_behind: tuple[int, ...]


BELOW = 1e9
"""No speed and no reading of a sensor reaches this number, in the units of the documents."""


def require_readings(values: Iterable[float | None]) -> None:
    """Raises ValueError for a value that cannot be a speed or a reading of a sensor; None: not measured."""
    for value in values:
        if value is not None and not 0 <= value < BELOW:
            raise ValueError(f"{value:g} is no speed and no reading of a sensor: expected 0 or more, below {BELOW:g}")


def left_document(result: Result, not_run: str, empty: str) -> str:
    """The answer to READ_DOCUMENT. Raises Unavailable(`not_run`) without a document, Unreadable(`empty`) if empty."""
    if result.code == 1 and not result.stdout:
        raise Unavailable(not_run)
    if not result.stdout.strip():
        raise Unreadable(empty)
    return result.text


def read_document(text: str, document_type: type[T], name: str) -> T:
    """The document as a type. Raises ValueError for an unknown or missing key, a value of another type, and another
    schema than 1."""
    try:
        given = host_text.json_value(text)
        if not isinstance(given, dict):
            raise ValueError("no JSON object")
        document: T = convert(_visible(given), document_type, f"the {name} document", "")
    except InputError as error:
        expected = f", not {error.expected}" if error.expected else ""
        raise ValueError(f"{error.where}: {error.found}{expected}") from None
    except KeyError as key:
        raise ValueError(f"unknown key {key}") from None
    except RecursionError:
        raise ValueError("nested without end") from None
    if given["schema"] != 1:
        raise ValueError(f"schema {given['schema']}, not 1")
    return document


_RENAMED = {"from": "start", "to": "end"}
"""Keys of a pair of GPUs that are keywords of Python."""


def _visible(value: Any) -> Any:
    """A value from JSON with its control characters replaced, and `from` and `to` of a pair renamed."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, list):
        return [_visible(item) for item in value]
    if isinstance(value, Mapping):
        renamed = _RENAMED if "from" in value and "grant" in value else {}
        return {renamed.get(key, str(key)): _visible(item) for key, item in value.items()}
    return value
