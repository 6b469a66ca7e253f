"""What shows a picture: the display adapters on the PCI bus, and the graphical sessions of systemd."""

from __future__ import annotations

import re

from msgspec import Struct

from rigwright.core import host_text
from rigwright.core.command import Result, script
from rigwright.core.control_characters import one_line
from rigwright.facts import Fact


class Adapter(Struct, frozen=True):
    """A display adapter on the PCI bus. `is_vga`: it is VGA compatible (class 0300), so it can show the firmware's
    screen.

    `boots`: the firmware shows its screen on it (boot_vga).
    """

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
    rows = [line.split() for line in result.lines]
    return tuple(
        Adapter(bus_id, vendor == "0x10de", re.match("0x0300", clazz) is not None, {"1": True, "0": False}[boots])
        for bus_id, vendor, clazz, boots in rows
    )


adapters = Fact("display.adapters", script(_ADAPTERS, reads=True), _adapters)
"""The display adapters of all vendors; () when there is none."""


def screen_gpu(found: tuple[Adapter, ...]) -> str:
    """The bus id of the NVIDIA GPU that has the firmware's screen, or that only can have it; "" for none."""
    first = next((each for each in found if each.boots), None)
    if first is None and all(each.is_nvidia for each in found):
        first = next((each for each in found if each.is_vga), None)
    return first.bus_id if first and first.is_nvidia else ""


class Graphical(Struct, frozen=True):
    """The graphical sessions of a host.

    `manager`: the unit of the display manager that is active or starts at boot, "" for none. `sessions`: the sessions
    of people under X or Wayland, `alice (wayland, seat0)`; the screen of the display manager itself is none.
    """

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
    first, *others = (_values(block) for block in re.split(r"\n\s*\n", result.text.strip()))
    default = first["default"]
    state = first.get("LoadState", "not-found")
    starts = first.get("ActiveState") == "active" or (state == "loaded" and default == "graphical.target")
    people = [
        values
        for values in others
        if values.get("Type") in ("x11", "wayland", "mir")
        and values.get("Class", "").startswith("user")
        and values.get("State") != "closing"
    ]
    sessions = [f"{one['Name']} ({one['Type']}, {one.get('Seat') or 'no seat'})" for one in people]
    return Graphical(one_line(first["Id"]) if starts else "", tuple(sorted({one_line(each) for each in sessions})))


def _values(block: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in host_text.lines(block))


graphical = Fact("display.graphical", script(_GRAPHICAL, reads=True), _graphical)
"""The display manager and the sessions of people under X or Wayland, as systemd and systemd-logind tell them."""
