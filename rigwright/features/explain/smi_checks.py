"""Findings from the text that nvidia-smi prints for people, for `explain -`; no playbook names these checks."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from functools import lru_cache

from rigwright import catalogue
from rigwright.catalogue.names import gpus_named
from rigwright.checks import Finding, health, of_symptom
from rigwright.checks.temperatures import HOT_C
from rigwright.facts import FactStore, Unavailable
from rigwright.facts.gpu import health as gpu_health
from rigwright.features.explain.smi_text import QueryGpu, Row, Table

HELD_MIB = 1024
"""From this much used memory a GPU without a process is reported (assumed: the driver itself uses some hundred MiB)."""
LOADED_STATES = ("P0", "P1", "P2", "P3")
LOADED_PERCENT = 10
"""From this utilization in one of LOADED_STATES a PCIe link must run at its full generation (assumed)."""
_LOST = ("ERR!", "Unknown Error", "GPU is lost", "[GPU is lost]", "[Unknown Error]", "[GPU requires reset]")


def of_row(row: Row, table: Table) -> Iterator[Finding]:
    """The problems of a GPU of the table, and remarks about it (info)."""
    at = f"GPU {row.index}"
    unread = {name: cell for name, cell in row.readings.items() if cell in _LOST}
    error = next(iter(unread.values()), row.name)
    if row.name in _LOST or len(unread) >= 4:
        yield of_symptom("gpu.off_bus", at, f"{error} in its cells", "", "host")
        return
    if unread:
        yield of_symptom("gpu.sensor_error", at, f"{error} for {', '.join(unread)}", "", "host")
    if row.ecc.isdecimal() and int(row.ecc):
        seen = f"{row.ecc} uncorrected errors since the driver was loaded"
        yield of_symptom("ecc.uncorrectable", at, seen, "none", "host")
    degrees = row.temperature.removesuffix("C").strip()
    if degrees.isdecimal() and int(degrees) >= HOT_C:
        cause = "Most GPUs slow down between 87 and 97 C."
        fix = (
            "nvidia-smi -q -d TEMPERATURE,PERFORMANCE shows its threshold and whether it slows down; more air, a lower"
            " power limit"
        )
        yield Finding(at, "warn", f"{degrees} C", f"below {HOT_C} C", cause, fix, "catalogue")
    held_mib, mig = row.used_mib or 0, row.mig == "Enabled"
    if table.processes is not None and not table.processes.get(row.index) and held_mib >= HELD_MIB and not mig:
        cause = (
            "A process that this nvidia-smi cannot name holds it: it runs outside of the container in which the table"
            " was printed, or it was killed and cannot end."
        )
        fix = "on the host: sudo fuser -v /dev/nvidia*; a process in state D or Z that does not end needs a reboot"
        yield Finding(at, "warn", f"{held_mib} MiB are used, and no process is listed", "", cause, fix)
    yield from _settings(at, row.persistence == "Off", mig)
    limit = row.power_limit.removesuffix("W").strip()
    default_w = _default_w(row.name)
    if default_w is not None and limit.replace(".", "", 1).isdecimal() and float(limit) < default_w:
        cause = f"The default of the model is {default_w:g} W"
        cause += "; a boot sets it back unless something applies the limit again."
        yield Finding(at, "info", f"the power limit is {float(limit):g} W", f"{default_w:g} W", cause)
    if "SXM2" in row.name and row.state == "P0" and row.utilization == "0%":
        yield of_symptom("power.idle_p0", at, f"P0 and {row.power} without load", "", "catalogue")


def _settings(at: str, without_persistence: bool, mig: bool) -> Iterator[Finding]:
    """Settings that are not wrong: no persistence mode, MIG."""
    if without_persistence:
        cause = "Limits and clocks may be gone when the last program ends."
        yield Finding(at, "info", "persistence mode is off", "", cause)
    if mig:
        cause = "Programs see slices of the GPU (nvidia-smi mig -lgi), and NCCL has no peers between them."
        yield Finding(at, "info", "MIG is on", "", cause)


@lru_cache(maxsize=64)
def _default_w(name: str) -> float | None:
    """The default power limit of the model with a name; None if the catalogue does not describe it."""
    models = gpus_named(name)
    return catalogue.model(models[0]).power_w.default if models else None


def of_query(gpu: QueryGpu) -> Iterator[Finding]:
    """The problems of a GPU of `nvidia-smi -q`, and remarks about it (info)."""
    card, at = gpu.card, gpu.card.bus_id
    if card.lost and not card.recovery_action:
        yield of_symptom("gpu.off_bus", at, card.lost, "", "host")
        return
    facts = FactStore({gpu_health.cards: (card,)})
    for check in (health.recovered, health.memory, health.not_throttled):
        try:
            yield from (finding for finding in check(facts) if finding.verdict != "pass")
        except Unavailable:
            continue
    yield from _link(gpu)
    yield from _settings(at, gpu.values.get("persistence_mode") == "Disabled", bool(card.mig))
    limit_w, default_w = card.power_limit_w, card.power_default_w
    if limit_w is not None and default_w is not None and limit_w < default_w:
        cause = "A boot sets it back unless something applies the limit again."
        yield Finding(at, "info", f"the power limit is {limit_w:g} W of {default_w:g} W by default", "", cause)


def _link(gpu: QueryGpu) -> Iterator[Finding]:
    """The PCIe link of a GPU. Its generation falls at idle, which is normal; the number of lanes does not change."""
    card, at = gpu.card, gpu.card.bus_id
    if card.width and card.width_max and card.width < card.width_max:
        seen = f"x{card.width} of x{card.width_max}"
        yield of_symptom("pcie.narrow", at, seen, f"x{card.width_max}", "host")
    if card.state not in LOADED_STATES or (card.utilization_percent or 0) < LOADED_PERCENT:
        return
    most = gpu.values.get("pci/gpu_link_info/pcie_generation/max", "")
    if card.generation and most.isdecimal() and card.generation < int(most):
        seen = f"generation {card.generation} of {most} under load ({card.state})"
        yield of_symptom("pcie.slow", at, seen, most, "host")


def of_versions(driver: str, cuda: str, today: datetime.date) -> Iterator[str]:
    """A sentence on the driver's release and one on the CUDA version, from the catalogue."""
    branch = catalogue.branches().get(driver.partition(".")[0])
    if branch:
        unknown = "" if driver in branch.versions else "; a release that the catalogue does not list"
        yield f"driver {driver}: {branch.support(today)}{unknown} (invoke explain {branch.name})"
    elif driver[:1].isdecimal():
        yield f"driver {driver}: the catalogue knows no such branch"
    if cuda[:1].isdecimal():
        text = f"CUDA {cuda} is the newest that this driver supports, not an installed toolkit"
        yield f"{text} (invoke explain cuda-versions)"
