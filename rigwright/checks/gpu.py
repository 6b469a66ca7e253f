"""The GPUs: present on the PCI bus, answering the driver, and at their limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from rigwright import catalogue
from rigwright.catalogue import Rig
from rigwright.catalogue.gpus import setting_names
from rigwright.catalogue.summary import counted, counted_of, not_described, unknown_model
from rigwright.checks import Finding, Verdict, check, of_symptom
from rigwright.core import features, schema
from rigwright.core.desired import Ecc, GpuLimits, Limits
from rigwright.core.gpu_labels import gpu_label, place
from rigwright.core.mig import Mig, words
from rigwright.core.schema import BusId
from rigwright.driver.start_failure import StartFailure, StartFailures, start_failures
from rigwright.facts import Facts, pci, systemd as units
from rigwright.facts.gpu import gpus as gpu, mig as instances
from rigwright.facts.gpu.gpus import Gpu
from rigwright.facts.gpu.nvidia_smi import NoGpus
from rigwright.facts.systemd import GUARD_UNIT


@check()
def present(facts: Facts, *, rig: Rig, slots: dict[BusId, str] | None = None) -> Iterator[Finding]:
    """The PCI bus has the GPUs of the rig, and every position has the rig's model. Needs no driver."""
    bus = facts(pci.gpus)
    models = {device.bus_id: catalogue.model_of(device.device_id) for device in bus}
    wanted, there = counted_of(rig), counted(models.values())
    by = f"{wanted} ({rig.key})"
    if wanted == there:
        yield Finding("GPUs", "pass", there, by, source="rig")
    elif len(bus) < len(rig.models):
        yield of_symptom("gpu.missing", "GPUs", f"{there}, the others not on the PCI bus", by, "rig")
    else:
        other = f"the rig of this machine is another than {rig.key}: invoke explain {rig.key}"
        yield Finding("GPUs", "fail", there, by, "", other, "rig")
    for bus_id, position in (slots or {}).items():
        at = place(bus_id, slots)
        model, label = models.get(bus_id), catalogue.model(rig.gpus[position]).label
        if bus_id not in models:
            yield of_symptom("gpu.missing", at, "not on the PCI bus", label, "rig")
        elif model and model.key != rig.gpus[position]:
            cause, fix = (
                "another card is in this position",
                "put the cards into the slots of the rig; or invoke init --host HOST --update",
            )
            yield Finding(at, "warn", model.label, label, cause, fix, "rig")
    for device in bus:
        model = models[device.bus_id]
        if model is None or not model.described:
            text = not_described(model) if model else unknown_model(device.device_id)
            at = place(device.bus_id, slots)
            yield Finding(at, "info", text, "a described model", "", "docs/develop/gpu.md says how", "catalogue")


@check(follows=("gpu.", "module.", "power.", "run."))
def answering(facts: Facts, *, slots: dict[BusId, str] | None = None) -> Iterator[Finding]:
    """Every GPU on the bus answers the driver: nvidia-smi lists it. For a GPU that the driver could not start, the
    finding has the driver's sentences in the kernel log."""
    seen: Sequence[Gpu] = ()
    none: NoGpus | None = None
    try:
        bus, seen = facts.all(pci.gpus, gpu.gpus)
    except NoGpus as reason:
        bus, none = facts(pci.gpus), reason
    answers = {device.bus_id for device in seen if not device.lost}
    lost = {device.bus_id: device.lost for device in seen}
    silent = [device.bus_id for device in bus if device.bus_id not in answers]
    failures = start_failures(facts) if silent else StartFailures(())
    if none and not any(map(failures.of, silent)):
        raise none
    if not silent:
        verdict: Verdict = "pass" if bus else "fail"
        wanted = f"{len(bus)}, as on the bus"
        yield Finding("GPUs", verdict, f"{len(answers)} in nvidia-smi", wanted, source="host")
    for bus_id in silent:
        words, at = lost.get(bus_id, ""), place(bus_id, slots)
        failure = failures.of(bus_id)
        if failure and (failure.symptom or not words):
            yield _not_started(at, f"{words or 'not in nvidia-smi'}: {failure.said}", failure)
        elif words:
            yield of_symptom("gpu.off_bus", at, words, "an answer", "host")
        else:
            fix = "sudo dmesg | grep -e NVRM -e Xid, then invoke explain 'ITS TEXT'"
            cause = "on the PCI bus, but the driver does not list it"
            yield Finding(at, "fail", "not in nvidia-smi", "an answer", cause, fix, "host")


