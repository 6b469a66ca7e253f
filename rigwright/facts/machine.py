"""Memory and memory modules, processors, and the display devices that lshw lists."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from rigwright.core import host_text
from rigwright.core.command import Result, script
from rigwright.core.control_characters import one_line
from rigwright.facts import Fact
from rigwright.facts.installed import DEVICES


class Display(Struct, frozen=True):
    """A display device listed by lshw; `driver` is "" if none is bound."""

    address: str
    product: str
    vendor: str
    driver: str


class Machine(Struct, frozen=True):
    """`memory_mib` is the kernel's MemTotal, less than the sum of the modules. `modules`: SLOT SIZE of each installed
    module. `modules` and `displays` are None if lshw is not installed."""

    memory_mib: int
    sockets: int
    threads: int
    modules: tuple[str, ...] | None
    displays: tuple[Display, ...] | None


_NOT_NEEDED = (
    "abi cpuid cpuinfo device-tree fb graphics ide input isapnp mmc mounts network nvme parisc partitions pcmcia "
    "pcmcialegacy scsi sound spd usb vio virtio"
)
"""The tests of lshw for other classes; on a server with many disks they take most of its time."""

_SCRIPT = f"""
awk '/^MemTotal:/ {{print $2}}' /proc/meminfo
grep '^physical id' /proc/cpuinfo | sort -u | wc -l
nproc --all
command -v lshw >/dev/null || exit 0
exec lshw -quiet -class display -class memory {" ".join(f"-disable {name}" for name in _NOT_NEEDED.split())} -json \\
  2>/dev/null
"""


def _machine(result: Result) -> Machine:
    memory, sockets, threads, *rest = result.text.split("\n", 3)
    modules, displays = None, None
    if rest and rest[0].strip():
        nodes = _nodes(rest[0])
        # lshw lists memory banks; empty ones have no size
        banks = [node for node in nodes if str(node.get("id", "")).startswith("bank") and node.get("size")]
        named = [(one_line(str(bank.get("slot") or bank["id"])), host_text.integer(bank["size"])) for bank in banks]
        modules = tuple(sorted(f"{slot} {size >> 20} MiB" for slot, size in named))
        displays = tuple(_display(node) for node in nodes if node.get("class") == "display")
    kib, socket_count, thread_count = map(host_text.integer, (memory, sockets, threads))
    return Machine(kib // 1024, socket_count, thread_count, modules, displays)


def _nodes(text: str) -> list[dict[str, Any]]:
    """The nodes of lshw's JSON; older versions print them without the brackets of the list."""
    try:
        nodes = host_text.json_value(text if text.lstrip().startswith("[") else f"[{text.strip().rstrip(',')}]")
    except json.JSONDecodeError as error:
        raise ValueError(f"lshw -json: cut short or damaged, {error}") from None
    if not isinstance(nodes, list) or not all(isinstance(node, dict) for node in nodes):
        raise ValueError("lshw's answer is no list of nodes")
    return nodes


def _display(node: dict[str, Any]) -> Display:
    product, vendor = (one_line(str(node.get(key) or "")) for key in ("product", "vendor"))
    address = str(node.get("businfo") or node.get("handle") or "").partition("@")[2]
    return Display(address, product, vendor, str((node.get("configuration") or {}).get("driver") or ""))


def _lasting(machine: Machine) -> dict[str, object]:
    """The part for the history: memory in GiB, because kernels reserve different amounts; no displays, which depend on
    the driver."""
    memory_gib = round(machine.memory_mib / 1024)
    return {"memory_gib": memory_gib, **{name: getattr(machine, name) for name in ("sockets", "threads", "modules")}}


machine = Fact("machine.machine", script(_SCRIPT, timeout_s=60, reads=True, cache_key=DEVICES), _machine, kept=_lasting)


class Past(Struct, frozen=True):
    """A host in its last good run. `modules`: SLOT SIZE of each memory module. `gpus`: BUS_ID DEVICE_ID of each.
    `loaded_c`: the temperature of each GPU under load, degrees Celsius by UUID."""

    memory_mib: int
    sockets: int
    threads: int
    modules: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    loaded_c: dict[str, float] | None = None

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Past:
        """The instance whose fields have these values as JSON types."""
        fields: Any = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
        return cls(**fields)
