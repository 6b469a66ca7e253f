"""The GPUs: all there, on the driver, and held to their limits by NVML's own word."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rigwright import catalogue
from rigwright.catalogue import Rig
from rigwright.checks import Finding
from rigwright.choices import unknown_model
from rigwright.facts import Facts, gpu, pci
from rigwright.positions import called, place
from rigwright.typed import BusId
from rigwright.wanted import Limits


def present(facts: Facts, *, rig: Rig, slots: dict[BusId, str] | None = None) -> Iterator[Finding]:
    """The bus and nvidia-smi show the GPUs that the rig has, model by model; every named position has its own."""
    bus, seen = facts.all(pci.gpus, gpu.gpus)
    models = {one.bus_id: catalogue.model_of(one.device_id) for one in bus}
    wanted = Counter(catalogue.model(key).name for key in rig.models)
    there = Counter(model.name if model else "unknown" for model in models.values())
    enough = len(bus) == len(seen) and wanted == there
    fix = ""
    if not enough:
        fewer = len(bus) < len(rig.models) or len(seen) < len(bus)
        fix = (
            _RESEAT
            if fewer
            else f"the rig of this machine, in its variables ({rig.key} is another); invoke explain {rig.key}"
        )
    text = f"{_counted(there)} on the bus, {len(seen)} in nvidia-smi"
    yield Finding("gpu.present", "GPUs", "pass" if enough else "fail", text, f"{_counted(wanted)} ({rig.key})", "", fix)
    named = slots or rig.slots
    for bus_id, position in named.items():
        if bus_id not in models:
            yield Finding(
                "gpu.present", place(bus_id, named), "fail", "no GPU", "a GPU in every named position", "", _RESEAT
            )
        elif (model := models[bus_id]) and position in rig.gpus and model.key != rig.gpus[position]:
            name = catalogue.model(rig.gpus[position]).name
            yield Finding(
                "gpu.present", place(bus_id, named), "warn", model.name, name, "another card is in this position", ""
            )
    for one in bus:
        if models[one.bus_id] is None:
            found = unknown_model(one.device_id)
            yield Finding(
                "gpu.present",
                place(one.bus_id, named),
                "info",
                found,
                "a described model",
                "",
                "CONTRIBUTING.md says how",
            )


_RESEAT = (
    "power off, reseat the GPU that is missing, check its power; sudo lshw -C display counts them without a driver"
)


def _counted(models: Counter[str]) -> str:
    return ", ".join(f"{number} x {name}" for name, number in models.items()) or "none"


def limits_in_force(facts: Facts, *, limits: Limits, slots: dict[BusId, str] | None = None) -> Iterator[Finding]:
    """NVML itself reports the wanted persistence, power limit and application clocks for every GPU."""
    found = facts(gpu.nvml)["gpus"]
    if not found:
        yield Finding("gpu.limits_in_force", "GPUs", "fail", "NVML sees none", "GPUs", "", "lspci -nn -d 10de:")
    for one in found:
        bus_id = (one["pci_bus_id"] or "").lower()[-12:]
        subject = called(bus_id, one["uuid"] or "", slots) or f"GPU {one['index']}, which does not say where it is"
        if one["errors"].get("gpu"):
            fix = "reboot; if it comes back so, power off and reseat it"
            yield Finding("gpu.limits_in_force", subject, "fail", one["errors"]["gpu"], "an answer", "", fix)
            continue
        seen, wanted = [], []
        if limits.persistence is not None:
            seen.append(f"persistence {_on(one['persistence'])}")
            wanted.append(f"persistence {_on(limits.persistence)}")
        if limits.power_limit_w is not None:
            seen.append(f"{one['power_limit_w']:g} W" if one["power_limit_w"] is not None else "power unknown")
            wanted.append(f"{limits.power_limit_w:g} W")
        if limits.application_clocks is not None:
            now = one["application_clocks"] or {"memory_mhz": "?", "graphics_mhz": "?"}
            seen.append(f"{now['memory_mhz']},{now['graphics_mhz']} MHz")
            wanted.append(f"{limits.application_clocks.memory_mhz},{limits.application_clocks.graphics_mhz} MHz")
        right = seen == wanted
        fix = "" if right else "invoke limits"
        yield Finding(
            "gpu.limits_in_force", subject, "pass" if right else "fail", ", ".join(seen), ", ".join(wanted), "", fix
        )


def _on(state: bool | None) -> str:
    return {True: "on", False: "off", None: "unknown"}[state]
