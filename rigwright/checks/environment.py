"""Software problems of NCCL: settings left in files, and stuck threads of the driver."""

from __future__ import annotations

from collections.abc import Iterator

from rigwright.catalogue import Rig
from rigwright.checks import Finding, check, of_symptom
from rigwright.facts import Facts, driver
from rigwright.facts.gpu import gpus as gpu
from rigwright.facts.nccl import p2p_test as nccl

FULL_PERCENT = 80
"""From this share of a CPU on a thread of the driver is stuck (assumed)."""


@check()
def clean(facts: Facts, *, rig: Rig | None = None) -> Iterator[Finding]:
    """No file that programs read at their start (nccl.conf, environment, profile.d, ...) disables a transport of NCCL.
    Other settings of NCCL are reported."""
    settings = facts(nccl.settings)
    for setting in settings:
        if setting.switches_off:
            seen = f"{setting.where} sets {setting.name}={setting.value}{_cost(rig)}"
            yield of_symptom("nccl.p2p_disabled_by_hand", setting.name, seen, "not set", "catalogue")
    rest = [f"{setting.name}={setting.value} ({setting.where})" for setting in settings if not setting.switches_off]
    if rest:
        yield Finding("NCCL's variables", "info", ", ".join(rest))
    if not settings:
        yield Finding("NCCL's variables", "pass", "none set")


def _cost(rig: Rig | None) -> str:
    """The bandwidth that a pair of GPUs of this rig loses, by the catalogue; "" if it has no measured figures."""
    figures = dict(rig.bandwidth_gb_s) if rig else {}
    host = figures.pop("host", None)
    lower = f"{host:g}" if host else "the speed of host memory"
    return f", which reduces {max(figures.values()):g} GB/s between two GPUs to {lower}" if figures else ""


@check()
def not_stalled(facts: Facts) -> Iterator[Finding]:
    """No kernel thread of the driver (nv_queue, irq/N-nvidia) uses a whole CPU, which stalls NCCL."""
    running, holders = facts.all(driver.busy_threads, gpu.holders)
    working = [entry for entry in holders if entry.works]
    busy = [entry for entry in running if entry.percent >= FULL_PERCENT]
    for entry in busy:
        names = ", ".join(sorted({holder.name for holder in working})) or "no program"
        seen = f"{entry.name} uses {entry.percent} % of a CPU, {names} on the GPUs"
        verdict = "fail" if working else "warn"
        yield of_symptom("nccl.stalled_queue", entry.name, seen, verdict=verdict)  # type: ignore[arg-type]
    if not busy:
        yield Finding("the driver's threads", "pass", "none is stuck")
