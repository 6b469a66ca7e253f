"""The reboot that puts a kernel command line and a driver in force, and the checks before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rigwright import catalogue
from rigwright.core.change import Change, Note
from rigwright.core.desired import Driver
from rigwright.core.schema import KernelWord
from rigwright.facts import Facts, Unavailable, display, grub, pci
from rigwright.facts import driver as state
from rigwright.facts import kernel as kernels
from rigwright.operations import operation

_OTHERS = frozenset({"nouveau", "nova_core"})


def _reasons(facts: Facts, kernel_cmdline: Sequence[str], with_driver: bool, driver: Driver | None) -> list[str]:
    asked = (grub.grub, kernels.command_line, pci.gpus, state.loaded_version, state.loaded_flavour, display.graphical)
    modes = (kernels.drm_modeset, kernels.drm_modeset_loaded) if with_driver and driver and driver.display else ()
    boot, line, bound, loaded, flavour, _, *modeset = facts.all(*asked, *modes)
    reasons = [f"{' '.join(lost)} not in /proc/cmdline"] if (lost := grub.missing(kernel_cmdline, line)) else []
    if with_driver:
        release = boot.entry.release
        built, licence = facts.all(kernels.module_version(release, "nvidia"), kernels.module_licence(release, "nvidia"))
        holders = sorted({device.driver for device in bound if device.driver in _OTHERS})
        if holders:
            reasons.append(f"{', '.join(holders)} holds the GPUs")
        if loaded != built or not loaded:
            reasons.append(f"driver {loaded or 'none'} is loaded, {built or 'none'} is installed")
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
    """The next boot is safe: a built module for its kernel, an initramfs without nouveau and nova_core, a grub.cfg that parses.

    Checked only when a reboot is due. Raises Unavailable with the condition that does not hold; `provision` then stops before the reboot.
    """
    if not _reasons(facts, kernel_cmdline, with_driver, driver):
        return
    boot = facts(grub.grub)
    if not boot.parses:
        raise Unavailable("grub-script-check refuses /boot/grub/grub.cfg")
    if with_driver:
        release = boot.entry.release
        if not facts(kernels.module_version(release, "nvidia")):
            log = facts(kernels.build_log(release))
            known = (
                [symptom for symptom in catalogue.symptoms_in(log) if symptom.kind in ("driver", "boot")] if log else []
            )
            last = next((line.strip() for line in reversed(log.splitlines()) if "rror" in line), "")
            why = f": {known[0].title}; {known[0].fix}" if known else f": {last}" if last else ""
            raise Unavailable(f"no nvidia module is built for {release}, the kernel that boots next{why}")
        path = boot.entry.initrd_path
        image = facts(kernels.initramfs(path))
        held = sorted((image.modules & _OTHERS) - image.blocked)
        if held:
            raise Unavailable(f"the initramfs {path} still loads {', '.join(held)}")
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

    With `with_driver` false only the parameters count. With `display` of the driver, nvidia-drm is loaded with modeset=1 where a
    file gives it that option. The host must answer again within `timeout_s` seconds. A graphical session that it ends is named.
    """
    reasons = _reasons(facts, kernel_cmdline, with_driver, driver)
    if reasons:
        if sessions := facts(display.graphical).sessions:
            yield Note(f"the reboot ends a graphical session: {', '.join(sessions)}; unsaved work is lost", warn=True)
        yield Change(
            "run",
            "reboot",
            "; ".join(reasons),
            "a boot with all of it",
            disruptive=True,
            reboot=True,
            reboot_timeout_s=timeout_s,
        )
