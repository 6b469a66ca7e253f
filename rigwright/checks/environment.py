"""What stands in the way of NCCL without a fault of the hardware: leftovers of earlier repairs, and the driver's stuck threads."""

from __future__ import annotations

from collections.abc import Iterator

from rigwright.catalogue import Rig
from rigwright.checks import Finding, of_symptom
from rigwright.facts import Facts, gpu, p2p, threads

FULL_PERCENT = 80


def clean(facts: Facts, *, rig: Rig | None = None) -> Iterator[Finding]:
    """No file that programs read at their start (nccl.conf, environment, profile.d, ...) switches NCCL's ways off; others are told."""
    found = facts(p2p.settings)
    for one in found:
        if one.switches_off:
            seen = f"{one.where} sets {one.name}={one.value}{_cost(rig)}"
            yield of_symptom("nccl.p2p_disabled_by_hand", "environment.clean", one.name, seen, "not set", "catalogue")
    rest = [f"{one.name}={one.value} ({one.where})" for one in found if not one.switches_off]
    if rest:
        yield Finding("environment.clean", "NCCL's variables", "info", ", ".join(rest))
    if not found:
        yield Finding("environment.clean", "NCCL's variables", "pass", "none set")


def _cost(rig: Rig | None) -> str:
    """What a pair of this rig gives up, by the catalogue's measured figures."""
    figures = dict(rig.bandwidth_gb_s) if rig else {}
    host = figures.pop("host", None)
    best = max(figures.values(), default=None)
    if best is None:
        return ""
    left = f" for {host:g}" if host else " for the way through host memory"
    return f", which gives up {best:g} GB/s between two GPUs{left}"


def not_stalled(facts: Facts) -> Iterator[Finding]:
    """No kernel thread of the driver (nv_queue, irq/N-nvidia) uses a whole CPU while programs hold the GPUs: NCCL stands still then."""
    running, holders = facts.all(threads.busy, gpu.holders)
    working = [one for one in holders if one.works]
    busy = [one for one in running if one.percent >= FULL_PERCENT]
    for one in busy:
        names = ", ".join(sorted({holder.name for holder in working})) or "no program"
        seen = f"{one.name} uses {one.percent} % of a CPU, {names} on the GPUs"
        verdict = "fail" if working else "warn"
        yield of_symptom("nccl.stalled_queue", "environment.not_stalled", one.name, seen, verdict=verdict)  # type: ignore[arg-type]
    if not busy:
        yield Finding("environment.not_stalled", "the driver's threads", "pass", "none is stuck")
