"""The change that reboots a host, whose sessions it ends, and whether the next boot is safe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rigwright import catalogue
from rigwright.core.change import Change, Note
from rigwright.driver.load_failure import build_failure
from rigwright.facts import Facts, Unavailable, grub
from rigwright.facts import kernel as kernels
from rigwright.facts.boot import reboot_record

OTHERS = frozenset({"nouveau", "nova_core"})
"""The kernel modules that must not hold the GPUs."""


def require_safe(facts: Facts, with_driver: bool) -> None:
    """Raises Unavailable with what is wrong with the next boot: a grub.cfg that does not parse; with the driver also a
    missing module, or an initramfs that loads another driver."""
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
        found = f"no nvidia module is built for {release}, the kernel that boots next{why}"
        raise Unavailable(found, f"on the host: sudo dkms autoinstall -k {release}, which builds it or says why not")
    path = boot.entry.initrd_path
    image = facts(kernels.initramfs(path))
    held = sorted((image.modules & OTHERS) - image.blocked)
    if held:
        raise Unavailable(f"the initramfs {path} still loads {', '.join(held)}")


def ends(sessions: Sequence[str]) -> Iterator[Note]:
    """A warning that names the graphical sessions which a reboot ends, if there are any."""
    if sessions:
        yield Note(f"the reboot ends a graphical session: {', '.join(sessions)}; unsaved work is lost", warn=True)


def ordered(why: str, after: str, timeout_s: int, *, same_boot: bool = False, gpus_after: int | None = None) -> Change:
    """The change that reboots the host; if it does not help, that is recorded on the host.

    `same_boot`: the reboot starts the kernel, initramfs and modules that run now. `gpus_after`: as of Change.
    """
    return Change(
        "run", "reboot", why, after, (reboot_record.forget(),),
        disruptive=True, reboot=True, reboot_timeout_s=timeout_s, in_vain=(reboot_record.write(why),),
        same_boot=same_boot, gpus_after=gpus_after,
    )  # fmt: skip
