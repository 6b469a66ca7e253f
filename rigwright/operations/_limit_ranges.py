"""Whether a GPU supports its limits, by the ranges that it reports, and the nearest values that it does support."""

from __future__ import annotations

from collections.abc import Mapping

from rigwright.catalogue import Model
from rigwright.core.desired import Clocks, GpuLimits
from rigwright.core.errors import HostError
from rigwright.facts.gpu.gpus import ClockPair, Gpu, Locks

Supported = Mapping[str, tuple[ClockPair, ...]]
"""Per UUID the pairs of memory and graphics clocks that a GPU lists."""


def cannot(
    device: Gpu, name: str, want: GpuLimits, supported: Supported, model: Model | None, locks: Locks
) -> HostError | None:
    """The error for limits that a GPU does not support, with the nearest supported values. None when nothing speaks
    against them."""
    if device.lost:
        todo = "sudo dmesg | grep -e NVRM -e Xid; a cold boot, then reseat it"
        return HostError("limits", f"{name} cannot be reached: {device.lost}", "a GPU that answers", todo)
    title = f"{name} ({device.name})"
    pairs = supported.get(device.uuid, ())
    return (
        _power(device, title, want.power_limit_w)
        or (_clocks(device, title, pairs, want.application_clocks) if want.application_clocks else None)
        or _locked(device, title, "graphics", want.locked_graphics_mhz, pairs, model, locks)
        or _locked(device, title, "memory", want.locked_memory_mhz, pairs, model, locks)
    )


def in_their_place(title: str, wanted: Clocks, model: Model | None) -> str:
    """The text for a GPU without application clocks: the limit that does the same on it."""
    problem = f"{title} has no application clocks: they are left out for it"
    if model is not None and "locked_graphics" not in model.clock_verbs:
        return f"{problem}; power_limit_w works on it"
    low = model.clocks_mhz.graphics_min if model and model.clocks_mhz.graphics_min else 0
    return f"{problem}; locked_graphics_mhz: [{low:g}, {wanted.graphics_mhz}] limits its clock"


def outside_catalogue(title: str, model: Model, watts: int) -> HostError | None:
    """The error for a power limit outside the range of a model in the catalogue, W. None inside, or without a range."""
    least, most = model.power_w.min, model.power_w.max
    low, high = least is not None and watts < least, most is not None and watts > most
    if not (low or high):
        return None
    expected = (
        f"{least:g} to {most:g} W" if least and most else f"at least {least:g} W" if low else f"at most {most:g} W"
    )
    return HostError(
        "limits.power_limit_w",
        f"{watts} W is outside the range of {title}",
        f"{expected}, by the catalogue",
        f"power_limit_w: {least if low else most:g} is the nearest. A board that goes further reports it once its driver "
        "runs: invoke provision --tags packages,driver,boot, then the same command again",
    )


def _power(device: Gpu, title: str, watts: int | None) -> HostError | None:
    if watts is None:
        return None
    if device.power_min_w is None or device.power_max_w is None:
        problem = f"the power of {title} cannot be limited"
        return HostError(
            "limits.power_limit_w", problem, "a GPU that tells its range", "leave power_limit_w out for it"
        )
    if device.power_min_w <= watts <= device.power_max_w:
        return None
    nearest = device.power_min_w if watts < device.power_min_w else device.power_max_w
    return HostError(
        "limits.power_limit_w",
        f"{watts} W is not what {title} can be limited to",
        f"{device.power_min_w:g} to {device.power_max_w:g} W",
        f"power_limit_w: {nearest:g} is the nearest",
    )


def _clocks(device: Gpu, title: str, pairs: tuple[ClockPair, ...], wanted: Clocks) -> HostError | None:
    pair = ClockPair(wanted.memory_mhz, wanted.graphics_mhz)
    if device.application_clocks == pair:
        return None
    if not pairs:
        return HostError(
            "limits.application_clocks",
            f"{title} lists no clocks that it supports",
            "a GPU that lists them",
            "leave application_clocks out; a power limit works on every card",
        )
    if pair in pairs:
        return None
    apart = sorted(
        pairs, key=lambda known: (abs(known.memory_mhz - pair.memory_mhz), abs(known.graphics_mhz - pair.graphics_mhz))
    )
    near = sorted({*apart[:2]}, key=lambda known: known.graphics_mhz)
    return HostError(
        "limits.application_clocks",
        f"{title} does not support {pair}",
        f"a pair that it supports; the nearest are {' and '.join(map(str, near))}",
        f"application_clocks: {{memory_mhz: {apart[0].memory_mhz}, graphics_mhz: {apart[0].graphics_mhz}}}; "
        "all of them: nvidia-smi -q -d SUPPORTED_CLOCKS",
    )


def _locked(
    device: Gpu,
    title: str,
    kind: str,
    span: tuple[int, int] | None,
    pairs: tuple[ClockPair, ...],
    model: Model | None,
    locks: Locks,
) -> HostError | None:
    if span is None or locks.get((device.uuid, kind)) == span:
        return None
    where = f"limits.locked_{kind}_mhz"
    if model is not None and f"locked_{kind}" not in model.clock_verbs:
        other = "application_clocks" if "application" in model.clock_verbs else "power_limit_w"
        problem = f"{title} has no locked {kind} clocks"
        return HostError(
            where, problem, "a GPU whose driver locks them", f"leave locked_{kind}_mhz out; {other} works on it"
        )
    known = sorted({pair.graphics_mhz if kind == "graphics" else pair.memory_mhz for pair in pairs})
    if not known or (known[0] <= span[0] and span[1] <= known[-1]):
        return None
    low, high = (min(max(mhz, known[0]), known[-1]) for mhz in span)
    return HostError(
        where,
        f"{span[0]} to {span[1]} MHz is not what {title} can be locked to",
        f"{known[0]} to {known[-1]} MHz",
        f"locked_{kind}_mhz: [{low}, {high}] is the nearest",
    )
