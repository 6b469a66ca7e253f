"""Reads the answer of `smi.XML`: the fields of each GPU. Several facts read the same answer, each its part."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from rigwright.core import host_text
from rigwright.core.command import Result
from rigwright.core.schema import BusId, bus_id
from rigwright.facts import Unavailable
from rigwright.facts.gpu.smi import LOST_WORDS, answered, lost, number, value

if TYPE_CHECKING:
    from xml.etree import ElementTree

ROOT = "nvidia_smi_log"
MOST_GPUS = 256
"""The most GPUs and documents of an answer."""
_LONGEST_PATH = 200
"""The most characters of the path of a field; the longest of a V100 has 68."""

_STATES = {"Yes": True, "Enabled": True, "Active": True, "No": False, "Disabled": False, "Not Active": False}
_LONGEST_WORD = 100
"""Characters of a text whose meaning is kept; most are the same for all GPUs."""


class Reading:
    """The fields of one GPU by path, and the names of those with an error instead of a value. `lost`: the driver's
    message for a GPU that it cannot reach."""

    def __init__(self, at: BusId, texts: Mapping[str, str], lost: str = "") -> None:
        self.bus_id = at
        self.texts = texts
        self.lost = lost
        self.unread: list[str] = []

    def text(self, *paths: str) -> str | None:
        """The first of these fields with a value."""
        for path in paths:
            text = self.texts.get(path, "")
            word, problem = value(text) if len(text) <= _LONGEST_WORD else value.__wrapped__(text)
            if problem:
                self.unread.append(f"{path.rpartition('/')[2]}: {problem}")
                self.lost = self.lost or (problem if problem in LOST_WORDS else "")
            if word is not None:
                return word
        return None

    def number(self, *paths: str) -> float | None:
        """A number without its unit. Raises ValueError for other text, also for nan and inf."""
        word = self.text(*paths)
        if word is None:
            return None
        return _number(word) if len(word) <= _LONGEST_WORD else _number.__wrapped__(word)

    def whole(self, *paths: str) -> int | None:
        """A whole number without its unit."""
        real = self.number(*paths)
        return None if real is None else int(real)

    def yes(self, *paths: str) -> bool | None:
        """True for Yes, Enabled and Active, False for their opposites. Raises ValueError for other words."""
        word = self.text(*paths)
        if word is not None and word not in _STATES:
            raise ValueError(f"{paths[0]}: {word}")
        return None if word is None else _STATES[word]


@lru_cache(maxsize=4096)
def _number(word: str) -> float:
    return number(word.split()[0].removesuffix("x"))


def power(*names: str) -> tuple[str, ...]:
    """The paths of power readings; drivers before 530 name the group differently."""
    return tuple(f"{group}/{name}" for group in ("gpu_power_readings", "power_readings") for name in names)


def readings(result: Result) -> list[Reading]:
    """All GPUs, also lost ones, in the order of their indices.

    Raises Unavailable if nvidia-smi failed or lists no GPU, ValueError for XML that is not whole or exceeds a limit.
    """
    text = result.text
    if "<!ENTITY" in text:
        raise ValueError("an entity in its XML")
    *documents, after = text.split(f"</{ROOT}>")
    if len(documents) > MOST_GPUS:
        raise ValueError(f"more than {MOST_GPUS} XML documents")
    found: list[Reading] = []
    for document in documents:
        before, begin, inside = document.partition(f"<{ROOT}>")
        found += _lost(before)
        if begin:
            found += [Reading(bus_id(at), texts) for at, texts in _gpus(f"<{ROOT}>{inside}</{ROOT}>")]
    found += _lost(after)
    if sum(bool(one.texts) for one in found) != text.count("<gpu id=") or f"<{ROOT}>" in after:
        raise ValueError("XML that ends in the middle")
    if not found and f"<{ROOT}>" not in text:
        lines = host_text.lines(answered(result).strip())
        raise Unavailable(f"nvidia-smi says: {lines[0] if lines else 'nothing'}")
    if len(found) > MOST_GPUS:
        raise ValueError(f"more than {MOST_GPUS} GPUs")
    return found


def _lost(text: str) -> list[Reading]:
    return [Reading(at, {}, problem) for at, problem in lost(text).items()]


@lru_cache(maxsize=16)
def _gpus(document: str) -> list[tuple[str, dict[str, str]]]:
    """The id and the texts by path of each <gpu> of a document, for all facts that read it. Raises ValueError as
    `host_text.xml`."""
    if document.count("<gpu ") > MOST_GPUS:
        raise ValueError(f"more than {MOST_GPUS} GPUs")
    found = []
    for gpu in host_text.xml(document).findall("gpu"):
        texts: dict[str, str] = {}
        _add_texts(gpu, "", texts)
        found.append((gpu.attrib["id"], texts))
    return found


def _add_texts(element: ElementTree.Element, above: str, texts: dict[str, str]) -> None:
    """Adds the text of each element below one by its path; the first one of a path counts."""
    for inner in element:
        path = above + inner.tag
        if len(path) > _LONGEST_PATH:
            raise ValueError(f"XML with a path of more than {_LONGEST_PATH} characters")
        texts.setdefault(path, inner.text or "")
        _add_texts(inner, f"{path}/", texts)