def _not_started(at: str, seen: str, failure: StartFailure) -> Finding:
    """The finding for a GPU that the driver could not start."""
    if failure.symptom:
        return of_symptom(failure.symptom, at, seen, "an answer", "host", verdict="fail")
    cause = "the driver could not start it, in words that the catalogue does not know"
    return Finding(at, "fail", seen, "an answer", cause, failure.fix, "host")


@check(follows=("gpu.", "module.", "run."))
def limits_in_force(
    facts: Facts, *, limits: Limits, slots: dict[BusId, str] | None = None, guard: Any = None
) -> Iterator[Finding]:
    """NVML reports the wanted persistence, power limit and application clocks for every GPU. No driver reports locked
    clocks, so the program's record of this boot and driver load counts. A GPU without application clocks passes
    without them. If the host's guard lowered a power limit in this boot, the finding says when."""
    guards = features.part("guard", "facts") if guard else None
    answer, bus, *more = facts.all(gpu.nvml, pci.gpus, *((guards.state,) if guards else ()))
    guarded = more[0] if more else None
    models = {device.bus_id: catalogue.model_of(device.device_id) for device in bus}
    devices = answer["gpus"]
    if not devices:
        failures = start_failures(facts)
        failed = [(device.bus_id, failure) for device in bus if (failure := failures.of(device.bus_id))]
        for at, failure in failed:
            yield _not_started(place(at, slots), f"NVML sees none: {failure.said}", failure)
        if not failed:
            on_bus = f"{len(bus)} on the PCI bus, and the kernel log has no sentence of the driver about them"
            fix = "lspci -nnk -d 10de:; sudo dmesg | grep NVRM"
            yield Finding("GPUs", "fail", "NVML sees none", "GPUs", on_bus, fix)
    for device in devices:
        uuid = device["uuid"] or ""
        bus_id = schema.bus_id(device["pci_bus_id"] or str(device.get("place") or "").rpartition(" ")[2])
        subject = gpu_label(bus_id, uuid, slots) or f"GPU {device['index']}, at an unknown position"
        if device["errors"].get("gpu"):
            fix = "reboot; if it happens again, power off and reseat the card"
            yield Finding(subject, "fail", device["errors"]["gpu"], "an answer", "", fix)
            continue
        wanted = limits.of(*setting_names(models.get(bus_id), bus_id, uuid, slots))
        reason = str(device["errors"].get("application_clocks", ""))  # NVML: this GPU, or its driver, has none
        left_out = wanted.application_clocks is not None and (reason == "Not Supported" or "deprecated" in reason)
        if left_out:
            wanted = replace(wanted, application_clocks=None)
        pairs = list(_compared(device, wanted))
        right = all(seen == want for seen, want in pairs)
        reported, meant = (", ".join(words) for words in zip(*pairs, strict=True)) if pairs else ("left alone", "")
        verdict: Verdict = "pass" if right else "fail"
        if left_out:
            reported += "; it has no application clocks, and they are left out"
        lowered = None if right or guarded is None else guarded.lowered(bus_id, device["power_limit_w"])
        cause = f"{GUARD_UNIT} lowered the power limit at {guarded.clock(lowered)}" if guarded and lowered else ""
        fix = "invoke verify --tags guard, which says why; then invoke limits" if lowered else "invoke limits"
        yield Finding(subject, verdict, reported, meant, cause, fix, "inventory")


