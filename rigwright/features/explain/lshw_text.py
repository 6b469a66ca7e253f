"""Reads the text of `lshw`: its display adapters. The devices of other classes are left out."""

from __future__ import annotations

from collections.abc import Iterator

from rigwright.checks import Finding, of_symptom
from rigwright.core import lazy_re
from rigwright.core.numbers import count

MOST_DISPLAYS = 64
_HEAD = lazy_re.compile(r"\s*\*-([a-z][\w-]{0,40})(?::\d{1,3})?(?: (UNCLAIMED|DISABLED))?\s*$")
_VALUE = lazy_re.compile(r"\s+([a-z][a-z ]{2,30}): (\S.{0,300})")


class LshwReader:
    """Reads the lines of lshw from all lines of a text. `is_searched`: whether the last line is a display adapter's."""

    def __init__(self) -> None:
        self.is_searched = True
        self._displays: list[tuple[int, dict[str, str]]] = []
        self._is_open = False

    def feed(self, number: int, line: str) -> bool:
        """Whether the line is part of such a text."""
        if head := _HEAD.match(line):
            self._is_open, self.is_searched = True, head[1] == "display" and len(self._displays) < MOST_DISPLAYS
            if self.is_searched:
                self._displays.append((number, {"claimed": "" if head[2] else "yes"}))
            return True
        value = _VALUE.match(line) if self._is_open else None
        self._is_open = bool(value)
        if value and self.is_searched:
            self._displays[-1][1].setdefault(value[1], value[2])
        return self._is_open

    def parts(self) -> Iterator[str]:
        """What was read, in words."""
        if self._displays:
            yield f"lshw of {count(len(self._displays), 'display adapter')}"

    def findings(self) -> Iterator[tuple[int, Finding]]:
        """NVIDIA's GPUs without NVIDIA's driver, each with its line."""
        for line, values in self._displays:
            if "NVIDIA" not in values.get("vendor", ""):
                continue
            name = f"{values.get('product', 'a GPU')} ({values.get('bus info', '?').removeprefix('pci@')})"
            if not values["claimed"]:
                yield line, of_symptom("module.not_loaded", name, "UNCLAIMED: no driver is bound to it", "", "host")
            elif "driver=nouveau" in values.get("configuration", ""):
                yield line, of_symptom("nouveau.drives_gpu", name, "driver=nouveau", "driver=nvidia", "host")
