"""The kernel command line and the unit that sets limits at boot."""

from __future__ import annotations

from collections.abc import Iterator

from rigwright.checks import Finding, Verdict, check
from rigwright.core.schema import KernelWord
from rigwright.facts import Facts, driver, grub, kernel as kernels, systemd as units
from rigwright.facts.boot import next_boot
from rigwright.facts.systemd import LIMITS_TIMER, LIMITS_UNIT


@check(follows=("run.",))
def command_line_in_force(facts: Facts, *, kernel_cmdline: tuple[KernelWord, ...] = ()) -> Iterator[Finding]:
    """The running kernel was booted with these parameters."""
    line = facts(kernels.command_line)
    lost = grub.missing(kernel_cmdline, line)
    subject, wanted = "/proc/cmdline", " ".join(kernel_cmdline)
    if not lost:
        yield Finding(subject, "pass", line, wanted, source="inventory")
        return
    later = grub.missing(kernel_cmdline, facts(grub.grub).entry.command_line)
    seen = f"{line}: without {' '.join(lost)}"
    if later:
        cause = "grub.cfg does not have them: a later file in /etc/default/grub.d removes them, or they were never set"
        fix = "invoke provision, which writes them into the last file and reboots"
    else:
        cause, fix = "grub.cfg has them, and the host has not rebooted since", "sudo reboot"
    yield Finding(subject, "fail", seen, wanted, cause, fix, "inventory")


@check(follows=("module.", "dkms.", "run."))
def next_is_safe(facts: Facts, *, kernel_cmdline: tuple[KernelWord, ...] = ()) -> Iterator[Finding]:
    """The next boot has a kernel with the driver's module (if there is a driver), the kernel parameters, and a valid
    grub.cfg. The initramfs is checked before each reboot instead."""
    boot, library, line = facts.all(grub.grub, driver.library_version, kernels.command_line)
    release = boot.entry.release
    built = facts(kernels.module_version(release, "nvidia"))
    wrong = []
    if not boot.parses:
        wrong.append("grub-script-check refuses /boot/grub/grub.cfg")
    if boot.defaults_error:
        wrong.append(boot.defaults_error.splitlines()[0])
    if (lost := grub.missing(kernel_cmdline, boot.entry.command_line)) and not grub.missing(kernel_cmdline, line):
        wrong.append(f"{release} boots without {' '.join(lost)}")
    if library and not built:
        wrong.append(f"{release} has no nvidia module")
    wanted = "a kernel with the module and the command line"
    if wrong:
        cause = "a person or an upgrade changed it after the last verified run"
        yield Finding("next boot", "fail", "; ".join(wrong), wanted, cause, "invoke provision", "host")
    else:
        module = f", nvidia {built}" if built else ""
        yield Finding("next boot", "pass", f"{release}{module}", wanted, source="host")


@check()
def host_comes_back(facts: Facts) -> Iterator[Finding]:
    """By its files, the host can be reached after its next boot: sshd accepts its configuration and starts, the user
    and key of this login are accepted, the rules of sudo and the network configuration are valid, and the devices of
    fstab and crypttab exist."""
    conditions = facts(next_boot.conditions)
    for condition in conditions:
        if condition.state != "fine":
            verdict: Verdict = "fail" if condition.state == "fault" else "unknown"
            yield Finding(condition.subject, verdict, condition.found, condition.expected, "", condition.fix, "host")
    if all(condition.state == "fine" for condition in conditions):
        fine = ", ".join(condition.subject for condition in conditions)
        yield Finding("login after a boot", "pass", fine, source="host")


@check(follows=("gpu.", "module.", "run."))
def limits_unit_ready(facts: Facts) -> Iterator[Finding]:
    """gpu-limits.service is enabled and succeeded at this boot, and gpu-limits.timer is active."""
    names = (LIMITS_UNIT, LIMITS_TIMER)
    for name, now in zip(names, facts.all(*map(units.unit, names)), strict=True):
        verdict: Verdict = "pass" if now.enabled == "enabled" and now.active == "active" else "fail"
        logs = "" if now.enabled in ("", "bad") else f"journalctl -u {name} -b; then "
        seen, fix = f"{now.at_boot}, {now.active}", f"{logs}invoke provision"
        yield Finding(name, verdict, seen, "enabled, active", "", fix)
