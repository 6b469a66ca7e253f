"""The reboot that puts a kernel command line and a driver in force, and the checks before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rigwright import catalogue
from rigwright.core.change import Change, Note
from rigwright.core.control_characters import one_line
from rigwright.core.desired import Driver
from rigwright.core.schema import KernelWord
from rigwright.driver.load_failure import load_failure
from rigwright.facts import Facts, Unavailable, display, grub, pci, system
from rigwright.facts import driver as state
from rigwright.facts import kernel as kernels
from rigwright.facts.boot import reboot_record
from rigwright.operations import operation
from rigwright.operations._reboot import OTHERS, ends, ordered, require_safe


def _reasons(facts: Facts, kernel_cmdline: Sequence[str], with_driver: bool, driver: Driver | None) -> list[str]:
    asked = (
        grub.grub,
        kernels.command_line,
        pci.gpus,
        state.loaded_version,
        state.loaded_flavour,
        display.graphical,
        reboot_record.in_vain,
    )
    modes = (kernels.drm_modeset, kernels.drm_modeset_loaded) if with_driver and driver and driver.display else ()
    boot, line, bound, loaded, flavour, _, _, *modeset = facts.all(*asked, *modes)
    reasons = [f"{' '.join(lost)} not in /proc/cmdline"] if (lost := grub.missing(kernel_cmdline, line)) else []
    if with_driver:
        release = boot.entry.release
        built, licence = facts.all(kernels.module_version(release, "nvidia"), kernels.module_licence(release, "nvidia"))
        holders = sorted({device.driver for device in bound if device.driver in OTHERS})
        if holders:
            reasons.append(f"{', '.join(holders)} holds the GPUs")
        if loaded != built or not loaded:
            there = f"{built} is installed" if built else f"no module is built for {release}"
            reasons.append(f"driver {loaded or 'none'} is loaded, {there}")
        elif licence and flavour and (built_flavour := "proprietary" if licence == "NVIDIA" else "open") != flavour:
            reasons.append(f"the {flavour} kernel module is loaded, the {built_flavour} one is installed")
        if modeset == [True, False]:
            reasons.append("nvidia-drm is loaded without modeset=1")
    return reasons


@operation()
def gate(
    facts: Facts,
    *,
    kernel_cmdline: tuple[KernelWord, ...] = (),
    with_driver: bool = True,
    driver: Driver | None = None,
) -> Iterator[Change]:
    """The next boot is safe: a built module for its kernel, an initramfs without nouveau and nova_core, a grub.cfg that
    parses.

    Checked only when a reboot is due. Raises Unavailable with the condition that does not hold; `provision` then stops
    before the reboot. Whether the host can be reached after a boot is judged with the plan of each reboot
    (docs/guide/trial.md), and a fault refuses it.
    """
    if not _reasons(facts, kernel_cmdline, with_driver, driver):
        return
    require_safe(facts, with_driver)
    yield from ()


@operation(affects_p2p=True, reboots=True)
def if_needed(
    facts: Facts,
    *,
    kernel_cmdline: tuple[KernelWord, ...] = (),
    with_driver: bool = True,
    driver: Driver | None = None,
    timeout_s: int = 900,
) -> Iterator[Change | Note]:
    """The kernel runs with these parameters, and the loaded driver is the installed one; otherwise the host reboots.

    With `with_driver` false only the parameters count. With `display` of the driver, nvidia-drm is loaded with
    modeset=1 where a file gives it that option. The host must answer again within `timeout_s` seconds. A graphical
    session that it ends is named.

    If a reboot did not help, and the next boot would read the same kernel, initramfs, modules and settings, the host is
    not rebooted for that again, also in later runs: raises Unavailable with the driver's own sentence.
    """
    reasons = _reasons(facts, kernel_cmdline, with_driver, driver)
    if reasons:
        why = "; ".join(reasons)
        if (before := facts(reboot_record.in_vain)) and before.same and before.reasons == one_line(why):
            raise _no_use(facts, before, with_driver)
        yield from ends(facts(display.graphical).sessions)
        yield ordered(why, "a boot with all of it", timeout_s)


def _no_use(facts: Facts, before: reboot_record.InVain, with_driver: bool) -> Unavailable:
    """The reason against another reboot: what the last one was for, and what the driver says."""
    found = f"the reboot of {before.at} did not help ({before.reasons}), and another one would read the same files"
    again = "then sudo reboot, on the host, and run the same command again"
    loaded, release = facts.all(state.loaded_version, system.running_kernel)
    if loaded or not with_driver:
        return Unavailable(found, f"cat /proc/cmdline, and the entry that GRUB starts, on the host; {again}")
    failure = load_failure(facts, release, facts(kernels.module_version(release, "nvidia")))
    known = catalogue.all_symptoms()[failure.symptom]
    said = (
        f"the driver says: {failure.said}"
        if failure.said
        else "neither the kernel log nor systemd-modules-load says why"
    )
    why = f" ({failure.cause or known.cause})" if failure.said else ""
    return Unavailable(f"{found}; {said}{why}", f"{failure.fix or known.fix}; {again}")
