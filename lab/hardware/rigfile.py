"""Reads lab/hardware/rigs/NAME.yml, the hardware of a simulated machine, and adds the values of every GPU and pair.

    dmi: {sys_vendor, product_name, board_name, bios_version}      names in the firmware tables
    cpu_vendor: intel | amd
    memory: {gib, dimms}                      and optionally slots (default: as many as dimms; two are a channel),
                                              rated_mt_s (2666), speed_mt_s that the firmware set (the rated one)
    nodes: {0: {root: "00", cpus: 0-27}}      NUMA nodes: the bus of their root complex, their CPUs
    model: v100-sxm2-16gb                     model of GPUs without `model`
    gpus: {SXM2-1: "06:00.0"}                 a bus id by position, or
      PCIE-2: {bus, model, slot: {width, generation}, card, power_w, values}
    pcie: {PIX: [SXM2-1 SXM2-2]}              groups with a common switch (PIX), switch cascade (PXB) or host bridge
                                              (PHB); other pairs: NODE in one NUMA node, SYS between two nodes
    nvlinks: {2: [SXM2-1 SXM2-2]}             pairs by number of links
    nvswitches: {pci_id: "1ac2", bus: [...]}
    p2p: {default: CNS, SYS: TNS, SXM2-1 SXM2-2: OK}      P2P status (default OK); the status of a PCIe level applies
                                              only to pairs without NVLink
    power: {base_w, rails: [{volts, feeds: [SXM2-1, base], supplies: [1100, 1100], sag_percent, step_percent}]}
    bmc: true                                 a management controller answers ipmitool
    infiniband: [{device: mlx5_0, layer: InfiniBand | Ethernet, gbit_s: 100, speed: EDR, interface: ib0}]
                                              stand-ins of adapters, in sysfs only
    cpufreq: {driver: acpi-cpufreq, governor: schedutil, governors: [performance, schedutil]}
                                              frequency policies of the CPUs; without the key there are none
    variant_of: t181                          the file that has the keys which are left out here
    sources: {...}

`power`: each rail with its voltage without load, what hangs on it, the watts of its supplies, and by how many percent
of 12 V it sags at its rating and, for a tick, when the current grows by its rating. A rig without it has supplies that
never sag. `slot`: a slot with fewer lanes or a lower generation than the card. `card`: the name of a board with several
GPUs. `power_w`, `values`: differences from the model. UUIDs are hashes of host, rig and position, serial numbers of
host, rig and card: they stay the same when a host is created again, and differ between hosts of one rig.
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

from lab.base.paths import RIGS
from rigwright.core.errors import InputError

LEVELS = ("PIX", "PXB", "PHB")
KEYS = set(
    "dmi cpu_vendor memory nodes model gpus pcie nvlinks nvswitches p2p power bmc infiniband cpufreq variant_of "
    "sources".split()
)
MEMORY_KEYS = ("gib", "dimms", "slots", "rated_mt_s", "speed_mt_s")
RATED_MT_S = 2666
"""The speed of memory modules whose file names none (assumed: DDR4 of servers)."""
GPU_KEYS = {"bus", "model", "slot", "card", "power_w", "values"}
NAMESPACE = uuid.UUID("7a1f0c52-3d6e-5b8e-9f10-6c6162677075")

Described = dict[str, Any]


def describe(rig: str, host: str = "") -> Described:
    """Returns the rig as a dict, with the UUIDs and serial numbers of `host` (default: the rig's name).

    gpus: [{position, model, bus_id, uuid, serial, numa_node, cpus, ...}] in bus order. pcie_levels, nvlinks and p2p: by
    pair of GPU numbers ("0-1"); pcie_levels and p2p have a "default". nvswitches: {pci_id, bus_ids}. dmi, memory,
    nodes: as in the file. Raises InputError for an unknown key, a GPU without model or bus, and an unknown position in
    a pair.
    """
    where = f"lab/hardware/rigs/{rig}.yml"
    raw = _read(rig)
    raw = {**_read(raw["variant_of"]), **raw} if "variant_of" in raw else raw
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
        "memory": memory(raw["memory"], where),
        "nodes": nodes,
        "power": _power(raw.get("power"), number, where),
        "bmc": bool(raw.get("bmc", False)),
        "infiniband": raw.get("infiniband", []),
        "cpufreq": _cpufreq(raw.get("cpufreq"), where),
    }


def _cpufreq(given: Any, where: str) -> Described | None:
    """Returns the driver, governor and governors of the CPUs; None if the file has none. Raises InputError for other
    keys, and for a governor that is not among the driver's."""
    if not given:
        return None
    if set(given) != {"driver", "governor", "governors"}:
        raise InputError(f"{where} cpufreq", f"keys {', '.join(sorted(given))}", "driver, governor, governors")
    if given["governor"] not in given["governors"]:
        raise InputError(
            f"{where} cpufreq", f"governor {given['governor']!r}", f"one of {', '.join(given['governors'])}"
        )
    return dict(given)


def memory(given: Any, where: str) -> dict[str, int]:
    """Returns gib, dimms, slots, rated_mt_s and speed_mt_s, with the defaults of what the file leaves out.

    Raises InputError for an unknown key, for more modules than slots, and for a speed above the rated one.
    """
    unknown = sorted(set(given) - set(MEMORY_KEYS))
    if unknown:
        raise InputError(f"{where} memory", f"unknown key {unknown[0]!r}", ", ".join(MEMORY_KEYS))
    rated = given.get("rated_mt_s", RATED_MT_S)
    found: dict[str, int] = {"slots": given["dimms"], "rated_mt_s": rated, "speed_mt_s": rated} | given
    if found["dimms"] > found["slots"]:
        raise InputError(
            f"{where} memory", f"{found['dimms']} modules in {found['slots']} slots", "slots for all modules"
        )
    if found["speed_mt_s"] > rated:
        raise InputError(f"{where} memory", f"speed_mt_s {found['speed_mt_s']}", f"{rated} MT/s at most, as rated_mt_s")
    return found


def _power(given: Any, number: dict[str, int], where: str) -> Described | None:
    """Returns the rails with GPU numbers for positions; None if the file has none. Raises InputError for an unknown
    one."""
    if not given:
        return None
    for rail in given["rails"]:
        unknown = [name for name in rail["feeds"] if name not in number and name != "base"]
        if unknown:
            raise InputError(where, f"a rail feeds {unknown[0]!r}", f"base, {', '.join(number)}")
    rails = [
        {**rail, "gpus": [number[name] for name in rail["feeds"] if name != "base"], "base": "base" in rail["feeds"]}
        for rail in given["rails"]
    ]
    return {"base_w": given["base_w"], "rails": rails}


def identity(rig: str, host: str, position: str, card: str) -> dict[str, str]:
    """Returns a GPU's UUID (version 5, from `host rig position`) and serial number (from SHA-1 of `host rig card`)."""
    digits = int(hashlib.sha1(f"{host} {rig} {card}".encode(), usedforsecurity=False).hexdigest(), 16) % 10**10
    return {"uuid": f"GPU-{uuid.uuid5(NAMESPACE, f'{host} {rig} {position}')}", "serial": f"032{digits:010}"}


def node_of(bus_id: str, nodes: dict[int, Any]) -> int:
    """Returns the NUMA node of a bus: the node with the highest root bus that is not above the bus."""
    bus = int(bus_id[5:7], 16)
    roots = sorted((int(node["root"], 16), number) for number, node in nodes.items())
    return [number for root, number in roots if root <= bus][-1]


def _read(rig: str) -> Described:
    """Returns the content of the rig's file; do not change it."""
    path = RIGS / f"{rig}.yml"
    return _parsed(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=64)
def _parsed(path: Path, _: int) -> Described:
    """Returns the content of a file. The second argument is its mtime, for the cache."""
    content: Described = yaml.safe_load(path.read_text(encoding="utf-8"))
    return content


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
    """Returns the GPU numbers of a pair `A B`, the lower first: `0-1`. Raises InputError for an unknown position."""
    try:
        low, high = sorted(number[position] for position in text.split())
    except (KeyError, ValueError):
        raise InputError(where, f"a pair {text!r}", f"two of {', '.join(number)}") from None
    return f"{low}-{high}"


def _levels(raw: Described, gpus: list[Described], number: dict[str, int], where: str) -> dict[str, str]:
    """Returns the PCIe level of every pair that is closer than SYS."""
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
    """Returns the P2P status by pair, with the default. A pair's own entry overrides the entry of its PCIe level.

    The entry of a PCIe level applies only to pairs without NVLink.
    """
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
