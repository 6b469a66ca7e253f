"""The GPUs on the PCI bus, from sysfs, with or without a driver."""

from __future__ import annotations

import re

from msgspec import Struct

from rigwright.core import lazy_re
from rigwright.core.command import Result, script
from rigwright.core.errors import HostError
from rigwright.facts import Fact, whole


class PciGpu(Struct, frozen=True):
    """An NVIDIA display device. `bus_id` 0000:06:00.0; `device_id` 4 hex digits; `driver` "" when none is bound."""

    bus_id: str
    device_id: str
    driver: str


_SCRIPT = """
for device in /sys/bus/pci/devices/*; do
  [ -e "$device/vendor" ] || continue
  read vendor <"$device/vendor"; [ "$vendor" = 0x10de ] || continue
  read class <"$device/class"; read id <"$device/device"
  driver=$(cd -P "$device/driver" 2>/dev/null && echo "$PWD")
  echo "${device##*/} $class ${id#0x} ${driver##*/}"
done; :
"""


_ROW = lazy_re.compile(
    r"([0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]) (0x[0-9a-f]{6}) ([0-9a-f]{4})(?: ([\w-]{0,64}))?", re.ASCII
)


def _rows(result: Result) -> list[tuple[str, str, str, str]]:
    """The bus id, the class, the device id and the driver of each device. Raises ValueError for another line."""
    rows = []
    for line in result.lines:
        match = _ROW.fullmatch(line)
        if match is None:
            raise ValueError(f"{line[:80]!r} is no PCI device")
        rows.append((match[1], match[2], match[3], match[4] or ""))
    return rows


def _gpus(result: Result) -> tuple[PciGpu, ...]:
    rows = _rows(result)
    return tuple(PciGpu(at, device, driver) for at, kind, device, driver in rows if kind.startswith("0x03"))


def _switches(result: Result) -> tuple[str, ...]:
    return tuple(at for at, kind, _, _ in _rows(result) if kind.startswith("0x0680"))


_DEVICES = script(_SCRIPT, reads=True)
gpus = Fact("pci.gpus", _DEVICES, _gpus, kept=whole)
nvswitches = Fact("pci.nvswitches", _DEVICES, _switches, kept=whole)
"""The bus ids of the NVSwitches. B200's NVSwitches are missing, because they are not NVIDIA bridges on the PCI bus."""


def no_gpu(where: str) -> HostError:
    """The error for a machine without an NVIDIA GPU."""
    todo = "reseat it, check its power and Above 4G Decoding"
    return HostError(where, "no NVIDIA GPU is on the PCI bus", "a GPU that lspci shows", todo)
