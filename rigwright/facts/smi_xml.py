"""The elements <gpu> of `nvidia-smi -q -x`, as texts by path; and what `--query-gpu` prints for a GPU, told from the same elements (`field`).

nvidia-smi writes each element of a GPU on lines of its own, indented with tabs. Most of them are the same for all GPUs and hosts, so each text
of an element is parsed once. A document in another form, and one with an element that is not well-formed, is parsed as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from rigwright.core import host_text, lazy_re

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


UUID = lazy_re.compile(r"(GPU-[0-9A-Fa-f-]{1,60})")
BUS_ID = lazy_re.compile(r"([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])")
_MODE = lazy_re.compile(r"(Enabled|Disabled)")
_WATTS = lazy_re.compile(r"(-?[0-9]{1,12}\.[0-9]{1,12}) W")
_ERROR_ENDS = (
    "Argument|Error|Found|Initialized|Issue|Loaded|Memory|Permissions|Power|Size|Supported|Timeout|Uninitialized|client|infoROM|lost|mismatch"
    "|performed|required|reset|restart"
)
"""The last words of NVML's error texts, which nvidia-smi writes in place of a name; no product's name ends so."""
_MHZ = lazy_re.compile(r"([0-9]{1,12}) MHz")
_CLOCKS = "applications_clocks"
_POWER = ("gpu_power_readings", "power_readings")
_FIELDS: Mapping[str, tuple[Any, ...]] = {
    "uuid": (UUID, "uuid"),
    "pci.bus_id": (BUS_ID, "pci/pci_bus_id"),
    "name": (
        lazy_re.compile(rf"(?!(?:.* )?(?:{_ERROR_ENDS})$)([A-Za-z0-9][A-Za-z0-9 ._:/()+-]{{1,100}})"),
        "product_name",
    ),
    "persistence_mode": (_MODE, "persistence_mode"),
    "pstate": (lazy_re.compile(r"(P[0-9]{1,2})"), "performance_state"),
    "power.limit": (_WATTS, "gpu_power_readings/requested_power_limit", "power_readings/power_limit"),
    "power.min_limit": (_WATTS, *(f"{group}/min_power_limit" for group in _POWER)),
    "power.max_limit": (_WATTS, *(f"{group}/max_power_limit" for group in _POWER)),
    "power.default_limit": (_WATTS, *(f"{group}/default_power_limit" for group in _POWER)),
    "clocks.applications.memory": (_MHZ, f"{_CLOCKS}/mem_clock"),
    "clocks.applications.graphics": (_MHZ, f"{_CLOCKS}/graphics_clock"),
    "clocks.default_applications.memory": (_MHZ, f"default_{_CLOCKS}/mem_clock"),
    "clocks.default_applications.graphics": (_MHZ, f"default_{_CLOCKS}/graphics_clock"),
    "ecc.mode.current": (_MODE, "ecc_mode/current_ecc"),
    "ecc.mode.pending": (_MODE, "ecc_mode/pending_ecc"),
    "mig.mode.current": (_MODE, "mig_mode/current_mig"),
    "mig.mode.pending": (_MODE, "mig_mode/pending_mig"),
}
"""For a field of --query-gpu the form of its value in the XML, and the paths of its elements: the first one that is there counts. Drivers
before 530 have the power in power_readings. `current_power_limit` is another value: the limit in force, which the machine may lower
below the one that was set."""
_NO_VALUE = ("N/A", "Requested functionality has been deprecated")


def field(values: Mapping[str, str], name: str) -> str | None:
    """What `--query-gpu=NAME --format=csv,noheader,nounits` prints for the GPU whose element has these texts; None where that is not
    certain: for another field, and for an element that is not there or has an error in place of its value."""
    for path in _FIELDS.get(name, ("",))[1:]:
        text = values.get(path)
        if text is not None:
            return _value(name, text) if len(text) <= _LONGEST_VALUE else None
    return None


_LONGEST_VALUE = 110
"""Characters of a value that is read; the names of products have 60 at most."""


@lru_cache(maxsize=_MOST_KEPT)
def _value(name: str, text: str) -> str | None:
    word = text.strip()
    if word in _NO_VALUE:
        return f"[{word}]"
    match = _FIELDS[name][0].fullmatch(word)
    return match[1] if match else None


def power_is_certain(values: Mapping[str, str]) -> bool:
    """Whether the power limits of a GPU are in order, or it has none of them. From 535 on nvidia-smi reads them for the XML by a call whose failure it
    does not notice: then it writes what was in its memory."""
    texts = [field(values, f"power.{name}") for name in ("min_limit", "limit", "default_limit", "max_limit")]
    if set(texts) == {"[N/A]"}:
        return True
    try:
        least, now, default, most = (float(text or "") for text in texts)
    except ValueError:
        return False
    return 0 < least <= min(now, default) and max(now, default) <= most < _MOST_WATTS


_MOST_WATTS = 10_000


def gpus(document: str) -> Sequence[tuple[str, Mapping[str, str]]]:
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
