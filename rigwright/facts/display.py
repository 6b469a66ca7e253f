"""The display adapters on the PCI bus, and the graphical sessions of systemd."""

from __future__ import annotations

import re

from msgspec import Struct

from rigwright.core import host_text
from rigwright.core.command import Result, script
from rigwright.core.control_characters import one_line
from rigwright.facts import Fact


class Adapter(Struct, frozen=True):
    """A display adapter on the PCI bus. `is_vga`: VGA compatible (class 0300), so it can show the firmware's screen.
    `boots`: the firmware shows its screen on it (boot_vga)."""

    bus_id: str
    is_nvidia: bool
    is_vga: bool
    boots: bool


_ADAPTERS = """
for device in /sys/bus/pci/devices/*; do
  [ -e "$device/class" ] || continue
  read class <"$device/class"; case $class in 0x03*) ;; *) continue;; esac
  read vendor <"$device/vendor"; boots=0
  [ -e "$device/boot_vga" ] && read boots <"$device/boot_vga"
  echo "${device##*/} $vendor $class $boots"
done; :
"""


def _adapters(result: Result) -> tuple[Adapter, ...]:
    return tuple(
        Adapter(bus_id, vendor == "0x10de", kind.startswith("0x0300"), {"1": True, "0": False}[boots])
        for bus_id, vendor, kind, boots in map(str.split, result.lines)
    )


adapters = Fact("display.adapters", script(_ADAPTERS, reads=True), _adapters)
"""The display adapters of all vendors; () without any."""


def screen_gpu(adapters: tuple[Adapter, ...]) -> str:
    """The bus id of the NVIDIA GPU with the firmware's screen, or of the only one that can have it; "" without one."""
    first = next((adapter for adapter in adapters if adapter.boots), None)
    if first is None and all(adapter.is_nvidia for adapter in adapters):
        first = next((adapter for adapter in adapters if adapter.is_vga), None)
    return first.bus_id if first and first.is_nvidia else ""


class Graphical(Struct, frozen=True):
    """The graphical sessions of a host. `manager`: the unit of the display manager that is active or starts at boot, ""
    without one. `sessions`: those of people under X or Wayland, `alice (wayland, seat0)`, without the login screen."""

    manager: str
    sessions: tuple[str, ...]


NOT_GRAPHICAL = Graphical("", ())


_GRAPHICAL = """
state=$(timeout 5 systemctl show -p Id,LoadState,ActiveState -- default.target display-manager.service 2>/dev/null)
target=${state#*Id=}; echo "default=${target%%
*}"
case $state in *?"

"?*) echo "${state#*

}";; esac
cd /run/systemd/sessions 2>/dev/null || exit 0
set --
for id in *; do case $id in *[!0-9A-Za-z]*) ;; *) [ $# -ge 64 ] || set -- "$@" "$id";; esac; done
[ $# = 0 ] || { echo; timeout 5 loginctl show-session -p Name -p Type -p Class -p Seat -p State -- "$@" 2>/dev/null; }
:
"""


def _graphical(result: Result) -> Graphical:
    blocks = re.split(r"\n\s*\n", result.text.strip())
    manager, *others = (dict(line.split("=", 1) for line in host_text.lines(block)) for block in blocks)
    at_boot = manager["default"] == "graphical.target" and manager.get("LoadState") == "loaded"
    name = one_line(manager["Id"]) if at_boot or manager.get("ActiveState") == "active" else ""
    sessions = set()
    for values in others:
        graphical = values.get("Type") in ("x11", "wayland", "mir") and values.get("State") != "closing"
        if graphical and values.get("Class", "").startswith("user"):
            sessions.add(one_line(f"{values['Name']} ({values['Type']}, {values.get('Seat') or 'no seat'})"))
    return Graphical(name, tuple(sorted(sessions)))


graphical = Fact("display.graphical", script(_GRAPHICAL, reads=True), _graphical)
"""The display manager and the sessions of people under X or Wayland, from systemd and systemd-logind."""