@check(follows=("gpu.", "module.", "run."))
def ecc_in_force(facts: Facts, *, ecc: Ecc, slots: dict[BusId, str] | None = None) -> Iterator[Finding]:
    """ECC of each GPU is on or off as in the inventory, now and after the next boot. A GPU without ECC counts as
    off."""
    modes, bus = facts.all(gpu.ecc_modes, pci.gpus)
    models = {device.bus_id: catalogue.model_of(device.device_id) for device in bus}
    for mode in modes:
        want = ecc.of(*setting_names(models.get(mode.bus_id), mode.bus_id, mode.uuid, slots))
        name = gpu_label(mode.bus_id, mode.uuid, slots)
        if want is None:
            yield Finding(name, "info", f"ECC {_on(mode.current)}", "left alone", source="inventory")
            continue
        seen = mode.lost or ("has no ECC" if mode.current is None else f"ECC {_on(mode.current)}")
        later = mode.pending is not None and mode.pending != mode.current
        seen += f", {_on(mode.pending)} from the next boot on" if later else ""
        right = not mode.lost and bool(mode.current) == want and not later
        cause = "the mode that is set waits for a boot" if later and mode.pending == want else ""
        fix = "invoke provision" if mode.current is not None else "take it out of `ecc`"
        yield Finding(name, "pass" if right else "fail", seen, f"ECC {_on(want)}", cause, fix, "inventory")


@check(follows=("gpu.", "module.", "run."))
def mig_in_force(facts: Facts, *, mig: Mig, slots: dict[BusId, str] | None = None) -> Iterator[Finding]:
    """Each GPU has the MIG mode and the instances of the inventory, and gpu-mig.service makes them at the next boot."""
    modes, bus, unit = facts.all(instances.modes, pci.gpus, units.unit(instances.UNIT))
    models = {device.bus_id: catalogue.model_of(device.device_id) for device in bus}
    there = facts(instances.layouts) if any(mode.current for mode in modes) else {}
    for mode in modes:
        name = gpu_label(mode.bus_id, mode.uuid, slots)
        layout = mig.of(*setting_names(models.get(mode.bus_id), mode.bus_id, mode.uuid, slots))
        now = words(there.get(mode.bus_id, ())) if mode.current else "off"
        now = "on, without instances" if mode.current and now == "off" else now
        if layout is None:
            yield Finding(name, "info", f"MIG {now}", "left alone", source="inventory")
            continue
        seen = mode.lost or ("has no MIG" if mode.current is None else f"MIG {now}")
        later = mode.pending is not None and mode.pending != mode.current
        seen += f", {_on(mode.pending)} from the next boot on" if later else ""
        right = not mode.lost and not later and now == words(layout)
        fix = "invoke provision" if mode.current is not None else "take it out of `mig`"
        yield Finding(name, "pass" if right else "fail", seen, f"MIG {words(layout)}", "", fix, "inventory")
    if unit.enabled != "enabled" or unit.active == "failed":
        cause = "no boot makes the instances again" if unit.enabled != "enabled" else ""
        fix = f"journalctl -u {instances.UNIT}; then invoke provision"
        yield Finding(instances.UNIT, "fail", f"{unit.at_boot}, {unit.active}", "enabled, active", cause, fix)


def _compared(device: dict[str, Any], wanted: GpuLimits) -> Iterator[tuple[str, str]]:
    """For each limit that is wanted: the value in force and the wanted one, in the same words."""
    if wanted.persistence is not None:
        yield f"persistence {_on(device['persistence'])}", f"persistence {_on(wanted.persistence)}"
    if wanted.power_limit_w is not None:
        now = device["power_limit_w"]
        yield f"{now:g} W" if now is not None else "power unknown", f"{wanted.power_limit_w:g} W"
    if wanted.application_clocks is not None:
        clocks = device["application_clocks"] or {"memory_mhz": "?", "graphics_mhz": "?"}
        pair = wanted.application_clocks
        yield f"{clocks['memory_mhz']},{clocks['graphics_mhz']} MHz", f"{pair.memory_mhz},{pair.graphics_mhz} MHz"
    for kind, span in (("graphics", wanted.locked_graphics_mhz), ("memory", wanted.locked_memory_mhz)):
        if span is not None:
            locked = device.get(f"locked_{kind}_mhz")
            seen = f"{locked[0]}-{locked[1]} MHz" if locked else "not recorded"
            yield f"{kind} locked {seen}", f"{kind} locked {span[0]}-{span[1]} MHz"


def _on(state: bool | None) -> str:
    return {True: "on", False: "off", None: "unknown"}[state]
