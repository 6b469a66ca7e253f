"""Kernel headers, and modules kept from loading, in the root file system and in the initramfs."""

from __future__ import annotations

from collections.abc import Iterator

from rigwright.change import Change
from rigwright.errors import HostError
from rigwright.facts import Facts, archive, files, grub
from rigwright.facts import apt as dpkg
from rigwright.facts import kernel as kernels
from rigwright.facts import os as system
from rigwright.operations import apt, file
from rigwright.shell import command


def headers_installed(facts: Facts) -> Iterator[Change]:
    """The headers of the running kernel, and of the one that boots next, are installed, so that modules can be built.

    Raises HostError when the sources have none for that kernel.
    """
    running, boot = facts.all(system.running_kernel, grub.grub)
    releases = sorted({running, boot.entry.release})
    there = facts.all(*(kernels.headers(release) for release in releases))
    missing = [f"linux-headers-{release}" for release, found in zip(releases, there, strict=True) if not found]
    if not missing:
        return
    offered, _ = facts.all(archive.offered(tuple(missing)), dpkg.packages(*missing))
    for name in missing:
        if not offered.versions.get(name):
            raise HostError(
                "",
                f"no source has {name}",
                "headers of the kernel that runs, to build the driver's module",
                "apt-get install linux-generic, reboot",
            )
    yield from apt.packages(facts, names=missing)


def modules_blocked(facts: Facts, *, modules: list[str]) -> Iterator[Change]:
    """The modules are kept from loading by /etc/modprobe.d, and by the initramfs that boots next; a reboot unloads them.

    The initramfs is known to hold the file when it is newer than it; a run that died between the two is healed.
    """
    path = "/etc/modprobe.d/rigwright-blocked.conf"
    lines = [line for module in modules for line in (f"blacklist {module}", f"alias {module} off")]
    content = (
        "# Written by rigwright: the NVIDIA driver cannot load where these hold the GPUs.\n" + "\n".join(lines) + "\n"
    )
    boot, loaded, _ = facts.all(grub.grub, kernels.loaded_modules, files.file(path))
    newer = facts(kernels.newer(boot.entry.initrd_path, path))
    held = {module.replace("-", "_") for module in modules} & loaded
    changes = list(file.differing(facts, path, content.encode(), leads_to="reboot" if held else ""))
    yield from changes
    if changes or not newer:
        rebuild = command("update-initramfs", "-u", "-k", boot.entry.release, timeout_s=900, long=True)
        yield Change("run", f"initramfs of {boot.entry.release}", "without the block", "with it", (rebuild,))
