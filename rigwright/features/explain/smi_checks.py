"""Findings from the text that nvidia-smi prints for people. A playbook names none of them: `explain -` calls them."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
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
"""From this utilization in one of LOADED_STATES a PCIe link must run at its full speed (assumed)."""
_LOST = ("ERR!", "Unknown Error", "GPU is lost", "[GPU is lost]", "[Unknown Error]", "[GPU requires reset]")


def of_row(row: Row, table: Table) -> Iterator[Finding]:
    """What is wrong with a GPU of the table, and what is worth knowing of it (info)."""
    at = f"GPU {row.index}"
    unread = [cell for cell in row.cells if cell in _LOST]
    if row.name in _LOST or len(unread) >= 4:
        yield of_symptom("gpu.off_bus", at, f"{unread[0] if unread else row.name} in its cells", "", "host")
        return
    if unread:
        names = ("fan", "temperature", "state", "power", "power limit", "ECC errors", "utilization")
        broken = [name for name, cell in zip(names, row.cells, strict=True) if cell in _LOST]
        yield of_symptom("gpu.sensor_error", at, f"{unread[0]} for {', '.join(broken)}", "", "host")
    if row.ecc.isdecimal() and int(row.ecc):
        yield of_symptom(
            "ecc.uncorrectable", at, f"{row.ecc} uncorrected errors since the driver was loaded", "none", "host"
        )
    degrees = row.temperature.removesuffix("C").strip()
    if degrees.isdecimal() and int(degrees) >= HOT_C:
        fix = "nvidia-smi -q -d TEMPERATURE,PERFORMANCE shows its threshold and whether it slows down; more air, a lower power limit"
        yield Finding(
            at, "warn", f"{degrees} C", f"below {HOT_C} C", "Most GPUs slow down between 87 and 97 C.", fix, "catalogue"
        )
    yield from _held_memory(at, row, table)
    yield from _settings(at, row.name, _watts(row.power_limit), row.persistence == "Off", row.mig == "Enabled")
    if "SXM2" in row.name and row.state == "P0" and row.utilization == "0%":
        yield of_symptom("power.idle_p0", at, f"P0 and {row.power} without load", "", "catalogue")


def _held_memory(at: str, row: Row, table: Table) -> Iterator[Finding]:
    held = row.used_mib or 0
    if table.processes is None or table.processes.get(row.index) or held < HELD_MIB or row.mig == "Enabled":
        return
    cause = (
        "A process that this nvidia-smi cannot name holds it: it runs outside of the container in which the table was printed, "
        "or it was killed and cannot end."
    )
    fix = "on the host: sudo fuser -v /dev/nvidia*; a process in state D or Z that does not end needs a reboot"
    yield Finding(at, "warn", f"{held} MiB are used, and no process is listed", "", cause, fix)


def _settings(at: str, name: str, limit_w: float | None, without_persistence: bool, mig: bool) -> Iterator[Finding]:
    """Settings that are not wrong: limits below the model's default, no persistence, MIG."""
    if without_persistence:
        yield Finding(
            at, "info", "persistence mode is off", "", "Limits and clocks may be gone when the last program ends."
        )
    if mig:
        yield Finding(
            at,
            "info",
            "MIG is on",
            "",
            "Programs see slices of the GPU (nvidia-smi mig -lgi), and NCCL has no peers between them.",
        )
    default_w = _default_w(name) if limit_w is not None else None
    if limit_w is not None and default_w is not None and limit_w < default_w:
        seen = f"the power limit is {limit_w:g} W"
        cause = f"The default of the model is {default_w:g} W; a boot sets it back unless something applies the limit again."
        yield Finding(at, "info", seen, f"{default_w:g} W", cause)


@lru_cache(maxsize=64)
def _default_w(name: str) -> float | None:
    """The default power limit of the model with a name; None if the catalogue does not describe it."""
    models = gpus_named(name)
    return catalogue.model(models[0]).power_w.default if models else None


def _watts(word: str) -> float | None:
    digits = word.removesuffix("W").strip()
    return float(digits) if digits.replace(".", "", 1).isdecimal() else None


_CHECKS: tuple[Callable[..., Iterator[Finding]], ...] = (health.recovered, health.memory, health.not_throttled)


def of_query(gpu: QueryGpu) -> Iterator[Finding]:
    """What is wrong with a GPU of `nvidia-smi -q`, and what is worth knowing of it (info)."""
    card, at = gpu.card, gpu.card.bus_id
    if card.lost and not card.recovery_action:
        yield of_symptom("gpu.off_bus", at, card.lost, "", "host")
        return
    facts = FactStore({gpu_health.cards: (card,)})
    for check in _CHECKS:
        try:
            yield from (finding for finding in check(facts) if finding.verdict != "pass")
        except Unavailable:
            continue
    yield from _link(gpu)
    without_persistence = gpu.values.get("persistence_mode") == "Disabled"
    yield from _settings(at, "", None, without_persistence, bool(card.mig))
    limit_w, default_w = card.power_limit_w, card.power_default_w
    if limit_w is not None and default_w is not None and limit_w < default_w:
        cause = "A boot sets it back unless something applies the limit again."
        yield Finding(at, "info", f"the power limit is {limit_w:g} W of {default_w:g} W by default", "", cause)


def _link(gpu: QueryGpu) -> Iterator[Finding]:
    """The PCIe link of a GPU under load; at idle a slower link is normal."""
    card, at = gpu.card, gpu.card.bus_id
    if card.state not in LOADED_STATES or (card.utilization_percent or 0) < LOADED_PERCENT:
        return
    if card.width and card.width_max and card.width < card.width_max:
        yield of_symptom(
            "pcie.narrow", at, f"x{card.width} of x{card.width_max} under load", f"x{card.width_max}", "host"
        )
    most = gpu.values.get("pci/gpu_link_info/pcie_generation/max", "")
    if card.generation and most.isdecimal() and card.generation < int(most):
        yield of_symptom(
            "pcie.slow", at, f"generation {card.generation} of {most} under load ({card.state})", most, "host"
        )


def of_versions(driver: str, cuda: str, today: datetime.date) -> Iterator[str]:
    """What the catalogue knows of the driver's release and of the CUDA version beside it, one sentence each."""
    branch = catalogue.branches().get(driver.partition(".")[0])
    if branch:
        ended = f", support {'ended on' if branch.eol < today else 'until'} {branch.eol}" if branch.eol else ""
        unknown = "" if driver in branch.versions else "; a release that the catalogue does not list"
        yield f"driver {driver}: {branch.kind} branch{ended}{unknown} (invoke explain {branch.name})"
    elif driver[:1].isdecimal():
        yield f"driver {driver}: the catalogue knows no such branch"
    if cuda[:1].isdecimal():
        yield f"CUDA {cuda} is the newest that this driver supports, not an installed toolkit (invoke explain cuda-versions)"
