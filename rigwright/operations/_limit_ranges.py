"""Errors for limits that a GPU does not support, with the nearest values that it supports."""

from __future__ import annotations

from collections.abc import Mapping

from rigwright.catalogue import Model
from rigwright.core.desired import Clocks, GpuLimits
from rigwright.core.errors import HostError
from rigwright.facts.gpu.gpus import ClockPair, Gpu, Locks

Supported = Mapping[str, tuple[ClockPair, ...]]
"""Per UUID the pairs of memory and graphics clocks that a GPU lists."""


def require_supported(
    device: Gpu, name: str, want: GpuLimits, supported: Supported, model: Model | None, locks: Locks
) -> None:
    """Raises HostError for limits that a GPU does not support."""
    if device.lost:
        fix = "sudo dmesg | grep -e NVRM -e Xid; a cold boot, then reseat it"
        raise HostError("limits", f"{name} cannot be reached: {device.lost}", "a GPU that answers", fix)
    title, pairs = f"{name} ({device.name})", supported.get(device.uuid, ())
    if want.power_limit_w is not None:
        _require_power(device, title, want.power_limit_w)
    if want.application_clocks:
        _require_clocks(device, title, pairs, want.application_clocks)
    for kind, span in (("graphics", want.locked_graphics_mhz), ("memory", want.locked_memory_mhz)):
        if span is not None and locks.get((device.uuid, kind)) != span:
            _require_lockable(title, kind, span, pairs, model)


def without_application_clocks(title: str, wanted: Clocks, model: Model | None) -> str:
    """The text for a GPU without application clocks, with the limit to use instead."""
    problem = f"{title} has no application clocks: they are left out for it"
    if model is not None and "locked_graphics" not in model.clock_verbs:
        return f"{problem}; power_limit_w works on it"
    low = model.clocks_mhz.graphics_min if model and model.clocks_mhz.graphics_min else 0
    return f"{problem}; locked_graphics_mhz: [{low:g}, {wanted.graphics_mhz}] limits its clock"


def require_in_catalogue(title: str, model: Model, watts: int) -> None:
    """Raises HostError for a power limit outside the range of a model in the catalogue, if it has a range."""
    least, most = model.power_w.min, model.power_w.max
    low, high = least is not None and watts < least, most is not None and watts > most
    if not (low or high):
        return
    one_end = f"at least {least:g} W" if low else f"at most {most:g} W"
    raise HostError(
        "limits.power_limit_w",
        f"{watts} W is outside the range of {title}",
        f"{f'{least:g} to {most:g} W' if least and most else one_end}, by the catalogue",
        f"power_limit_w: {least if low else most:g} is the nearest. A board that goes further reports it once its "
        "driver "
        "runs: invoke provision --tags packages,driver,boot, then the same command again",
    )


def _require_power(device: Gpu, title: str, watts: int) -> None:
    where, least, most = "limits.power_limit_w", device.power_min_w, device.power_max_w
    if least is None or most is None:
        problem, fix = f"the power of {title} cannot be limited", "leave power_limit_w out for it"
        raise HostError(where, problem, "a GPU that tells its range", fix)
    if not least <= watts <= most:
        problem, fix = (
            f"{watts} W is not what {title} can be limited to",
            f"power_limit_w: {min(max(watts, least), most):g}",
        )
        raise HostError(where, problem, f"{least:g} to {most:g} W", f"{fix} is the nearest")


def _require_clocks(device: Gpu, title: str, pairs: tuple[ClockPair, ...], wanted: Clocks) -> None:
    where, pair = "limits.application_clocks", ClockPair(wanted.memory_mhz, wanted.graphics_mhz)
    if pair == device.application_clocks or pair in pairs:
        return
    if not pairs:
        problem = f"{title} lists no clocks that it supports"
        fix = "leave application_clocks out; a power limit works on every card"
        raise HostError(where, problem, "a GPU that lists them", fix)
    apart = sorted(
        pairs, key=lambda known: (abs(known.memory_mhz - pair.memory_mhz), abs(known.graphics_mhz - pair.graphics_mhz))
    )
    near = sorted({*apart[:2]}, key=lambda known: known.graphics_mhz)
    expected = f"a pair that it supports; the nearest are {' and '.join(map(str, near))}"
    fix = f"application_clocks: {{memory_mhz: {apart[0].memory_mhz}, graphics_mhz: {apart[0].graphics_mhz}}}; "
    fix += "all of them: nvidia-smi -q -d SUPPORTED_CLOCKS"
    raise HostError(where, f"{title} does not support {pair}", expected, fix)


def _require_lockable(
    title: str, kind: str, span: tuple[int, int], pairs: tuple[ClockPair, ...], model: Model | None
) -> None:
    where = f"limits.locked_{kind}_mhz"
    if model is not None and f"locked_{kind}" not in model.clock_verbs:
        other = "application_clocks" if "application" in model.clock_verbs else "power_limit_w"
        problem, fix = f"{title} has no locked {kind} clocks", f"leave locked_{kind}_mhz out; {other} works on it"
        raise HostError(where, problem, "a GPU whose driver locks them", fix)
    known = sorted({pair.graphics_mhz if kind == "graphics" else pair.memory_mhz for pair in pairs})
    if known and not (known[0] <= span[0] and span[1] <= known[-1]):
        low, high = (min(max(mhz, known[0]), known[-1]) for mhz in span)
        problem = f"{span[0]} to {span[1]} MHz is not what {title} can be locked to"
        fix = f"locked_{kind}_mhz: [{low}, {high}] is the nearest"
        raise HostError(where, problem, f"{known[0]} to {known[-1]} MHz", fix)
