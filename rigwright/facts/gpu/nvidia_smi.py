"""How nvidia-smi is run, and how its answers are read: failures, lost GPUs, values, and the fields of its XML."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from rigwright.core import host_text, lazy_re
from rigwright.core.command import Command, Result, script
from rigwright.core.schema import BusId, bus_id
from rigwright.facts import Unavailable

if TYPE_CHECKING:
    from xml.etree import ElementTree

ROOT = "nvidia_smi_log"
MOST_GPUS = 256
"""The most GPUs and documents of an answer."""
_LONGEST_PATH = 200
"""The most characters of the path of a field; the longest of a V100 has 68."""
LOST = "Unable to determine the device handle"
"""The beginning of nvidia-smi's output if a GPU is lost. It then reports no other GPU."""
_LOST = lazy_re.compile(rf"{LOST} for GPU ?\d{{0,4}}:? ?([0-9A-Fa-f:.]{{7,16}}): (.+)")
_NONE = ("", "N/A", "None", "Not Found", "Function Not Found", "Requested functionality has been deprecated")
_LOST_WORDS = ("GPU is lost", "GPU requires reset")
_ERRORS = ("Unknown Error", "ERR!", "Insufficient Permissions", "Uninitialized", "GPU access blocked", *_LOST_WORDS)
_STATES = {"Yes": True, "Enabled": True, "Active": True, "No": False, "Disabled": False, "Not Active": False}


class NoGpus(Unavailable):
    """nvidia-smi runs with a loaded driver, and lists no GPU."""


ASK = f"""
ask() {{
  out=$(nvidia-smi "$@" 2>&1); code=$?
  case $out in *"{LOST}"*) ;; *) printf '%s\\n' "$out"; return $code;; esac
  for device in /sys/bus/pci/drivers/nvidia/????:*; do
    one=$(nvidia-smi "$@" -i "${{device##*/}}" 2>&1)
    case $? in 0|14) ;; *) one="{LOST} for GPU ${{device##*/}}: ${{one##*: }}";; esac
    [ -z "$one" ] || printf '%s\\n' "$one"
  done
  return $code
}}
"""
"""Shell function: `ask OPTION...` runs nvidia-smi, and for each GPU alone if a GPU is lost."""

_XML = """
cards() { { nvidia-smi -q -x "$@" 2>&1; echo "code $?"; } |
  grep -v -e '<supported_graphics_clock>' -e '^[[:space:]]*$'; }
out=$(cards); code=${out##*code }
case $out in *"@LOST@"*) ;; *) printf '%s\\n' "${out%code *}"; exit $code;; esac
for device in /sys/bus/pci/drivers/nvidia/????:*; do
  one=$(cards -i "${device##*/}"); status=${one##*code }; one=${one%code *}
  case $status in 0|14) ;; *) one="@LOST@ for GPU ${device##*/}: ${one##*: }";; esac
  [ -z "$one" ] || printf '%s\\n' "$one"
done
exit $code
""".replace("@LOST@", LOST)
XML = script(_XML, timeout_s=60, reads=True)
"""Prints `nvidia-smi -q -x`, for each GPU alone if one is lost, without the lists of supported clocks, which are 90 %
of it. Several facts read this answer with `readings`."""


def query(words: str) -> Command:
    """The command for a query in CSV; `rows` reads its answer."""
    return script(ASK + 'ask "$1" --format=csv,noheader,nounits', words, timeout_s=60, reads=True)


def rows(result: Result) -> list[str]:
    """The rows of all GPUs that are not lost. Raises Unavailable if all are lost or nvidia-smi failed."""
    lines = [line for line in result.lines if line.strip()]
    of_others = [line for line in lines if not is_lost(line)]
    return of_others if 0 < len(of_others) < len(lines) else host_text.lines(successful_output(result))


def successful_output(result: Result) -> str:
    """nvidia-smi's stdout, also with status 14 (a corrupted infoROM). Raises Unavailable with its message if it failed,
    NoGpus if it lists none."""
    if result.code == 127 or "not found" in result.error_text or "No such file" in result.error_text:
        raise Unavailable("nvidia-smi is not installed")
    text = "\n".join(line for line in host_text.lines(result.text.strip()) if not line.startswith("WARNING:"))
    if result.code not in (0, 14) or text.startswith("No devices"):
        lines = host_text.lines(text or result.error_text)
        kind = NoGpus if text.startswith("No devices") else Unavailable
        raise kind(f"nvidia-smi says: {lines[0] if lines else f'nothing (exit {result.code})'}")
    return text


