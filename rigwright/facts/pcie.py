"""The PCIe links of the GPUs and of every port above them, from sysfs, with or without a driver."""

from __future__ import annotations

import base64
import re
import struct
import zlib

from msgspec import Struct

from rigwright.core import host_text, lazy_re
from rigwright.core.command import Result, script
from rigwright.facts import Fact, Unavailable
from rigwright.facts.gpu.nvidia_smi import XML, readings

GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
"""The generation of a link by its GT/s."""


class Link(Struct, frozen=True):
    """Generation and width of one end of a PCIe link, either the maximum or the current values."""

    generation: int
    width: int

    def __str__(self) -> str:
        return f"Gen{self.generation} x{self.width}"


class Function(Struct, frozen=True):
    """A GPU, or a port above one. `above`: the port that it is connected to, "" for a root port.

    `now`, `most`: the link; None without a link or an answer. `answers`: False for a GPU that fell off the bus.
    `redirects`: ACS redirects peer requests to the root complex; None without ACS control. Errors: AER's counts since
    boot; None if the kernel does not count.
    """

    address: str
    above: str
    is_gpu: bool
    ids: str
    now: Link | None
    most: Link | None
    answers: bool
    bar1_bytes: int
    corrected_errors: int | None
    uncorrected_errors: int | None
    redirects: bool | None


_SCRIPT = """
said() { word=-; [ -r "$1" ] && read -r word <"$1" 2>/dev/null; [ -n "$word" ] || word=-; }
count() {
  total=
  for file; do
    [ -r "$file" ] || continue
    while read -r name number; do
      case $name in TOTAL_ERR*) number=${number%%[!0-9]*}; total=$((${total:-0} + ${number:-0}));; esac
    done 2>/dev/null <"$file"
  done
  errors="$errors|${total:--}"
}
bar1() {
  bar=; [ -r "$1" ] || return 0
  { read -r _ _ flags; read -r bar; case $flags in 0x??????????[13579bdf]?????) read -r bar;; esac; } <"$1"
}
row() {
  here=$1; above=${here%/*}; [ -e "$above/vendor" ] || above=-
  line="${here##*/}|${above##*/}"
  for name in class vendor device current_link_speed current_link_width max_link_speed max_link_width; do
    said "$here/$name"; line="$line|$word"
  done
  bar1 "$here/resource"
  errors=; count "$here/aer_dev_correctable"; count "$here/aer_dev_nonfatal" "$here/aer_dev_fatal"
  case $line in *"|0x06"*) ports="$ports $here/config";; esac
  configs="$configs $here/config"
  echo "$line|${bar:--}$errors"
}
seen=' ' configs= ports=
for device in /sys/bus/pci/devices/*; do
  said "$device/vendor"; [ "$word" = 0x10de ] || continue
  said "$device/class"; case $word in 0x03*) ;; *) continue;; esac
  cd -P "$device" 2>/dev/null || continue
  at=$PWD
  while [ -e "$at/vendor" ]; do
    case $seen in *" $at "*) break;; esac
    seen="$seen$at "; row "$at"; at=${at%/*}
  done
done
[ "$configs" ] || exit 0
echo --; head -qc 2 -- $configs | od -An -v -tx1 -w2
echo --; [ ! "$ports" ] || tail -vc +257 -- $ports | gzip -c1 | base64 -w0
"""
"""Prints three parts: a row for each function; its first two bytes of configuration; each port's bytes after the first
256. BAR1 is the row of `resource` after the registers, which take two rows if they are 64 bits wide (on Hopper)."""


def _functions(result: Result) -> dict[str, Function]:
    parts = [part.split("\n") for part in ("\n" + result.text).split("\n--")]
    rows, heads, blob = [[line for line in part if line.strip()] for part in (*parts, [], [])][:3]
    if len(heads) != len(rows):
        raise ValueError(f"{len(heads)} configuration spaces of {len(rows)} functions")
    spaces = _spaces("".join(blob))
    functions = {}
    for line, head in zip(rows, heads, strict=True):
        words = ["" if word == "-" else word for word in line.split("|")]
        if len(words) != 12:
            raise ValueError(f"{len(words)} columns, not 12")
        address, above, clazz, vendor, device, *links, bar, corrected, uncorrected = words
        gone = head.split() == ["ff", "ff"] or links[1] in ("63", "255")
        now, most = (None, None) if gone else (_link(*links[:2]), _link(*links[2:]))
        region = [host_text.integer(word, 16) for word in bar.split()]
        bar1_bytes = region[1] - region[0] + 1 if len(region) == 3 and region[1] else 0
        counts = (host_text.integer(count) if count else None for count in (corrected, uncorrected))
        corrected_errors, uncorrected_errors = counts
        functions[address] = Function(
            address, above, clazz.startswith("0x03"), f"{vendor[2:]}:{device[2:]}", now, most, not gone, bar1_bytes,
            corrected_errors, uncorrected_errors, _redirects(spaces.get(address, b"")),
        )  # fmt: skip
    return functions


_SPACE = lazy_re.compile(rb"\n?==> /sys/[\w./:-]{1,500}/([0-9a-f:.]{7,16})/config <==\n")
"""What `tail -v` prints before the bytes of each file."""


def _spaces(text: str) -> dict[str, bytes]:
    """The extended configuration space (byte 256 on) of each port by its address; empty without the right to read."""
    if not text:
        return {}
    try:
        data = zlib.decompressobj(31).decompress(base64.b64decode(text), 1 << 20)
    except zlib.error as error:
        raise ValueError(f"configuration spaces that came damaged: {error}") from None
    first, *others = _SPACE.split(data)
    if first:
        raise ValueError("a configuration space without its port")
    return {address.decode(): space[:4096] for address, space in zip(others[::2], others[1::2], strict=True)}


def _link(speed: str, width: str) -> Link | None:
    gt_s = re.match(r"([\d.]+) GT/s", speed)
    if not gt_s or width in ("", "0"):
        return None
    if float(gt_s[1]) not in GENERATIONS:
        raise ValueError(f"a link of {speed}")
    return Link(GENERATIONS[float(gt_s[1])], host_text.integer(width))


_ACS = 0x000D
"""The id of the capability ACS; its control word is at offset 6 (PCIe base specification, 7.7.11)."""
_SOURCE_VALID_AND_REDIRECT = 0b101


def _redirects(space: bytes) -> bool | None:
    """Whether ACS redirects peer requests, from the extended configuration space; None without ACS."""
    at = 0
    for _ in range(64):  # a list of capabilities may have a cycle
        if at < 0 or at + 8 > len(space):
            return None
        header, control = struct.unpack_from("<I2xH", space, at)
        if header & 0xFFFF == _ACS:
            return bool(control & _SOURCE_VALID_AND_REDIRECT == _SOURCE_VALID_AND_REDIRECT)
        at = (header >> 20) - 256
    return None


functions = Fact("pcie.functions", script(_SCRIPT, timeout_s=60, reads=True), _functions)
"""Every NVIDIA GPU and every port above one, by address; {} without a GPU."""


def _states(result: Result) -> dict[str, int]:
    try:
        texts = {reading.bus_id: reading.text("performance_state") or "" for reading in readings(result)}
    except Unavailable:
        return {}
    return {at: host_text.integer(text[1:]) for at, text in texts.items() if re.fullmatch(r"P\d+", text)}


states = Fact("pcie.states", XML, _states)
"""The performance state of each GPU by bus id: 0 under load, 8 or more at idle, with a slower link; or {}."""
