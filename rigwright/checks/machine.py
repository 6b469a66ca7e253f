"""The machine around the GPUs: hardware lost since the last run, hardware errors, lshw, disk space, package state."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from rigwright import catalogue
from rigwright.catalogue import Rig
from rigwright.checks import Finding, check, of_symptom
from rigwright.core import lazy_re
from rigwright.core.gpu_labels import place
from rigwright.core.schema import BusId
from rigwright.core.shortening import first_of
from rigwright.driver.old_kernels import boot_room
from rigwright.facts import Facts, kernel_log, machine as machines, pci, system, systemd
from rigwright.facts.apt import dpkg
from rigwright.facts.machine import Past


def now(known: Facts) -> Past:
    """The host's memory, processors and GPUs, for the baseline."""
    machine, gpus = known.all(machines.machine, pci.gpus)
    sizes = (machine.memory_mib, machine.sockets, machine.threads)
    return Past(*sizes, machine.modules or (), tuple(f"{gpu.bus_id} {gpu.device_id}" for gpu in gpus))


ROUNDING = 0.02
"""Kernels reserve shares of the memory that differ by up to this (assumed)."""


@check()
def unchanged(
    facts: Facts, *, earlier: Past | None = None, rig: Rig | None = None, slots: dict[BusId, str] | None = None
) -> Iterator[Finding]:
    """The host has at least the memory, memory modules, processors and GPUs of its last good run, by the history.
    gpu.present reports missing GPUs at named positions of the rig."""
    here = now(facts)
    seen = f"{_memory(here)}, processors {_processors(here)}, {len(here.gpus)} GPUs"
    if earlier is None:
        yield Finding("machine", "info", f"{seen}; recorded for the next run")
        return
    lost = [*_sizes_lost(here, earlier)]
    there = [gpu.split()[0] for gpu in here.gpus]
    for bus_id, device_id in (gpu.split() for gpu in earlier.gpus):
        if bus_id not in there and not (rig and bus_id in (slots or {})):
            model, at = catalogue.model_of(device_id), place(bus_id, slots)
            lost.append(_lost("gpu.missing", at, "not on the PCI bus", model.label if model else f"10de:{device_id}"))
    yield from lost
    if not lost and len(here.gpus) >= len(earlier.gpus):
        yield Finding("machine", "pass", seen)


def _sizes_lost(here: Past, earlier: Past) -> Iterator[Finding]:
    """Findings for less memory, fewer or smaller memory modules, and fewer processors."""
    gone = sorted((Counter(earlier.modules) - Counter(here.modules)).elements()) if here.modules else []
    (modules, mib), (modules_then, mib_then) = _counted(here), _counted(earlier)
    less = here.memory_mib < earlier.memory_mib * (1 - ROUNDING)
    if less or (gone and (modules < modules_then or mib < mib_then)):
        slot = f"; missing: {', '.join(gone)}" if gone else ""
        yield _lost("machine.memory_lost", "memory", f"{_memory(here)}{slot}", _memory(earlier))
    if here.sockets < earlier.sockets or here.threads < earlier.threads:
        yield _lost("machine.processor_lost", "processors", _processors(here), _processors(earlier))


def _counted(past: Past) -> tuple[int, int]:
    """The number of memory modules and their total MiB."""
    sizes = [int(match[1]) for module in past.modules if (match := re.search(r" (\d+) MiB$", module))]
    return len(past.modules), sum(sizes)


def _lost(key: str, subject: str, seen: str, wanted: str) -> Finding:
    return of_symptom(key, subject, f"{seen}, less than in its last run", wanted, "past")


def _memory(past: Past) -> str:
    modules = f" in {len(past.modules)} modules" if past.modules else ""
    return f"{round(past.memory_mib / 1024)} GiB{modules}"


def _processors(past: Past) -> str:
    return f"{past.sockets} of {past.threads} threads" if past.sockets > 1 else f"{past.threads} threads"


@check()
def displays(facts: Facts, *, slots: dict[BusId, str] | None = None) -> Iterator[Finding]:
    """lshw lists every NVIDIA GPU of the PCI bus; it omits a GPU that fell off the bus. Needs no driver."""
    machine, gpus = facts.all(machines.machine, pci.gpus)
    if machine.displays is None:
        yield Finding("lshw", "unknown", "not installed", fix="sudo apt-get install lshw")
        return
    seen = [device for device in machine.displays if device.vendor.startswith("NVIDIA")]
    for device in gpus:
        if device.bus_id not in [display.address for display in seen]:
            at = place(device.bus_id, slots)
            yield of_symptom("gpu.off_bus", at, "not listed by lshw", "a display", "host")
    if len(seen) >= len(gpus):
        drivers = Counter(device.driver or "no driver" for device in seen)
        by = ", ".join(f"{number} with {name}" for name, number in drivers.items())
        if gpus:
            yield Finding("lshw -C display", "pass", by)
        else:
            fix = "lspci -nn -d 10de:; power off, reseat the GPU; firmware: Above 4G Decoding on"
            yield Finding("lshw -C display", "fail", by or "none", "an NVIDIA GPU", "", fix)


