"""Reads lab/rigs/NAME.yml, the hardware of a simulated machine, and writes it out in full: every GPU, every pair.

    dmi: {sys_vendor, product_name, board_name, bios_version}      what the firmware calls the machine
    cpu_vendor: intel | amd
    memory: {gib, dimms}
    nodes: {0: {root: "00", cpus: 0-27}}      NUMA nodes: the bus of their root complex, their CPUs
    model: v100-sxm2-16gb                     of every GPU that names none
    gpus: {SXM2-1: "06:00.0"}                 a bus id by position, or
      PCIE-2: {bus, model, slot: {width, generation}, card, power_w, values}
    pcie: {PIX: [SXM2-1 SXM2-2]}              groups that share a switch (PIX), a cascade of them (PXB), a host bridge (PHB);
                                              others are NODE within a NUMA node and SYS across
    nvlinks: {2: [SXM2-1 SXM2-2]}             pairs by their number of links
    nvswitches: {pci_id: "1ac2", bus: [...]}
    p2p: {default: CNS, SYS: TNS, SXM2-1 SXM2-2: OK}      what the driver grants a pair without NVLink (default OK)
    sources: {...}

`slot` is narrower than the card, `card` names the board that several GPUs share, `power_w` and `values` are what the maker
did differently. A GPU's UUID and serial number are hashes of host, rig and position, so they stay when a host is made again,
and two hosts of one rig have none in common.
"""

from __future__ import annotations

import hashlib
import itertools
import uuid
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from lab.paths import RIGS
from rigwright.errors import InputError

LEVELS = ("PIX", "PXB", "PHB")
KEYS = {"dmi", "cpu_vendor", "memory", "nodes", "model", "gpus", "pcie", "nvlinks", "nvswitches", "p2p", "sources"}
GPU_KEYS = {"bus", "model", "slot", "card", "power_w", "values"}
NAMESPACE = uuid.UUID("7a1f0c52-3d6e-5b8e-9f10-6c6162677075")

Described = dict[str, Any]


def describe(rig: str, host: str = "") -> Described:
    """The rig as a dict, its GPUs those of that host (one called like the rig, without a name). Raises InputError.

    gpus: [{position, model, bus_id, uuid, serial, numa_node, cpus, ...}] in bus order; pcie_levels, nvlinks and p2p by pairs of
    GPU numbers ("0-1") with their default; nvswitches: {pci_id, bus_ids}; dmi, memory, nodes as in the file.
    """
    path, where = RIGS / f"{rig}.yml", f"lab/rigs/{rig}.yml"
    raw = _read(path, path.stat().st_mtime_ns)
    unknown = sorted(set(raw) - KEYS)
    if unknown:
        raise InputError(where, f"unknown key {unknown[0]!r}", ", ".join(sorted(KEYS)))
    nodes = {int(number): node for number, node in raw["nodes"].items()}
    gpus = [_gpu(position, given, raw, nodes, where) for position, given in raw["gpus"].items()]
    gpus.sort(key=lambda gpu: str(gpu["bus_id"]))
    for gpu in gpus:
        gpu |= identity(rig, host or rig, gpu["position"], gpu.pop("card"))
    number = {gpu["position"]: at for at, gpu in enumerate(gpus)}
    levels = _levels(raw, gpus, number, where)
    links = {_pair(pair, number, where): int(n) for n, pairs in raw.get("nvlinks", {}).items() for pair in pairs}
    switches = raw.get("nvswitches")
    return {
        "gpus": gpus,
        "pcie_levels": {"default": "SYS"} | levels,
        "nvlinks": links,
        "p2p": _p2p(raw.get("p2p", {}), levels, set(links), number, where),
        "nvswitches": switches
        and {"pci_id": switches["pci_id"], "bus_ids": [f"0000:{bus}" for bus in switches["bus"]]},
        "dmi": raw["dmi"],
        "cpu_vendor": raw["cpu_vendor"],
        "memory": raw["memory"],
        "nodes": nodes,
    }


