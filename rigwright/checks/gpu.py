"""The GPUs: all there, on the driver, and held to their limits by NVML's own word."""

from __future__ import annotations

from collections.abc import Iterator

from rigwright import catalogue
from rigwright.checks import Finding
from rigwright.errors import HostError
from rigwright.facts import Facts, gpu, pci
from rigwright.wanted import Limits
from rigwright.yamlfile import did_you_mean


def present(facts: Facts, *, rig: str) -> Iterator[Finding]:
    """The bus and nvidia-smi show as many GPUs as the rig has, of its models."""
    if rig not in catalogue.rigs():
        known = ", ".join(catalogue.rigs())
        raise HostError("rig", f"unknown rig '{rig}'{did_you_mean(rig, catalogue.rigs())}", f"one of {known}")
    wanted = catalogue.rig(rig, "rig").gpus
    bus, seen = facts.all(pci.gpus, gpu.gpus)
    enough = len(bus) == len(seen) == len(wanted)
    fix = (
        ""
        if enough
        else "power off, reseat the GPU that is missing, check its power; sudo lshw -C display counts them without a driver"
    )
    text = f"{len(bus)} on the bus, {len(seen)} in nvidia-smi"
    yield Finding("gpu.present", "GPUs", "pass" if enough else "fail", text, f"{len(wanted)} ({rig})", "", fix)
    for one in bus:
        model = catalogue.model_of(one.device_id)
        if model is None:
            seen_id = f"unknown model 10de:{one.device_id}"
            yield Finding(
                "gpu.present", one.bus_id, "info", seen_id, "a described model", "", "add a file to catalogue/gpus/"
            )
        elif model.key not in wanted:
            yield Finding(
                "gpu.present",
                one.bus_id,
                "warn",
                model.name,
                f"a model of {rig}",
                "another card is in this position",
                "",
            )


def limits_in_force(facts: Facts, *, limits: Limits) -> Iterator[Finding]:
    """NVML itself reports the wanted persistence, power limit and application clocks for every GPU."""
    found = facts(gpu.nvml)["gpus"]
    if not found:
        yield Finding("gpu.limits_in_force", "GPUs", "fail", "NVML sees none", "GPUs", "", "lspci -nn -d 10de:")
    for one in found:
        if one["errors"].get("gpu"):
            fix = "reboot; if it comes back so, power off and reseat it"
            yield Finding(
                "gpu.limits_in_force", f"GPU {one['index']}", "fail", one["errors"]["gpu"], "an answer", "", fix
            )
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
        subject = f"GPU {one['index']} {one['pci_bus_id'].lower().removeprefix('0000')}"
        fix = "" if right else "invoke limits"
        yield Finding(
            "gpu.limits_in_force", subject, "pass" if right else "fail", ", ".join(seen), ", ".join(wanted), "", fix
        )


def _on(state: bool | None) -> str:
    return {True: "on", False: "off", None: "unknown"}[state]
