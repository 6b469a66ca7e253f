"""board.conf: what the simulated NVML library (lab/nvml) is told of a rig's GPUs.

Three sources: the rig (what is plugged in where), the catalogue's entry of each model, and lab/models/MODEL.yml for
what only a simulation needs. A rig's GPU may override its model: `power_w: {max: 375}`, or any key under `values:`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from rigwright.errors import InputError

MODELS = Path(__file__).resolve().parent / "models"
ARCHITECTURES = {"Kepler": 2, "Maxwell": 3, "Pascal": 4, "Volta": 5, "Turing": 6, "Ampere": 7, "Ada": 8, "Hopper": 9}
P2P_STATUS = {"OK": 0, "CNS": 1, "GNS": 2, "TNS": 3, "DR": 4, "NS": 5, "U": 6}  # as `nvidia-smi topo -p2p` prints them
OF_BOARD = ("cpu_vendor", "nvswitches")
PER_GPU = ("bus_id", "uuid", "serial", "numa_node", "cpus")


def board_conf(rig: dict[str, Any], gpus: dict[str, dict[str, Any]]) -> str:
    """The text of board.conf for a rig (as lab/rigs/NAME.yml reads) and the catalogue's GPU models by file name.

    Raises InputError for a model without catalogue entry or lab/models file, and for an unknown P2P status.
    """
    lines = {"gpus": len(rig["gpus"])} | {key: rig[key] for key in OF_BOARD if key in rig} | _pairs(rig)
    for model in dict.fromkeys(gpu["model"] for gpu in rig["gpus"]):
        if model not in gpus:
            raise InputError("rig", f"no GPU model {model!r} in the catalogue", ", ".join(sorted(gpus)))
        for key, value in (_from_catalogue(gpus[model]) | _simulated(model)).items():
            lines[f"model.{model}.{key}"] = value
    for number, gpu in enumerate(rig["gpus"]):
        for key, value in _of_gpu(gpu).items():
            lines[f"gpu{number}.{key}"] = value
    return "".join(f"{key}={value}\n" for key, value in lines.items())


def _pairs(rig: dict[str, Any]) -> dict[str, Any]:
    """How the GPUs hang together; a pair not named has the default."""
    lines: dict[str, Any] = {}
    for pair, level in rig.get("pcie_levels", {}).items():
        lines[f"topo.{pair}"] = level
    for pair, links in rig.get("nvlinks", {}).items():
        lines[f"nvlink.{pair}"] = links
    for pair, status in rig.get("p2p", {}).items():
        if status not in P2P_STATUS:
            raise InputError("rig", f"p2p status {status!r} of {pair}", " ".join(P2P_STATUS))
        lines[f"p2p.{pair}"] = P2P_STATUS[status]
    return lines


def _from_catalogue(gpu: dict[str, Any]) -> dict[str, Any]:
    """What every board of the model has, in the keys of the library."""
    clocks, nvlink = gpu["clocks_mhz"], gpu.get("nvlink") or {}
    span = f"{clocks['graphics_max']}-{clocks['graphics_min']}/{clocks['graphics_step']}"
    application = clocks.get("default_application")
    return _power(gpu["power_w"]) | {
        "name": gpu["name"],
        "arch": ARCHITECTURES[gpu["architecture"]],
        "compute_capability": gpu["compute_capability"],
        "pci_id": gpu["pci_ids"][0],
        "memory_mib": gpu["memory_mib"],
        "memory_gb_s": round(gpu.get("memory_bandwidth_gb_s") or 0) or "",
        "clock.graphics_max": clocks["graphics_max"],
        "clock.graphics_min": clocks["graphics_min"],
        "clock.memory_max": max(clocks["memory"]),
        "clocks.supported": ";".join(f"{memory}:{span}" for memory in clocks["memory"]),
        "clocks.application_default": f"{application['memory']},{application['graphics']}" if application else "",
        "clocks.memory_lockable": int("locked_memory" in gpu["clock_verbs"]),
        "nvlinks": nvlink.get("links", 0),
        "nvlink_mb_s": round(1000 * nvlink.get("gb_s_per_link", 0)),
    }


def _simulated(model: str) -> dict[str, Any]:
    path = MODELS / f"{model}.yml"
    if not path.exists():
        raise InputError(str(path), "there is no such file", "what the simulation needs of this model")
    values: dict[str, Any] = yaml.safe_load(path.read_text())["values"]
    return values


def _of_gpu(gpu: dict[str, Any]) -> dict[str, Any]:
    """One plugged-in GPU: its model, identity and what its maker did differently."""
    plain = {key: gpu[key] for key in PER_GPU if key in gpu}
    values: dict[str, Any] = gpu.get("values", {})
    return {"model": gpu["model"]} | plain | _power(gpu.get("power_w", {})) | values


def _power(watts: dict[str, float]) -> dict[str, int]:
    return {f"power.{key}_mw": round(1000 * value) for key, value in watts.items()}