def identity(rig: str, host: str, position: str, card: str) -> dict[str, str]:
    """A GPU's UUID and its card's serial number: sha1 of `host rig position` as a version 5 UUID, and of `host rig card`."""
    digits = int(hashlib.sha1(f"{host} {rig} {card}".encode(), usedforsecurity=False).hexdigest(), 16) % 10**10
    return {"uuid": f"GPU-{uuid.uuid5(NAMESPACE, f'{host} {rig} {position}')}", "serial": f"032{digits:010}"}


def node_of(bus_id: str, nodes: dict[int, Any]) -> int:
    """The NUMA node whose root complex the bus belongs to: the one with the highest root bus at or below it."""
    bus = int(bus_id[5:7], 16)
    roots = sorted((int(node["root"], 16), number) for number, node in nodes.items())
    return [number for root, number in roots if root <= bus][-1]


@lru_cache(maxsize=64)
def _read(path: Path, _: int) -> Described:
    """The file as it was at that moment; not to be changed."""
    found: Described = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found


def _gpu(position: str, given: Any, raw: Described, nodes: dict[int, Any], where: str) -> Described:
    own: Described = {"bus": given} if isinstance(given, str) else dict(given)
    unknown = sorted(set(own) - GPU_KEYS)
    model = own.get("model", raw.get("model"))
    if unknown or not model or "bus" not in own:
        found = f"unknown key {unknown[0]!r}" if unknown else "no model" if not model else "no bus"
        raise InputError(f"{where} gpus {position}", found, ", ".join(sorted(GPU_KEYS)))
    bus_id = f"0000:{own['bus']}"
    node = node_of(bus_id, nodes)
    values = dict(own.get("values", {}))
    if "slot" in own:
        slot = own["slot"]
        values |= {"slot.width": slot["width"], "slot.generation": slot["generation"]}
        values |= {"pcie.width_now": slot["width"], "pcie.gen_host": slot["generation"]}
    return {
        "position": position,
        "model": model,
        "bus_id": bus_id,
        "numa_node": node,
        "cpus": str(nodes[node]["cpus"]),
        "power_w": own.get("power_w", {}),
        "values": values,
        "card": own.get("card", position),
    }


def _pair(text: str, number: dict[str, int], where: str) -> str:
    """`A B` as the numbers of both GPUs, the lower first."""
    try:
        low, high = sorted(number[position] for position in text.split())
    except (KeyError, ValueError):
        raise InputError(where, f"a pair {text!r}", f"two of {', '.join(number)}") from None
    return f"{low}-{high}"


def _levels(raw: Described, gpus: list[Described], number: dict[str, int], where: str) -> dict[str, str]:
    """The PCIe distance of every pair that is nearer than SYS."""
    found: dict[str, str] = {}
    for level in LEVELS:
        for group in raw.get("pcie", {}).get(level, ()):
            for pair in itertools.combinations(group.split(), 2):
                found.setdefault(_pair(" ".join(pair), number, where), level)
    for (a, one), (b, other) in itertools.combinations(enumerate(gpus), 2):
        if one["numa_node"] == other["numa_node"]:
            found.setdefault(f"{a}-{b}", "NODE")
    return found


def _p2p(
    given: dict[str, str], levels: dict[str, str], linked: set[str], number: dict[str, int], where: str
) -> dict[str, str]:
    """What a pair is granted: its own line, or that of its distance if it has no NVLink, or the default."""
    found = {"default": given.get("default", "OK")}
    for a, b in itertools.combinations(range(len(number)), 2):
        status = given.get(levels.get(f"{a}-{b}", "SYS"))
        if status and f"{a}-{b}" not in linked:
            found[f"{a}-{b}"] = status
    for pair, status in _named_pairs(given):
        found[_pair(pair, number, where)] = status
    return found


def _named_pairs(given: dict[str, str]) -> Iterator[tuple[str, str]]:
    return ((pair, status) for pair, status in given.items() if " " in pair)
