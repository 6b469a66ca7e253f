"""The kernel command line and the unit that sets limits at boot."""

from __future__ import annotations

from collections.abc import Iterator

from rigwright.checks import Finding
from rigwright.facts import Facts
from rigwright.facts import kernel as kernels
from rigwright.facts import systemd as units
from rigwright.operations.grub import missing
from rigwright.operations.limits import TIMER, UNIT
from rigwright.typed import KernelWord


def command_line_in_force(facts: Facts, *, words: list[KernelWord]) -> Iterator[Finding]:
    """The running kernel was booted with the words."""
    line = facts(kernels.command_line)
    lost = missing(words, line)
    fix = "reboot; if it is still missing: invoke provision" if lost else ""
    verdict = "fail" if lost else "pass"
    yield Finding("boot.command_line_in_force", "/proc/cmdline", verdict, line, " ".join(words), "", fix)  # type: ignore[arg-type]


def limits_unit_ready(facts: Facts) -> Iterator[Finding]:
    """gpu-limits.service is enabled and succeeded at this boot, and gpu-limits.timer looks each minute."""
    for name, now in zip((UNIT, TIMER), facts.all(units.unit(UNIT), units.unit(TIMER)), strict=True):
        right = now.enabled == "enabled" and now.active == "active"
        fix = "" if right else f"journalctl -u {name} -b; then invoke provision"
        seen = f"{now.enabled or 'not there'}, {now.active}"
        yield Finding("boot.limits_unit_ready", name, "pass" if right else "fail", seen, "enabled, active", "", fix)
