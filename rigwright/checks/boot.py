"""The kernel command line and the unit that sets limits at boot."""

from __future__ import annotations

from collections.abc import Iterator

from rigwright.checks import Finding
from rigwright.facts import Facts, driver, grub
from rigwright.facts import kernel as kernels
from rigwright.facts import systemd as units
from rigwright.operations.grub import missing
from rigwright.operations.limits import TIMER, UNIT
from rigwright.typed import KernelWord


def command_line_in_force(facts: Facts, *, words: list[KernelWord]) -> Iterator[Finding]:
    """The running kernel was booted with the words."""
    line = facts(kernels.command_line)
    lost = missing(words, line)
    name, subject, wanted = "boot.command_line_in_force", "/proc/cmdline", " ".join(words)
    if not lost:
        yield Finding(name, subject, "pass", line, wanted, source="inventory")
        return
    later = missing(words, facts(grub.grub).entry.command_line)
    seen = f"{line}: without {' '.join(lost)}"
    if later:
        cause = "grub.cfg does not have them: a later file in /etc/default/grub.d takes them away, or nobody set them"
        fix = "invoke provision, which writes them into the last file and reboots"
        yield Finding(name, subject, "fail", seen, wanted, cause, fix, "inventory")
    else:
        cause = "the next boot has them, this one was before"
        yield Finding(name, subject, "fail", seen, wanted, cause, "sudo reboot", "inventory")


def next_is_safe(facts: Facts, *, kernel_cmdline: list[KernelWord] | None = None) -> Iterator[Finding]:
    """The next boot brings a kernel that has the driver's module (where there is a driver), the words, and a grub.cfg that parses.

    What its initramfs would load is read before rigwright reboots, not here."""
    boot, library, line = facts.all(grub.grub, driver.library_version, kernels.command_line)
    release = boot.entry.release
    built = facts(kernels.module_version(release, "nvidia"))
    wrong = []
    if not boot.parses:
        wrong.append("grub-script-check refuses /boot/grub/grub.cfg")
    if boot.defaults_error:
        wrong.append(boot.defaults_error.splitlines()[0])
    words = kernel_cmdline or []
    if (lost := missing(words, boot.entry.command_line)) and not missing(words, line):
        wrong.append(f"{release} boots without {' '.join(lost)}")
    if library and not built:
        wrong.append(f"{release} has no nvidia module")
    name, wanted = "boot.next_is_safe", "kernel, module and command line of one mind"
    if wrong:
        cause = "somebody, or an upgrade, changed it after the last proof"
        yield Finding(name, "next boot", "fail", "; ".join(wrong), wanted, cause, "invoke provision", "host")
    else:
        module = f", nvidia {built}" if built else ""
        yield Finding(name, "next boot", "pass", f"{release}{module}", wanted, source="host")


def limits_unit_ready(facts: Facts) -> Iterator[Finding]:
    """gpu-limits.service is enabled and succeeded at this boot, and gpu-limits.timer looks each minute."""
    for name, now in zip((UNIT, TIMER), facts.all(units.unit(UNIT), units.unit(TIMER)), strict=True):
        right = now.enabled == "enabled" and now.active == "active"
        fix = "" if right else f"journalctl -u {name} -b; then invoke provision"
        seen = f"{now.enabled or 'not there'}, {now.active}"
        yield Finding("boot.limits_unit_ready", name, "pass" if right else "fail", seen, "enabled, active", "", fix)