@check()
def room(facts: Facts, *, free_mib: dict[str, int]) -> Iterator[Finding]:
    """The disks have enough free space: `free_mib` has directories (/, /boot, /var, /usr, /run) and the MiB that must
    be free. The fix for a full /boot has the old kernels that can be removed."""
    free = facts(system.free_mib)
    short = {path: least for path, least in free_mib.items() if free.get(path, least) < least}
    for path, least in short.items():
        seen = f"{path} has {free[path]} MiB free, {least} MiB are needed"
        fix = boot_room(facts) if path == "/boot" else system.RUN_ROOM if path == "/run" else ""
        yield of_symptom("disk.full", path, seen, f"{least} MiB", "catalogue", fix=fix, names={"PATH": path})
    if not short:
        known = ", ".join(f"{path} {free[path]}" for path in free_mib if path in free)
        yield Finding("disks", "pass", f"{known} MiB free" if known else "no directory is configured")


@check()
def settled(facts: Facts) -> Iterator[Finding]:
    """No process holds a lock of apt or dpkg, and no package is half installed."""
    holders, audit = facts.all(dpkg.lock_holders, dpkg.dpkg_audit)
    for holder in holders:
        seen, names = f"locked by {holder.name} ({holder.pid})", {"PID": str(holder.pid)}
        yield of_symptom("apt.locked", "packages", seen, "free", "host", names=names)
    if audit:
        first = audit.splitlines()[0]
        yield of_symptom("apt.half_installed", "packages", first, "all configured", "host")
    if not holders and not audit:
        yield Finding("packages", "pass", "all configured, and no lock is held")


_UNITS = lazy_re.compile(r"systemd-modules-load|nvidia-[\w@.-]+|gpu-limits\S*|dkms|dcgm|nv-hostengine")


@check(follows=("run.", "driver.", "module.", "branch.", "secureboot.", "dkms.", "gpu.", "fm."))
def units(facts: Facts) -> Iterator[Finding]:
    """No systemd unit that loads modules, or belongs to the driver or to rigwright, has failed. Other failed units are
    information."""
    failed = facts(systemd.failed)
    ours = [name for name in failed if _UNITS.match(name)]
    others = [name for name in failed if name not in ours]
    for name in ours:
        fix = f"journalctl -b -u {name.removesuffix('.service')}, on the host"
        yield Finding(name, "warn", "failed", "not failed", "systemd calls the system degraded", fix, "host")
    if others:
        yield Finding("units", "info", f"failed: {first_of(others, 6)}", fix="systemctl --failed, on the host")
    if not failed:
        yield Finding("units", "pass", "none has failed", source="host")


@check()
def logged_errors(facts: Facts, *, slots: dict[BusId, str] | None = None) -> Iterator[Finding]:
    """Since the boot the kernel logged no errors of the main memory, no machine checks, no PCIe errors that the
    firmware recorded, and no access refused by the IOMMU."""
    lines = facts(kernel_log.kernel)
    errors, faults = kernel_log.hardware_errors(lines), kernel_log.iommu_faults(lines)
    records = kernel_log.pcie_records(lines)
    for of_memory, corrected in ((True, False), (False, False), (True, True), (False, True)):
        alike = [error for error in errors if (error.of_memory, error.corrected) == (of_memory, corrected)]
        if alike:
            parts = ", ".join(dict.fromkeys(error.part for error in alike if error.part))
            kind = "corrected" if corrected else "uncorrected"
            named = f" ({parts[:80]})" if parts else ""
            seen = f"{len(alike)} x {kind} since boot{named}: {alike[-1].text[:110]}"
            key = f"host.memory_{kind}" if of_memory else "host.machine_check"
            subject = "main memory" if of_memory else "machine checks"
            yield of_symptom(key, subject, seen, "none", "host", verdict="warn" if corrected else "fail")
    for address in dict.fromkeys(fault.bus_id for fault in faults):
        texts = [fault.text for fault in faults if fault.bus_id == address]
        seen = f"{len(texts)} x refused by the IOMMU since boot: {texts[-1][:110]}"
        at, names = place(address, slots) if address else "IOMMU", {"BUS_ID": address} if address else {}
        yield of_symptom("iommu.page_fault", at, seen, "none", "host", verdict="warn", names=names)
    for record, times in Counter(records).items():
        below = f"{record.bus_id[:5]}{record.bus_below or '?'}:"
        at = next((address for address in slots or {} if address.startswith(below)), BusId(record.bus_id))
        yield of_symptom(
            "pcie.record", place(at, slots), f"{times} x {record.text}", "none", "host", verdict=record.level
        )
    if not errors and not faults and not records:
        yield Finding("kernel log", "pass", "no memory errors, machine checks, PCIe records or IOMMU faults since boot")
