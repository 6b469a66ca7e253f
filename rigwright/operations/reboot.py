"""The reboot into what is wanted, and the gate before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rigwright import catalogue
from rigwright.change import Change
from rigwright.facts import Facts, Unavailable, driver, grub, pci
from rigwright.facts import kernel as kernels
from rigwright.operations.grub import missing
from rigwright.typed import KernelWord

_OTHERS = frozenset({"nouveau", "nova_core"})


def _reasons(facts: Facts, kernel_cmdline: Sequence[str], with_driver: bool) -> list[str]:
    boot, line, bound, loaded = facts.all(grub.grub, kernels.command_line, pci.gpus, driver.loaded_version)
    reasons = [f"{' '.join(lost)} not in /proc/cmdline"] if (lost := missing(kernel_cmdline, line)) else []
    if with_driver:
        built = facts(kernels.module_version(boot.entry.release, "nvidia"))
        holders = sorted({one.driver for one in bound if one.driver in _OTHERS})
        if holders:
            reasons.append(f"{', '.join(holders)} holds the GPUs")
        if loaded != built or not loaded:
            reasons.append(f"driver {loaded or 'none'} is loaded, {built or 'none'} is installed")
    return reasons


def gate(facts: Facts, *, kernel_cmdline: list[KernelWord] | None = None, driver: bool = True) -> Iterator[Change]:
    """The next boot is safe: a built module for its kernel, an initramfs without nouveau and nova_core, a grub.cfg that parses.

    Asked only when a reboot is due. Raises Unavailable with what is not so yet; at apply that stops the run before the reboot.
    """
    if not _reasons(facts, kernel_cmdline or [], driver):
        return
    boot = facts(grub.grub)
    if not boot.parses:
        raise Unavailable("grub-script-check refuses /boot/grub/grub.cfg")
    if driver:
        release = boot.entry.release
        if not facts(kernels.module_version(release, "nvidia")):
            log = facts(kernels.build_log(release))
            known = [one for one in catalogue.symptoms_in(log) if one.kind in ("driver", "boot")] if log else []
            last = next((line.strip() for line in reversed(log.splitlines()) if "rror" in line), "")
            why = f": {known[0].title}; {known[0].fix}" if known else f": {last}" if last else ""
            raise Unavailable(f"no nvidia module is built for {release}, the kernel that boots next{why}")
        path = boot.entry.initrd_path
        image = facts(kernels.initramfs(path))
        held = sorted((image.modules & _OTHERS) - image.blocked)
        if held:
            raise Unavailable(f"the initramfs {path} still loads {', '.join(held)}")
    yield from ()


def into_wanted(
    facts: Facts, *, kernel_cmdline: list[KernelWord] | None = None, driver: bool = True
) -> Iterator[Change]:
    """The kernel runs with the wanted words, and the driver that is installed is the one that is loaded."""
    reasons = _reasons(facts, kernel_cmdline or [], driver)
    if reasons:
        yield Change("run", "reboot", "; ".join(reasons), "a boot with all of it", disruptive=True, reboot=True)
