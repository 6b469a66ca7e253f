"""Kernel headers, and kernel modules that are blocked in the root file system and in the initramfs."""

from __future__ import annotations

from collections.abc import Iterator

from rigwright.core.change import Change
from rigwright.core.command import command
from rigwright.core.command_failures import missing_program
from rigwright.core.errors import HostError
from rigwright.core.templates.host_files import SHIPPED, Templates
from rigwright.facts import Facts, files, grub, kernel as kernels, system
from rigwright.facts.apt import archive as apt_archive, dpkg
from rigwright.operations import apt, file, operation


@operation(affects_p2p=True)
def headers_installed(facts: Facts) -> Iterator[Change]:
    """The headers of the running kernel and of the one that boots next are installed, so that modules can be built.
    Raises HostError if the sources do not have them."""
    running, boot = facts.all(system.running_kernel, grub.grub)
    releases = sorted({running, boot.entry.release})
    there = facts.all(*(kernels.headers(release) for release in releases))
    missing = [f"linux-headers-{release}" for release, present in zip(releases, there, strict=True) if not present]
    if not missing:
        return
    offered, _ = facts.all(apt_archive.offered(tuple(missing)), dpkg.packages(*missing))
    for name in missing:
        if not offered.versions.get(name):
            expected = "headers of the kernel that runs, to build the driver's module"
            fix = "apt-get install linux-generic, reboot"
            raise HostError("kernel headers", f"no source has {name}", expected, fix)
    yield from apt.packages(facts, names=missing)


@operation(affects_p2p=True)
def modules_blocked(facts: Facts, *, modules: list[str], templates: Templates = SHIPPED) -> Iterator[Change]:
    """/etc/modprobe.d and the initramfs that boots next keep the modules from loading; a reboot unloads them.

    An initramfs that is older than the file is rebuilt, so the next run completes an interrupted one. Raises HostError
    if update-initramfs is needed and not installed.
    """
    path = "/etc/modprobe.d/rigwright-blocked.conf"
    content = templates.render("modprobe/blocked.conf.j2", {"modules": modules})
    boot, loaded, _ = facts.all(grub.grub, kernels.loaded_modules, files.file(path))
    newer, there = facts.all(kernels.newer(boot.entry.initrd_path, path), system.program("update-initramfs"))
    held = {module.replace("-", "_") for module in modules} & loaded
    changes = list(file.differing(facts, path, content.encode(), leads_to="reboot" if held else ""))
    if (changes or not newer) and not there:
        failure = missing_program("update-initramfs")
        raise HostError("kernel modules", failure.found, "update-initramfs, which makes the initramfs", failure.fix)
    yield from changes
    if changes or not newer:
        rebuild = command("update-initramfs", "-u", "-k", boot.entry.release, timeout_s=900, long=True)
        yield Change("run", f"initramfs of {boot.entry.release}", "without the block", "with it", (rebuild,))
