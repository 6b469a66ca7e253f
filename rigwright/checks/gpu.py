"""The GPUs: all there, on the driver, and held to their limits by NVML's own word."""

from __future__ import annotations

from collections.abc import Iterator

from rigwright import catalogue
from rigwright.catalogue import Rig
from rigwright.checks import Finding, Verdict
from rigwright.choices import counted, counted_of, unknown_model
from rigwright.facts import Facts, gpu, pci
from rigwright.positions import called, place
from rigwright.typed import BusId
from rigwright.wanted import Limits


def present(facts: Facts, *, rig: Rig, slots: dict[BusId, str] | None = None) -> Iterator[Finding]:
    """The bus shows the GPUs that the rig has, model by model, and every named position has its own; needs no driver."""
    bus = facts(pci.gpus)
    models = {one.bus_id: catalogue.model_of(one.device_id) for one in bus}
    wanted, there = counted_of(rig), counted(models.values())
    same = wanted == there
    fix = ""
    if not same:
        other = f"the rig of this machine is another than {rig.key}: invoke explain {rig.key}"
        fix = _RESEAT if len(bus) < len(rig.models) else other
    yield Finding("gpu.present", "GPUs", "pass" if same else "fail", there, f"{wanted} ({rig.key})", "", fix)
    named = slots or rig.slots
    for bus_id, position in named.items():
        at = place(bus_id, named)
        model = models.get(bus_id)
        if bus_id not in models:
            yield Finding("gpu.present", at, "fail", "no GPU", catalogue.model(rig.gpus[position]).label, "", _RESEAT)
        elif model and model.key != rig.gpus[position]:
            name = catalogue.model(rig.gpus[position]).label
            yield Finding("gpu.present", at, "warn", model.label, name, "another card is in this position", "")
    for one in bus:
        if models[one.bus_id] is None:
            at, found = place(one.bus_id, named), unknown_model(one.device_id)
            yield Finding("gpu.present", at, "info", found, "a described model", "", "CONTRIBUTING.md says how")


_RESEAT = (
    "power off, reseat the GPU that is missing, check its power; sudo lshw -C display counts them without a driver"
)


def answering(facts: Facts, *, slots: dict[BusId, str] | None = None) -> Iterator[Finding]:
    """Every GPU on the bus answers the driver: nvidia-smi lists it."""
    bus, seen = facts.all(pci.gpus, gpu.gpus)
    listed = {one.bus_id for one in seen}
    silent = [one.bus_id for one in bus if one.bus_id not in listed]
    if not silent:
        verdict: Verdict = "pass" if bus else "fail"
        yield Finding(
            "gpu.answering", "GPUs", verdict, f"{len(seen)} in nvidia-smi", f"{len(bus)}, as on the bus", "", ""
        )
    for bus_id in silent:
        fix = "sudo dmesg | grep -e NVRM -e Xid, then invoke explain 'ITS TEXT'"
        yield Finding(
            "gpu.answering",
            place(bus_id, slots),
            "fail",
            "not in nvidia-smi",
            "listed",
            "on the bus, without an answer",
            fix,
        )


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
