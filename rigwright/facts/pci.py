"""The GPUs on the PCI bus, from sysfs, with or without a driver."""

from __future__ import annotations

from dataclasses import dataclass

from rigwright.core.command import Result, script
from rigwright.core.errors import HostError
from rigwright.facts import Fact, whole


@dataclass(frozen=True)
class PciGpu:
    """An NVIDIA display device. `bus_id` 0000:06:00.0; `device_id` 4 hex digits; `driver` "" when none is bound."""

    bus_id: str
    device_id: str
    driver: str


_SCRIPT = """
for device in /sys/bus/pci/devices/*; do
  [ -e "$device/vendor" ] || continue
  read vendor <"$device/vendor"; [ "$vendor" = 0x10de ] || continue
  read class <"$device/class"; read id <"$device/device"
  driver=$(readlink "$device/driver" 2>/dev/null)
  echo "${device##*/} $class ${id#0x} ${driver##*/}"
done; :
"""


def _gpus(result: Result) -> tuple[PciGpu, ...]:
    gpus = []
    for line in result.lines:
        words = line.split()
        if words[1].startswith("0x03"):
            gpus.append(PciGpu(words[0], words[2], words[3] if len(words) > 3 else ""))
    return tuple(gpus)


def no_gpu(where: str) -> HostError:
    """The reason of Unavailable on a machine without an NVIDIA GPU."""
    todo = "reseat it, check its power and Above 4G Decoding"
    return HostError(where, "no NVIDIA GPU is on the PCI bus", "a GPU that lspci shows", todo)


gpus = Fact("pci.gpus", script(_SCRIPT, reads=True), _gpus, kept=whole)


def _switches(result: Result) -> tuple[str, ...]:
    rows = (line.split() for line in result.lines)
    return tuple(row[0] for row in rows if row[1].startswith("0x0680"))


nvswitches = Fact("pci.nvswitches", script(_SCRIPT, reads=True), _switches, kept=whole)
"""The bus ids of the NVSwitches. B200's NVSwitches are missing, because they are not NVIDIA bridges on the PCI bus."""
