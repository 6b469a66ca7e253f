"""Reads the text of `lspci`, also with -v, -vv and -nn: the links and drivers of NVIDIA's GPUs, and the bridges above
them. What it says of other devices is left out."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

from rigwright.checks import Finding, of_symptom
from rigwright.core import lazy_re
from rigwright.core.numbers import count

MOST_DEVICES = 1024
_HEAD = lazy_re.compile(r"((?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) ([A-Z0-9][^:]{2,60}): (.{1,300})")
_DISPLAY = re.compile(r"(?:VGA compatible|3D|Display) controller\b")
_BUSES = lazy_re.compile(r"Bus: primary=[0-9a-f]{2}, secondary=([0-9a-f]{2}), subordinate=([0-9a-f]{2})")
_LINK = lazy_re.compile(r"Lnk(Cap|Sta):.{0,80}?\bWidth x(\d{1,2})\b")


class _Device(Struct):
    """A device of the list; `lanes` by "Cap" (of the card) and "Sta" (now)."""

    line: int
    bus_id: str
    is_gpu: bool
    is_lost: bool
    lanes: dict[str, int]
    buses: range = range(0)
    redirects: bool = False
    driver: str = ""
    modules: str = ""

    @property
    def bus(self) -> int:
        """The number of its bus."""
        return int(self.bus_id[-7:-5], 16)


class LspciReader:
    """Reads the lines of lspci from all lines of a text. `is_searched`: whether errors in the line that was read last
    are those of a GPU."""

    def __init__(self) -> None:
        self.is_searched = True
        self._devices: list[_Device] = []
        self._is_open = False

    def feed(self, number: int, line: str) -> bool:
        """Whether the line is part of such a text."""
        head = _HEAD.match(line)
        if head and len(self._devices) < MOST_DEVICES:
            is_gpu = bool(_DISPLAY.match(head[2])) and ("NVIDIA" in head[3] or "[10de:" in head[3])
            self._devices.append(_Device(number, head[1], is_gpu, "(rev ff)" in head[3], {}))
            self._is_open, self.is_searched = True, is_gpu
            return True
        self._is_open = self._is_open and line[:1] in " \t"
        if self._is_open:
            self._property(self._devices[-1], line)
        return self._is_open

    def _property(self, device: _Device, line: str) -> None:
        if link := _LINK.search(line):
            device.lanes.setdefault(link[1], int(link[2]))
        elif buses := _BUSES.search(line):
            device.buses = range(int(buses[1], 16), int(buses[2], 16) + 1)
        elif "ACSCtl:" in line:
            device.redirects = "ReqRedir+" in line
        name, _, value = line.strip().partition(": ")
        if name == "Kernel driver in use":
            device.driver = value.strip()
        elif name == "Kernel modules":
            device.modules = value.strip()

    def parts(self) -> Iterator[str]:
        """What was read, in words."""
        if self._devices:
            yield f"lspci of {count(sum(device.is_gpu for device in self._devices), 'NVIDIA GPU')}"

    def findings(self) -> Iterator[tuple[int, Finding]]:
        """The problems of GPUs and of the bridges above them, each with its line."""
        gpus = [device for device in self._devices if device.is_gpu]
        for gpu in gpus:
            now, most = gpu.lanes.get("Sta", 0), gpu.lanes.get("Cap", 0)
            if 0 < now < most:
                seen = f"x{now} of x{most}"
                yield gpu.line, of_symptom("pcie.narrow", gpu.bus_id, seen, f"x{most}", "host")
            if re.search(r"\bnvidia\b", gpu.modules) and not gpu.driver and not gpu.is_lost:
                yield (
                    gpu.line,
                    of_symptom("module.not_loaded", gpu.bus_id, "no driver is bound to it", "nvidia", "host"),
                )
        for bridge in self._devices:
            below = [gpu.bus_id for gpu in gpus if gpu.bus in bridge.buses]
            if bridge.redirects and below:
                seen = f"redirects transfers (ACSCtl: ReqRedir+), above {', '.join(below)}"
                yield bridge.line, of_symptom("p2p.acs", f"bridge {bridge.bus_id}", seen, "ReqRedir-", "host")
        redirecting = [bridge.bus_id for bridge in self._devices if bridge.redirects and bridge.buses]
        if redirecting and not gpus:
            seen = f"{count(len(redirecting), 'bridge')} with ACS; whether a GPU is below is unknown: the text has none"
            yield self._devices[0].line, Finding("PCIe", "info", seen)
