"""Whether others set something on the GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from rigwright.checks import Finding, check
from rigwright.core.desired import Limits
from rigwright.facts import Facts
from rigwright.features.foreign_settings.facts import by_source, in_effect
from rigwright.features.foreign_settings.wanted import also_set, in_words, obstacle


@check()
def absent(facts: Facts, *, limits: Limits | None = None, take_over: bool = False) -> Iterator[Finding]:
    """No unit, timer, cron job or line of /etc/rc.local of others sets power limits, clocks, persistence or fans of the
    GPUs.

    A warning where the inventory's `limits` set the same: then the last one wins. Otherwise the finding only names it.
    """
    every = by_source(in_effect(facts))
    for source, settings in every.items():
        if not settings[0].sets:
            seen = f"{settings[0].command} was not read"
            yield Finding(source, "info", seen, "", settings[0].other, f"look whether {source} sets limits of the GPUs")
            continue
        seen = in_words(settings).removeprefix(f"{source} ")
        if limits and (both := also_set(settings, limits)):
            why = obstacle(settings, limits)
            cause = f"the inventory's `limits` set {', '.join(both)} too: the last one wins"
            fix = "invoke provision" if take_over else "take_over: true in the inventory, then invoke provision"
            fix = f"change {source} yourself: {why}" if why else fix
            yield Finding(source, "warn", seen, "set by rigwright alone", cause, fix, "inventory")
        else:
            fix = "limits and take_over: true in the inventory, then invoke provision, replace it (not fans)"
            yield Finding(source, "info", seen, "", "", fix)
    if not every:
        yield Finding("settings of others", "pass", "none sets limits, clocks or fans of the GPUs")
