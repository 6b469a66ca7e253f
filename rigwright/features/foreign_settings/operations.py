"""Takes over what others set on the GPUs: their units are disabled, and their lines commented out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rigwright.core.change import Change, Note
from rigwright.core.command import command
from rigwright.core.desired import Limits
from rigwright.facts import Facts, files, systemd as units
from rigwright.features.foreign_settings.facts import by_source, in_effect, is_at_work, timer_of
from rigwright.features.foreign_settings.wanted import in_words, obstacle
from rigwright.operations import file, operation


@operation()
def taken_over(facts: Facts, *, limits: Limits, take_over: bool = False) -> Iterator[Change | Note]:
    """With `take_over: true` no unit, timer, cron job or line of /etc/rc.local of others sets what `limits` sets: the
    unit is disabled and stopped, the line commented out; `rollback` brings both back.

    A unit or a line that also does something else, or sets what `limits` does not set, stays: a warning says why.
    Without `take_over` the plan names what it would take over, and changes nothing.
    """
    lines: dict[str, list[int]] = {}
    for settings in by_source(in_effect(facts)).values():
        if not settings[0].sets:
            continue
        if why := obstacle(settings, limits):
            yield Note(f"{in_words(settings)}; it stays: {why}", warn=True)
        elif not take_over:
            yield Note(f"{in_words(settings)}; `take_over: true` in the inventory takes it over", warn=True)
        elif settings[0].is_unit:
            yield from _disabled(facts, settings[0].source)
        else:
            lines[settings[0].source] = [*lines.get(settings[0].source, ()), settings[0].source_line]
    for path, numbers in lines.items():
        yield from _commented_out(facts, path, numbers)


def _disabled(facts: Facts, name: str) -> Iterator[Change]:
    for unit in (timer_of(name), name):
        now = facts(units.unit(unit))
        if now.enabled.startswith("enabled"):
            disable = (command("systemctl", "disable", unit),)
            yield Change("change", unit, "enabled at boot", "disabled: `limits` replaces it", disable, units=(unit,))
        if is_at_work(now):
            stop = (command("systemctl", "stop", unit, timeout_s=300),)
            yield Change("change", unit, f"{now.active} ({now.sub})", "stopped", stop, units=(unit,))


def _commented_out(facts: Facts, path: str, numbers: Sequence[int]) -> Iterator[Change]:
    """The lines are comments; in a script, where a loop needs a command, with `:` before it."""
    now = facts(files.file(path))
    if now is None or now.kind != "file":
        return
    begin = ": " if path == "/etc/rc.local" else ""
    lines = now.content.split(b"\n")
    for number in numbers:
        lines[number - 1] = f"{begin}# taken over by rigwright: ".encode() + lines[number - 1].lstrip()
    yield from file.differing(facts, path, b"\n".join(lines), now.mode, now.owner, now.group)
