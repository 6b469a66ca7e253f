"""The reboot that applies a kernel command line and a driver, and the checks before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rigwright import catalogue
from rigwright.core.change import Change, Note
from rigwright.core.control_characters import one_line
from rigwright.core.desired import Driver
from rigwright.core.schema import KernelWord
from rigwright.driver.load_failure import build_failure, load_failure
from rigwright.facts import Facts, Unavailable, display, driver as state, grub, kernel as kernels, pci, system
from rigwright.facts.boot import reboot_record
from rigwright.operations import operation

OTHERS = frozenset({"nouveau", "nova_core"})
"""The kernel modules that must not have the GPUs."""


def require_safe(facts: Facts, with_driver: bool) -> None:
    """Raises Unavailable if the next boot is not safe: a grub.cfg that does not parse; with the driver also a missing
    module, or an initramfs that loads another driver."""
    boot = facts(grub.grub)
    if not boot.parses:
        raise Unavailable("grub-script-check refuses /boot/grub/grub.cfg")
    if not with_driver:
        return
    release = boot.entry.release
    if not facts(kernels.module_version(release, "nvidia")):
        failure = build_failure(facts, release)
        known = catalogue.all_symptoms()[failure.symptom]
        why = f": {failure.said}" if failure.said else ""
        why = why if known.key == "dkms.build_failed" else f": {known.title}; {known.fix}"
        problem = f"no nvidia module is built for {release}, the kernel that boots next{why}"
        raise Unavailable(problem, f"on the host: sudo dkms autoinstall -k {release}, which builds it or says why not")
    path = boot.entry.initrd_path
    image = facts(kernels.initramfs(path))
    held = sorted((image.modules & OTHERS) - image.blocked)
    if held:
        raise Unavailable(f"the initramfs {path} still loads {', '.join(held)}")


def sessions_lost(sessions: Sequence[str]) -> Iterator[Note]:
    """A warning with the graphical sessions that a reboot ends, if there are any."""
    if sessions:
        yield Note(f"the reboot ends a graphical session: {', '.join(sessions)}; unsaved work is lost", warn=True)


def reboot_change(
    why: str, after: str, timeout_s: int, *, same_boot: bool = False, gpus_after: int | None = None
) -> Change:
    """The change that reboots the host; the host records it if the reboot does not help. `same_boot` and `gpus_after`
    are those of Change."""
    return Change(
        "run", "reboot", why, after, (reboot_record.forget(),),
        disruptive=True, reboot=True, reboot_timeout_s=timeout_s, in_vain=(reboot_record.write(why),),
        same_boot=same_boot, gpus_after=gpus_after,
    )  # fmt: skip


def _reasons(facts: Facts, kernel_cmdline: Sequence[str], with_driver: bool, driver: Driver | None) -> list[str]:
    needed = (grub.grub, kernels.command_line, pci.gpus, state.loaded_version, state.loaded_flavour)
    modes = (kernels.drm_modeset, kernels.drm_modeset_loaded) if with_driver and driver and driver.display else ()
    later = (display.graphical, reboot_record.in_vain)  # in the same round trip
    boot, line, bound, loaded, flavour, _, _, *modeset = facts.all(*needed, *later, *modes)
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
    """The next boot is safe: a built module for its kernel, an initramfs without nouveau and nova_core, a valid
    grub.cfg.

    Checked only if a reboot is necessary. Raises Unavailable with the unmet condition; `provision` then stops before
    the reboot. The plan of each reboot also checks that the host can be reached afterwards (docs/guide/trial.md).
    """
    if _reasons(facts, kernel_cmdline, with_driver, driver):
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

    With `with_driver` false only the parameters count. With `display` of the driver, nvidia-drm must be loaded with
    modeset=1 if a file sets that option. The host must answer again within `timeout_s` seconds.

    If a reboot did not help, and the next boot would read the same kernel, initramfs, modules and settings, the host is
    not rebooted again for that, also in later runs: raises Unavailable with the driver's message.
    """
    reasons = _reasons(facts, kernel_cmdline, with_driver, driver)
    if reasons:
        why = "; ".join(reasons)
        if (before := facts(reboot_record.in_vain)) and before.same and before.reasons == one_line(why):
            raise _no_use(facts, before, with_driver)
        yield from sessions_lost(facts(display.graphical).sessions)
        yield reboot_change(why, "a boot with all of it", timeout_s)


def _no_use(facts: Facts, before: reboot_record.InVain, with_driver: bool) -> Unavailable:
    """The reason against another reboot: the reasons of the last one, and the driver's message."""
    problem = f"the reboot of {before.at} did not help ({before.reasons}), and another one would read the same files"
    again = "then sudo reboot, on the host, and run the same command again"
    loaded, release = facts.all(state.loaded_version, system.running_kernel)
    if loaded or not with_driver:
        return Unavailable(problem, f"cat /proc/cmdline, and the entry that GRUB starts, on the host; {again}")
    failure = load_failure(facts, release, facts(kernels.module_version(release, "nvidia")))
    known = catalogue.all_symptoms()[failure.symptom]
    said = "neither the kernel log nor systemd-modules-load says why"
    if failure.said:
        said = f"the driver says: {failure.said} ({failure.cause or known.cause})"
    return Unavailable(f"{problem}; {said}", f"{failure.fix or known.fix}; {again}")
