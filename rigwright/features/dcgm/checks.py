"""DCGM: its host engine runs and knows the GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from rigwright.checks import Finding, check
from rigwright.core.gpu_labels import gpu_label
from rigwright.core.schema import BusId
from rigwright.facts import Facts, systemd as units
from rigwright.facts.gpu import gpus as gpu
from rigwright.features.dcgm import facts as manager


@check(follows=("gpu.", "module.", "run."))
def discovers(facts: Facts, *, dcgm: bool, slots: dict[BusId, str] | None = None) -> Iterator[Finding]:
    """nvidia-dcgm.service is enabled and runs, and `dcgmi discovery -l` names every GPU that nvidia-smi lists."""
    if not dcgm:
        yield Finding("DCGM", "info", "not wanted", source="inventory")
        return
    unit, gpus = facts.all(units.unit(manager.UNIT), gpu.gpus)
    if unit.enabled != "enabled" or unit.active != "active":
        fix = f"journalctl -u {manager.UNIT}; then invoke provision"
        yield Finding(manager.UNIT, "fail", f"{unit.at_boot}, {unit.active}", "enabled, active", "", fix)
        return
    known = facts(manager.discovered)
    lacking = [device for device in gpus if not device.lost and device.uuid not in known]
    cause, fix = "the host engine was started before this GPU answered", f"sudo systemctl restart {manager.UNIT}"
    for device in lacking:
        name = gpu_label(device.bus_id, device.uuid, slots)
        yield Finding(name, "fail", "not in dcgmi discovery -l", "every GPU", cause, fix, "host")
    if not lacking:
        seen, expected = f"{len(known)} GPUs in dcgmi discovery -l", f"{len(gpus)}, as in nvidia-smi"
        yield Finding("DCGM", "pass", seen, expected, source="host")