def is_lost(line: str) -> bool:
    """Whether a line says that nvidia-smi cannot reach a GPU."""
    return _LOST.match(line.strip()) is not None


def value(text: str) -> tuple[str | None, str]:
    """The value in the text of a field, None without one; and the error that the field has instead."""
    word = text.strip().replace("[", "").replace("]", "")
    if word in _NONE or word.startswith("Not Supported"):
        return None, ""
    problem = word.removesuffix(".")
    return (None, problem) if problem in _ERRORS else (word, "")


def number(word: str) -> float:
    """A number of nvidia-smi's output without its unit. Raises ValueError for other text, also for nan and inf."""
    if not re.fullmatch(r"-?[0-9]{1,12}(\.[0-9]{1,12})?", word):
        raise ValueError(f"{word[:40]!r} is no number")
    return float(word)


def power(*names: str) -> tuple[str, ...]:
    """The paths of power readings; drivers before 530 name the group differently."""
    return tuple(f"{group}/{name}" for group in ("gpu_power_readings", "power_readings") for name in names)


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
            word, problem = value(self.texts.get(path, ""))
            if problem:
                self.unread.append(f"{path.rpartition('/')[2]}: {problem}")
                self.lost = self.lost or (problem if problem in _LOST_WORDS else "")
            if word is not None:
                return word
        return None

    def number(self, *paths: str) -> float | None:
        """A number without its unit. Raises ValueError for other text, also for nan and inf."""
        word = self.text(*paths)
        return None if word is None else number(word.split()[0].removesuffix("x"))

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


def lost(text: str) -> list[Reading]:
    """The GPUs that nvidia-smi cannot reach, from its messages; the last message about a GPU counts."""
    problems = {bus_id(match[1]): match[2].split(".")[0].strip() or "lost" for match in _LOST.finditer(text)}
    return [Reading(at, {}, problem) for at, problem in problems.items()]


def readings(result: Result) -> list[Reading]:
    """All GPUs in the answer to XML, also lost ones, in the order of their indices.

    Raises Unavailable if nvidia-smi failed or lists no GPU, ValueError for XML that is not whole or exceeds a limit.
    """
    text = result.text
    if "<!ENTITY" in text:
        raise ValueError("an entity in its XML")
    *documents, after = text.split(f"</{ROOT}>")
    if len(documents) > MOST_GPUS:
        raise ValueError(f"more than {MOST_GPUS} XML documents")
    gpus: list[Reading] = []
    for document in documents:
        before, begin, inside = document.partition(f"<{ROOT}>")
        gpus += lost(before)
        if begin:
            gpus += [Reading(bus_id(at), texts) for at, texts in _gpus(f"<{ROOT}>{inside}</{ROOT}>")]
    gpus += lost(after)
    if sum(bool(reading.texts) for reading in gpus) != text.count("<gpu id=") or f"<{ROOT}>" in after:
        raise ValueError("XML that ends in the middle")
    if not gpus and f"<{ROOT}>" not in text:
        lines = host_text.lines(successful_output(result).strip())
        raise Unavailable(f"nvidia-smi says: {lines[0] if lines else 'nothing'}")
    if len(gpus) > MOST_GPUS:
        raise ValueError(f"more than {MOST_GPUS} GPUs")
    return gpus


@lru_cache(maxsize=16)  # several facts read one answer
def _gpus(document: str) -> list[tuple[str, dict[str, str]]]:
    """The id and the texts by path of each <gpu> of a document. Raises ValueError as `host_text.xml`."""
    if document.count("<gpu ") > MOST_GPUS:
        raise ValueError(f"more than {MOST_GPUS} GPUs")
    gpus = []
    for gpu in host_text.xml(document).findall("gpu"):
        texts: dict[str, str] = {}
        _add_texts(gpu, "", texts)
        gpus.append((gpu.attrib["id"], texts))
    return gpus


def _add_texts(element: ElementTree.Element, above: str, texts: dict[str, str]) -> None:
    """Adds the text of each inner element by its path; the first text of a path counts."""
    for inner in element:
        path = above + inner.tag
        if len(path) > _LONGEST_PATH:
            raise ValueError(f"XML with a path of more than {_LONGEST_PATH} characters")
        texts.setdefault(path, inner.text or "")
        _add_texts(inner, f"{path}/", texts)
