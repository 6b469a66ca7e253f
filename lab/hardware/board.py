"""Writes board.conf, which describes the GPUs of a rig to the simulated NVML library (lab/simulators/nvml).

Sources: the rig (the GPU in each position), the catalogue's entry of each model, and lab/hardware/models for values
that only the simulation needs (architectures.yml, and MODEL.yml where a model differs). A model that the catalogue does
not describe has both in one file of lab/hardware/undescribed. A GPU of a rig may override values of its model:
`power_w: {max: 375}`, or any key under `values:`.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from lab.base.paths import CHECKOUT
from rigwright.core.errors import InputError

MODELS = Path(__file__).resolve().parent / "models"
UNDESCRIBED = MODELS.with_name("undescribed")
GPUS = CHECKOUT / "rigwright" / "catalogue" / "gpus"
ARCHITECTURES = {
    "Kepler": 2, "Maxwell": 3, "Pascal": 4, "Volta": 5, "Turing": 6, "Ampere": 7, "Ada": 8, "Hopper": 9,
    "Blackwell": 10,
}  # fmt: skip
P2P_STATUS = {"OK": 0, "CNS": 1, "GNS": 2, "TNS": 3, "DR": 4, "NS": 5, "U": 6}  # as `nvidia-smi topo -p2p` prints them
CORES = {"3": 192, "6.0": 64, "7": 64, "8.0": 64}
"""CUDA cores per multiprocessor, by compute capability or by its first number. All others have 128."""
FULL = 1.2
"""The power of products at the highest clock without a limit, by the default limit: a V100 was seen at 1.17, an A100 at
1.19 times; assumed for all others. Spikes above it last milliseconds, and no reading shows them."""
OF_BOARD = ("cpu_vendor",)
PER_GPU = ("position", "bus_id", "uuid", "numa_node", "cpus")


def board_conf(rig: dict[str, Any], gpus: dict[str, dict[str, Any]]) -> str:
    """Returns the text of board.conf. `rig` is a result of lab.hardware.rigfile.describe; `gpus` are catalogue entries
    by file name.

    Raises InputError for a model without a catalogue entry and for an unknown P2P status.
    """
    lines = (
        {"gpus": len(rig["gpus"])}
        | {key: rig[key] for key in OF_BOARD if key in rig}
        | _pairs(rig)
        | _switches(rig)
        | _rails(rig.get("power"))
        | ({"bmc": 1} if rig.get("bmc") else {})
    )
    simulated: dict[str, dict[str, Any]] = {}
    for model in dict.fromkeys(gpu["model"] for gpu in rig["gpus"]):
        if model not in gpus:
            raise InputError("rig", f"no GPU model {model!r} in the catalogue", ", ".join(sorted(gpus)))
        simulated[model] = of_model(model, gpus[model])
        for key, value in simulated[model].items():
            if key != "serial":
                lines[f"model.{model}.{key}"] = value
    for number, gpu in enumerate(rig["gpus"]):
        for key, value in _of_gpu(
            number, gpu, rig.get("nodes", {}), bool(simulated[gpu["model"]].get("serial"))
        ).items():
            lines[f"gpu{number}.{key}"] = value
    return "".join(f"{key}={value}\n" for key, value in lines.items())


@lru_cache(maxsize=64)
def model(name: str) -> dict[str, Any]:
    """Returns the catalogue entry of a GPU model, or the file of lab/hardware/undescribed. Callers share it and must
    not change it."""
    own = UNDESCRIBED / f"{name}.yml"
    path = own if own.exists() else GPUS / own.name
    entry: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return entry


def of_model(model: str, gpu: dict[str, Any]) -> dict[str, Any]:
    """Returns the values of every board of a model, with the library's keys. `gpu` is the catalogue entry."""
    common, kind = _common(), kind_of(gpu["name"])
    architecture = dict(common["architectures"][gpu["architecture"]])
    fallback = architecture.pop("fallback")
    usual = architecture | common["kinds"][kind]
    path = MODELS / f"{model}.yml"
    own = yaml.safe_load(path.read_text(encoding="utf-8"))["values"] if path.exists() else gpu.get("values", {})
    found: dict[str, Any] = {"pci_subsystem": _subsystem(gpu)} | usual | _from_catalogue(gpu, kind, fallback) | own
    per_multiprocessor = CORES.get(gpu["compute_capability"], CORES.get(gpu["compute_capability"].split(".")[0], 128))
    return {"multiprocessors": found.get("cores", 0) // per_multiprocessor} | found


def kind_of(name: str) -> str:
    """Returns geforce, workstation or datacentre, derived from the driver's name of a GPU."""
    if "GeForce" in name or "TITAN" in name:
        return "geforce"
    return "workstation" if "Quadro" in name else "datacentre"


@lru_cache(maxsize=1)
def _common() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((MODELS / "architectures.yml").read_text(encoding="utf-8"))
    return found


def _subsystem(gpu: dict[str, Any]) -> str:
    """Returns the subsystem id of an NVIDIA board, derived from the PCI device id."""
    return f"{int(gpu['pci_ids'][0], 16) & 0x0FFF | 0x1000:04x}10de"


def _pairs(rig: dict[str, Any]) -> dict[str, Any]:
    """Returns the topology lines: PCIe level, NVLinks and P2P status of pairs. Omitted pairs have the default.

    Raises InputError for an unknown P2P status.
    """
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


def _switches(rig: dict[str, Any]) -> dict[str, Any]:
    given = rig.get("nvswitches")
    if not given:
        return {}
    return {
        "nvswitches": len(given["bus_ids"]),
        "nvswitch.pci_id": given["pci_id"],
        "nvswitch.bus_ids": ",".join(given["bus_ids"]),
    }


def _rails(power: dict[str, Any] | None) -> dict[str, Any]:
    """Returns the lines of the 12 V rails and their supplies, whose resistance follows from what they sag at their
    rating."""
    lines: dict[str, Any] = {}
    if power is None:
        return lines
    supplies = 0
    for number, rail in enumerate(power["rails"]):
        numbers = range(supplies, supplies + len(rail["supplies"]))
        for supply, watts in zip(numbers, rail["supplies"], strict=True):
            lines[f"supply{supply}.rating_w"] = watts
            for key, percent in (("uohm", rail["sag_percent"]), ("step_uohm", rail["step_percent"])):
                lines[f"supply{supply}.{key}"] = round(1e6 * percent / 100 * 12 / (watts / 12))
        supplies = numbers.stop
        lines[f"rail{number}.open_mv"] = round(1000 * rail["volts"])
        lines[f"rail{number}.supplies"] = ",".join(map(str, numbers))
        lines[f"rail{number}.gpus"] = ",".join(map(str, rail["gpus"]))
        if rail["base"]:
            lines[f"rail{number}.base_w"] = power["base_w"]
    return {"rails": len(power["rails"]), "supplies": supplies} | lines


def _from_catalogue(gpu: dict[str, Any], kind: str, fallback: dict[str, Any]) -> dict[str, Any]:
    """Returns the catalogue's values, and the lab's defaults for missing ones."""
    default, nvlink, idle = gpu["power_w"]["default"], gpu.get("nvlink") or {}, gpu["idle"]
    minimum, maximum = gpu["power_w"]["min"], gpu["power_w"]["max"]
    watts = {"default": default, "min": minimum or default / 2, "max": maximum or default}
    most = min(gpu["power_w"].get("peak") or FULL * default, FULL * default)
    bar1 = {} if kind != "datacentre" else {"bar1_mib": 1 << (gpu["memory_mib"] - 1).bit_length()}
    return _power(watts) | bar1 | _clocks(gpu, fallback) | {
        "name": gpu["name"],
        "arch": ARCHITECTURES[gpu["architecture"]],
        "compute_capability": gpu["compute_capability"],
        "pci_id": gpu["pci_ids"][0],
        "memory_mib": gpu["memory_mib"],
        "memory_gb_s": round(gpu["memory_bandwidth_gb_s"]),
        "power.idle_mw": round(1000 * (idle["power_w"] or default / 10)),
        "power.full_mw": round(1000 * most),
        "pstate_idle": int(idle["state"][1:]),
        "pcie.width_max": 16,
        "module_id": 1,
        "nvlinks": nvlink.get("links", 0),
        "nvlink_mb_s": round(1000 * nvlink.get("gb_s_per_link", 0)),
    }  # fmt: skip


def _clocks(gpu: dict[str, Any], fallback: dict[str, Any]) -> dict[str, Any]:
    """Returns the clocks with the library's keys."""
    clocks, verbs = gpu["clocks_mhz"], gpu["clock_verbs"]
    high, low, step = (clocks.get(key) or fallback[key] for key in ("graphics_max", "graphics_min", "graphics_step"))
    memory = clocks["memory"]
    application = clocks.get("default_application") if "application" in verbs else None
    if "application" in verbs and not application:
        application = {"memory": memory[0], "graphics": int(high)}
    listed = clocks.get("graphics_min") or "application" in verbs
    rests = memory[-1] if len(memory) > 1 or gpu["idle"]["state"] == "P0" else fallback["memory_idle"]
    span = f"{high}-{low}/{step}"
    return {
        "clock.graphics_max": int(high),
        "clock.graphics_min": int(low),
        "clock.graphics_idle": int(low),
        "clock.memory_max": memory[0],
        "clock.memory_idle": rests,
        "clock.video_max": int(high * 0.9),
        "clock.video_idle": int(low),
        "clocks.supported": ";".join(f"{one}:{span}" for one in memory) if listed else "",
        "clocks.application_default": f"{application['memory']},{application['graphics']}" if application else "",
        "clocks.graphics_lockable": int("locked_graphics" in verbs),
        "clocks.memory_lockable": int("locked_memory" in verbs),
    }


def _of_gpu(number: int, gpu: dict[str, Any], nodes: dict[int, Any], has_serial: bool) -> dict[str, Any]:
    """Returns the lines of one installed GPU: model, identity and overridden values."""
    plain = {key: gpu[key] for key in PER_GPU if key in gpu}
    if has_serial and "serial" in gpu:
        plain["serial"] = gpu["serial"]
    if gpu.get("numa_node") in nodes:
        plain["root_bus"] = nodes[gpu["numa_node"]]["root"]
    if str(gpu.get("position", "")).startswith("SXM"):
        plain["module_id"] = number + 1
    values: dict[str, Any] = gpu.get("values", {})
    return {"model": gpu["model"]} | plain | _power(gpu.get("power_w", {})) | values


def _power(watts: dict[str, float]) -> dict[str, int]:
    return {f"power.{key}_mw": round(1000 * value) for key, value in watts.items()}
