"""The numbers in `RmInitAdapter failed! (0xSTAGE:0xSTATUS:LINE)`, as NVIDIA publishes them (init_failures.yml)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from rigwright.catalogue import loader
from rigwright.catalogue.loader import document
from rigwright.core import lazy_re
from rigwright.core.errors import InputError
from rigwright.core.files.disk_cache import cached_on_disk

_FAILURE = lazy_re.compile(r"RmInitAdapter failed! \((0x[0-9a-f]{1,8}):(0x[0-9a-f]{1,8}):", re.IGNORECASE)


class Code(Struct, frozen=True):
    """A stage of the GPU's start, or the status with which it ended: NVIDIA's name and our meaning."""

    name: str
    meaning: str


class _Table(Struct, frozen=True):
    stages: dict[str, Code]
    statuses: dict[str, Code]
    sources: dict[str, str]


@cached_on_disk
def _table() -> _Table:
    """Raises InputError for a code that is no hexadecimal number and for a row without a source."""
    source = document(loader.FOLDER / "init_failures.yml")
    for rows in ("stages", "statuses"):
        loader.require_row_sources(source, rows)
        for code in source[rows]:
            if not re.fullmatch(r"0x[0-9a-f]{2,8}", code):
                raise InputError(source[rows].where(code), f"'{code}' is no code", 'in quotes and lower case: "0x0f"')
    return loader.whole(source, _Table)


def init_failures_in(text: str) -> tuple[str, ...]:
    """A sentence on stage and status of each different `RmInitAdapter failed!` line of a text, at most eight."""
    table = _table()
    sentences = dict.fromkeys(
        f"stage {_named(stage, table.stages)}; status {_named(status, table.statuses)}"
        for stage, status in _FAILURE.findall(text)
    )
    return tuple(sentences)[:8]


def _named(code: str, known: Mapping[str, Code]) -> str:
    number = f"{int(code, 16):#04x}"
    row = known.get(number)
    return f"{number} {row.name}: {row.meaning}" if row else f"{number}, which the catalogue does not describe"


def init_failure_source() -> str:
    """The source of the names."""
    return _table().sources["name"]
