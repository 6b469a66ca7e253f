"""Compares what others set on the GPUs with what the inventory says."""

from __future__ import annotations

from collections.abc import Sequence

from rigwright.core.desired import Limits
from rigwright.core.shortening import first_of
from rigwright.features.foreign_settings.facts import ForeignSetting, Kind

_FIELDS: dict[Kind, tuple[str, ...]] = {
    "power limit": ("power_limit_w",),
    "clocks": ("application_clocks", "locked_graphics_mhz", "locked_memory_mhz"),
    "persistence": ("persistence",),
    "fans": (),
}
"""The keys of `limits` that replace a setting."""


def kinds(settings: Sequence[ForeignSetting]) -> tuple[Kind, ...]:
    """What they set, each once."""
    return tuple(dict.fromkeys(kind for each in settings for kind in each.sets))


def also_set(settings: Sequence[ForeignSetting], limits: Limits | None) -> tuple[Kind, ...]:
    """What they set and `limits` sets too."""
    parts = (limits, *limits.gpus.values()) if limits else ()
    return tuple(
        kind
        for kind in kinds(settings)
        if any(getattr(part, field) is not None for part in parts for field in _FIELDS[kind])
    )


def obstacle(settings: Sequence[ForeignSetting], limits: Limits) -> str:
    """Why the source of these settings cannot be taken over; "" if it can be."""
    missing = [kind for kind in kinds(settings) if kind not in also_set(settings, limits)]
    if "fans" in missing:
        return "rigwright sets no fans"
    return f"`limits` has no {missing[0]}" if missing else settings[0].other


def in_words(settings: Sequence[ForeignSetting]) -> str:
    """`nvidia-power-cap.service sets power limit: nvidia-smi -pl 250 (/usr/local/sbin/cap:3)`."""
    place = settings[0].place
    here = [each.command + (f" ({at})" if (at := f"{each.path}:{each.line}") != place else "") for each in settings]
    commands = first_of(here, 3)
    return f"{place} sets {', '.join(kinds(settings))}: {commands}"
