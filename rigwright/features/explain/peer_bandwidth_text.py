"""Reads what NVIDIA's sample p2pBandwidthLatencyTest prints: which GPUs reach each other, how fast, and how late."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rigwright.checks import Finding, of_symptom
from rigwright.core import lazy_re
from rigwright.core.numbers import count

MOST_GPUS = 64
SLOWER = 0.7
"""Below this share of the bandwidth without peer access the transfer with peer access is slow (assumed)."""
LATE_US = 1000.0
"""From this latency on transfers between peers do not work properly (assumed: good ones take 1 to 20 us)."""
_ACCESS = lazy_re.compile(r"Device=(\d{1,2}) (CAN|CANNOT) Access Peer Device=(\d{1,2})")
_TITLE = lazy_re.compile(
    r"\s*(P2P Connectivity|(?:Unidirectional |Bidirectional )?P2P=(?:Disabled|Enabled)[\w() -]{1,40}) Matrix"
)
_ROW = lazy_re.compile(r"\s*(?:(?:D\\D|GPU|CPU)\b|\d{1,2}(?=\s))(?:\s+[\d.]{1,12})+\s*$")
_OTHER = lazy_re.compile(
    r"\[P2P \(Peer-to-Peer\) GPU Bandwidth|Device: \d{1,2}, |\*\*\*NOTE: In case a device|So you can see lesser Ban"
    r"|NOTE: The CUDA Samples are not meant"
)


class PeerBandwidthReader:
    """Reads such a text from all lines of a text."""

    is_searched = True

    def __init__(self) -> None:
        self._line = 0
        self._without_access: dict[tuple[int, int], None] = {}
        self._gpus = 0
        self._title = ""
        self._matrices: dict[str, list[list[float]]] = {}

    def feed(self, number: int, line: str) -> bool:
        """Whether the line is part of such a text."""
        if access := _ACCESS.match(line):
            one, other = int(access[1]), int(access[3])
            self._gpus = max(self._gpus, one + 1, other + 1)
            if access[2] == "CANNOT":
                self._without_access[min(one, other), max(one, other)] = None
        elif title := _TITLE.match(line):
            self._title = re.sub(r"\s+|\(P2P Writes\)|Bandwidth|Latency", "", title[1])
            self._title += " us" if "Latency" in title[1] else ""
            self._matrices[self._title] = []
        elif self._title and _ROW.match(line):
            words = line.split()
            if words[0] == "CPU":  # the same pairs as the processor sees them
                self._title, self._matrices["CPU"] = "CPU", []
            elif words[0].isdecimal() and len(self._matrices[self._title]) < MOST_GPUS:
                self._matrices[self._title].append([float(word) for word in words[1:] if word.count(".") < 2])
        elif not _OTHER.match(line):
            self._title = ""
            return False
        self._line = self._line or number
        return True

    def parts(self) -> Iterator[str]:
        """What was read, in words."""
        if self._line:
            yield "p2pBandwidthLatencyTest" + (f" of {count(self._gpus, 'GPU')}" if self._gpus else "")

    def findings(self) -> Iterator[tuple[int, Finding]]:
        """The pairs of GPUs without access to each other, and those whose transfers are slow or late."""
        if self._without_access:
            pairs = [f"{one}-{other}" for one, other in self._without_access]
            yield self._line, of_symptom("p2p.not_offered", f"GPU {', '.join(pairs[:8])}", "no peer access", "", "host")
        cause = "Peer access is on, and transfers do not go directly from GPU to GPU: an IOMMU that translates, or ACS."
        fix = "invoke explain iommu; invoke explain p2p; invoke verify --tags p2p; NCCL_P2P_DISABLE=1 as a test"
        for direction in ("Unidirectional", "Bidirectional"):
            without, peers = (self._cells(f"{direction}P2P={word}") for word in ("Disabled", "Enabled"))
            for pair, gb_s in peers.items():
                if pair not in self._without_access and gb_s < SLOWER * without.get(pair, 0):
                    seen = f"{gb_s:g} GB/s with peer access, {without[pair]:g} without ({direction.lower()})"
                    yield self._line, Finding(f"GPU {pair[0]}-{pair[1]}", "warn", seen, "", cause, fix)
            if peers and not any(gb_s < SLOWER * without.get(pair, 0) for pair, gb_s in peers.items()):
                low, high = min(peers.values()), max(peers.values())
                seen = (
                    f"{low:g} to {high:g} GB/s between the GPUs ({direction.lower()}, with peer access where there is)"
                )
                yield self._line, Finding("p2pBandwidthLatencyTest", "info", seen)
        for pair, late_us in self._cells("P2P=Enabled us").items():
            if late_us >= LATE_US:
                seen = f"a latency of {late_us:g} us with peer access"
                yield (
                    self._line,
                    Finding(
                        f"GPU {pair[0]}-{pair[1]}", "fail", seen, "below 20 us", f"It takes milliseconds. {cause}", fix
                    ),
                )

    def _cells(self, title: str) -> dict[tuple[int, int], float]:
        """By pair of GPUs the lower of the two values of bandwidth, or the higher latency."""
        cells: dict[tuple[int, int], float] = {}
        worst = max if title.endswith("us") else min
        for one, row in enumerate(self._matrices.get(title, [])):
            for other, value in enumerate(row):
                if one != other:
                    pair = (min(one, other), max(one, other))
                    cells[pair] = worst(cells.get(pair, value), value)
        return cells
