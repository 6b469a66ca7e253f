"""How nvidia-smi is asked, and what its answers have in common: failures, GPUs that are lost, and the words for a
value."""

from __future__ import annotations

import re
from functools import lru_cache

from rigwright.core import host_text, lazy_re
from rigwright.core.command import Command, Result, script
from rigwright.core.schema import BusId, bus_id
from rigwright.facts import Unavailable


class NoGpus(Unavailable):
    """nvidia-smi runs with a loaded driver, and lists no GPU."""


def answered(result: Result) -> str:
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


_NONE = ("", "N/A", "None", "Not Found", "Function Not Found", "Requested functionality has been deprecated")
LOST_WORDS = ("GPU is lost", "GPU requires reset")
_ERRORS = ("Unknown Error", "ERR!", "Insufficient Permissions", "Uninitialized", "GPU access blocked", *LOST_WORDS)
_BRACKETS = lazy_re.compile(r"[\[\]]")


@lru_cache(maxsize=4096)
def value(text: str) -> tuple[str | None, str]:
    """The value in the text of a field, None without one; and the error that stands in its place."""
    word = text.strip()
    word = _BRACKETS.sub("", word) if "[" in word or "]" in word else word
    if word in _NONE or word.startswith("Not Supported"):
        return None, ""
    problem = word.removesuffix(".")
    return (None, problem) if problem in _ERRORS else (word, "")


def number(word: str) -> float:
    """A number of nvidia-smi's output without its unit. Raises ValueError for other text, also for nan and inf."""
    if not re.fullmatch(r"-?[0-9]{1,12}(\.[0-9]{1,12})?", word):
        raise ValueError(f"{word[:40]!r} is no number")
    return float(word)


LOST = "Unable to determine the device handle"
"""How nvidia-smi's output begins when a GPU is lost. It then reports no other GPU."""
_LOST = lazy_re.compile(rf"{LOST} for GPU ?\d{{0,4}}:? ?([0-9A-Fa-f:.]{{7,16}}): (.+)")


def lost(text: str) -> dict[BusId, str]:
    """The messages of nvidia-smi about GPUs that it cannot reach, by bus id."""
    return {bus_id(match[1]): match[2].split(".")[0].strip() or "lost" for match in _LOST.finditer(text)}


def is_lost(line: str) -> bool:
    """Whether a line says that nvidia-smi cannot reach a GPU."""
    return _LOST.match(line.strip()) is not None


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
"""A shell function that runs nvidia-smi. If a GPU is lost, nvidia-smi reports no GPU at all; then it queries each
alone."""


def query(words: str) -> Command:
    """A fact from a query of nvidia-smi that works also if a GPU is lost; `of_those_left` returns its rows."""
    return script(ASK + 'ask "$1" --format=csv,noheader,nounits', words, timeout_s=60, reads=True)


def of_those_left(result: Result) -> list[str]:
    """The rows of all GPUs that are not lost. Raises Unavailable if there are none."""
    rows = [line for line in result.lines if line.strip()]
    left = [line for line in rows if not is_lost(line)]
    return left if 0 < len(left) < len(rows) else host_text.lines(answered(result))


_XML = """
cards() { { nvidia-smi -q -x "$@" 2>&1; echo "code $?"; } | grep -v -e '<supported_graphics_clock>' -e '^[[:space:]]*$'; }
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
of it. Facts read it with smi_xml.py."""
