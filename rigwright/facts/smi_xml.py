"""Reads the answer of `smi.XML`: the fields of each GPU. Several facts read the same answer, each its part.

nvidia-smi writes each element of a GPU on lines of its own, indented with tabs. Most of them are the same for all GPUs and hosts, so each text
of an element is parsed once. A document in another form, and one with an element that is not well-formed, is parsed as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from rigwright.core import host_text, lazy_re
from rigwright.core.command import Result
from rigwright.core.schema import BusId, bus_id
from rigwright.facts import Unavailable
from rigwright.facts.smi import LOST_WORDS, answered, lost, number, value

if TYPE_CHECKING:
    from xml.etree import ElementTree

ROOT = "nvidia_smi_log"
_BEGIN, _END = f"<{ROOT}>", f"</{ROOT}>"
_GPU, _GPU_END = '\n\t<gpu id="', "\n\t</gpu>"
_ID = lazy_re.compile(r"[0-9A-Fa-f:.]{1,20}")
_LETTER = lazy_re.compile(r"[a-z]")
_MOST_KEPT, _LONGEST_KEPT = 1024, 1600
"""The elements that are kept, and the characters of each; the longest of a V100 has 1220."""
_LONGEST_PATH = 200
MOST_GPUS = 256
"""A document with a longer path, and one with more GPUs, is refused; the longest path of a V100 has 68 characters."""


def texts(element: ElementTree.Element) -> dict[str, str]:
    """The text of each element below one by its path; the first one of a path counts."""
    found: dict[str, str] = {}
    _note_texts(element, "", found)
    return found


def _note_texts(element: ElementTree.Element, above: str, found: dict[str, str]) -> None:
    """Adds the text of each element below one by its path. A search for each path takes three times as long."""
    for inner in element:
        path = above + inner.tag
        if len(path) > _LONGEST_PATH:
            raise ValueError(f"XML with a path of more than {_LONGEST_PATH} characters")
        found.setdefault(path, inner.text or "")
        if len(inner):
            _note_texts(inner, f"{path}/", found)


_STATES = {"Yes": True, "Enabled": True, "Active": True, "No": False, "Disabled": False, "Not Active": False}
_LONGEST_WORD = 100
"""Characters of a text whose meaning is kept; most are the same for all GPUs."""


class Reading:
    """The fields of one GPU by path, and the names of those with an error instead of a value. `lost`: the driver's message for a GPU that it
    cannot reach."""

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


def _gpus(document: str) -> Sequence[tuple[str, Mapping[str, str]]]:
    """The id and the texts of each <gpu> of a document, which begins and ends with its root. Raises ValueError as `host_text.xml`."""
    if document.count("<gpu ") > MOST_GPUS:
        raise ValueError(f"more than {MOST_GPUS} GPUs")
    keep = len(document) <= _LONGEST_DOCUMENT and document.count("<") <= _MOST_DOCUMENT_TAGS
    return _kept_document(document) if keep else _kept_document.__wrapped__(document)


_LONGEST_DOCUMENT, _MOST_DOCUMENT_TAGS = 200_000, 16_000
"""The characters and tags of a document that is kept, because the fields and the cards are read from one; four V100 have 38000 and
1800, eight H100 83000 and 3700."""


@lru_cache(maxsize=16)
def _kept_document(document: str) -> Sequence[tuple[str, Mapping[str, str]]]:
    try:
        found = _by_elements(document)
    except ValueError:  # an element that is not well-formed alone; the whole may be
        found = None
    if found is None:
        found = [(gpu.attrib["id"], texts(gpu)) for gpu in host_text.xml(document).findall("gpu")]
    return found


def _by_elements(document: str) -> list[tuple[str, dict[str, str]]] | None:
    """As `gpus`, from elements that are parsed one by one; None for a document that does not have the lines of nvidia-smi.

    Well-formed elements after each other are well-formed content, so the result is that of the whole. Raises ValueError.
    """
    if not (document.startswith(_BEGIN) and document.endswith(f"\n{_END}")):
        return None
    if document.count("<") > 2 * host_text.VALUES:
        return None
    head, *parts = document[len(_BEGIN) : -len(_END) - 1].split(_GPU)
    if _texts_of_lines(head, "\n\t<") is None:
        return None
    found = []
    for part in parts:
        name, quote, rest = part.partition('">')
        inside, end, after = rest.partition(_GPU_END)
        values = _texts_of_lines(inside, "\n\t\t<")
        if not (quote and end and _ID.fullmatch(name)) or after or values is None:
            return None
        found.append((name, values))
    return found


def _texts_of_lines(content: str, line: str) -> dict[str, str] | None:
    """The texts by path of elements that each begin with `line`, where their last line may begin with it, too; None for other content."""
    before, *elements = content.split(line)
    if before:
        return None
    found: dict[str, str] = {}
    last = ""
    for element in reversed(elements):  # the first one of a path counts
        if element.startswith("/"):
            if last:
                return None
            last = line + element
        elif _LETTER.match(element):  # no declaration, which is one only at the beginning
            found.update(_texts_of(f"<{element}{last}"))
            last = ""
        else:
            return None
    return None if last else found


def _texts_of(element: str) -> Mapping[str, str]:
    """The texts of an element, and of those in it, by path. Raises ValueError."""
    return _kept(element) if len(element) <= _LONGEST_KEPT else _parsed(element)


_SIMPLE = lazy_re.compile(r"<([a-z][a-z0-9_]*)>([^<&\]]*)</\1>")
"""An element with nothing in it but text in which no character stands for another one."""


def _parsed(element: str) -> Mapping[str, str]:
    if (simple := _SIMPLE.fullmatch(element)) and simple[2].isascii() and simple[2].isprintable():
        return {simple[1]: simple[2]}
    root = host_text.xml(element)
    if len(root.tag) > _LONGEST_PATH:
        raise ValueError(f"XML with a path of more than {_LONGEST_PATH} characters")
    found = {root.tag: root.text or ""}
    _note_texts(root, f"{root.tag}/", found)
    return found


@lru_cache(maxsize=_MOST_KEPT)
def _kept(element: str) -> Mapping[str, str]:
    return _parsed(element)
