"""The machine around the GPUs: memory and its modules, processors, and the displays that lshw finds."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from rigwright.facts import Fact
from rigwright.facts.os import printable
from rigwright.shell import Result, script


@dataclass(frozen=True)
class Display:
    """A display device as lshw has it; `driver` "" when nobody has claimed it."""

    address: str
    product: str
    vendor: str
    driver: str


@dataclass(frozen=True)
class Machine:
    """`memory_mib` is what the kernel has, less than the modules' sum. `modules`: SLOT SIZE of each memory module that is there.

    `modules` and `displays` are None where lshw is not installed.
    """

    memory_mib: int
    sockets: int
    threads: int
    modules: tuple[str, ...] | None
    displays: tuple[Display, ...] | None


_SCRIPT = """
awk '/^MemTotal:/ {print $2}' /proc/meminfo
grep '^physical id' /proc/cpuinfo | sort -u | wc -l
nproc --all
command -v lshw >/dev/null || exit 0
exec lshw -quiet -class display -class memory -json 2>/dev/null
"""


def _machine(result: Result) -> Machine:
    memory, sockets, threads, *rest = result.text.split("\n", 3)
    nodes = _nodes(rest[0]) if rest and rest[0].strip() else None
    return Machine(
        int(memory) // 1024,
        int(sockets),
        int(threads),
        None if nodes is None else tuple(sorted(_modules(nodes))),
        None if nodes is None else tuple(_display(node) for node in nodes if node.get("class") == "display"),
    )


def _nodes(text: str) -> list[dict[str, Any]]:
    """lshw's nodes; its older versions leave the brackets out."""
    try:
        found = json.loads(text if text.lstrip().startswith("[") else f"[{text.strip().rstrip(',')}]")
    except json.JSONDecodeError as error:
        raise ValueError(f"lshw -json: cut short or damaged, {error}") from None
    if not isinstance(found, list) or not all(isinstance(node, dict) for node in found):
        raise ValueError("lshw's answer is no list of nodes")
    return found


def _modules(nodes: list[dict[str, Any]]) -> list[str]:
    """A line for each memory module that holds something: lshw lists them as banks, the empty ones without a size."""
    banks = [node for node in nodes if str(node.get("id", "")).startswith("bank") and node.get("size")]
    return [f"{printable(str(node.get('slot') or node['id']))} {int(node['size']) >> 20} MiB" for node in banks]


def _display(node: dict[str, Any]) -> Display:
    product, vendor = (printable(str(node.get(key) or "")) for key in ("product", "vendor"))
    address = str(node.get("businfo") or node.get("handle") or "").partition("@")[2]
    return Display(address, product, vendor, str((node.get("configuration") or {}).get("driver") or ""))


def _lasting(machine: Machine) -> dict[str, object]:
    """Memory in whole GiB, because every kernel keeps a little of it for itself; displays change with the driver."""
    counted = {"sockets": machine.sockets, "threads": machine.threads, "modules": machine.modules}
    return {"memory_gib": round(machine.memory_mib / 1024), **counted}


machine = Fact("machine.machine", script(_SCRIPT, timeout_s=60, reads=True), _machine, kept=_lasting)


@dataclass(frozen=True)
class Past:
    """What is remembered of a host: its memory, processors and GPUs, and how warm each GPU was under load.

    `gpus`: BUS_ID DEVICE_ID of each. `loaded_c`: by UUID, the temperature of a sample under load.
    """

    memory_mib: int
    sockets: int
    threads: int
    modules: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    loaded_c: dict[str, float] | None = None
