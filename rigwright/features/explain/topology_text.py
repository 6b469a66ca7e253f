"""Reads the matrices of `nvidia-smi topo -m` and `nvidia-smi topo -p2p`: how each pair of GPUs is connected."""

from __future__ import annotations

from collections.abc import Iterator

from rigwright.checks import Finding
from rigwright.core import lazy_re
from rigwright.core.numbers import count

MOST_GPUS = 64
_HEAD = lazy_re.compile(r"\s*GPU0(?:\s+(?:(?:GPU|NIC)\d{1,3}|mlx\S{1,20}|CPU|NUMA|GPU|Affinity|ID))*\s*$")
_ROW = lazy_re.compile(r"\s*((?:GPU|NIC|mlx\w*_?)\d{1,3})\s+(\S.{0,2000})")
_LEGEND = lazy_re.compile(r"\s*(?:(?:NIC )?Legend:|(?:X|SYS|NODE|PHB|PXB|PIX|NV#|OK|\w{1,3}) {1,6}= |NIC\d{1,3}: )")
_WORDS = {
    "SYS": "through the link between the processors",
    "NODE": "through several host bridges of one processor",
    "PHB": "through the host bridge of a processor",
    "PXB": "through several PCIe switches",
    "PIX": "through one PCIe switch",
    "OK": "permitted",
    "NS": "not supported by the GPU",
    "CNS": "not supported by the chipset",
    "GNS": "not supported by the GPU",
    "TNS": "not supported by the topology",
    "DR": "disabled by a key of the registry",
    "U": "unknown",
}


class TopologyReader:
    """Reads such matrices from all lines of a text."""

    is_searched = True

    def __init__(self) -> None:
        self._columns: list[str] = []
        self._line = 0
        self._is_open = False
        self._pairs: dict[tuple[str, str], str] = {}

    def feed(self, number: int, line: str) -> bool:
        """Whether the line is part of such a text."""
        row = _ROW.match(line) if self._columns else None
        if _HEAD.match(line):
            self._columns = [word for word in line.split() if word.startswith("GPU") and word[3:].isdecimal()]
            self._line, self._is_open = number, True
            return True
        if self._is_open and row:
            words = row[2].split()
            for other, word in zip(self._columns, words, strict=False):
                if row[1].startswith("GPU") and row[1] < other and len(self._pairs) < MOST_GPUS**2 and word != "X":
                    self._pairs[row[1], other] = word
            return True
        self._is_open = self._is_open and bool(_LEGEND.match(line))
        return self._is_open

    def parts(self) -> Iterator[str]:
        """What was read, in words."""
        if self._columns:
            yield f"nvidia-smi topo of {count(len(self._columns), 'GPU')}"

    def findings(self) -> Iterator[tuple[int, Finding]]:
        """The pairs of GPUs by their connection, as information."""
        for (one, other), word in self._pairs.items():
            links = f"over {count(int(word[2:]), 'NVLink')}" if word[:2] == "NV" and word[2:].isdecimal() else ""
            seen = f"{word}, {links or _WORDS.get(word, 'a word that is not known here')}"
            yield self._line, Finding(f"{one}-{other}", "info", seen)
