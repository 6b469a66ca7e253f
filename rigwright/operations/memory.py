"""Huge pages of the kernel."""

from __future__ import annotations

from collections.abc import Iterator

from rigwright.core.change import Change
from rigwright.core.command import command
from rigwright.core.desired import Hugepages
from rigwright.core.errors import HostError
from rigwright.core.templates.host_files import SHIPPED, Templates
from rigwright.facts import Facts, files, memory
from rigwright.operations import file, operation

SYSCTL, TMPFILES = "/etc/sysctl.d/90-rigwright-hugepages.conf", "/etc/tmpfiles.d/rigwright-hugepages.conf"


@operation()
def hugepages(facts: Facts, *, hugepages: Hugepages, templates: Templates = SHIPPED) -> Iterator[Change]:
    """The huge pages of `hugepages` (2 MiB each) are reserved, and transparent huge pages have its mode, now and at
    every boot.

    Raises HostError for more than half of the memory, and for a kernel without huge pages. With fragmented memory the
    kernel may reserve fewer until the next boot; `verify` reports that. Pages of 1 GiB can only be reserved at boot:
    `kernel_cmdline: [hugepagesz=1G, hugepages=16]`.
    """
    now, _, _ = facts.all(memory.huge_pages, files.file(SYSCTL), files.file(TMPFILES))
    if hugepages.count is not None:
        if not now.size_kib:
            problem = "the kernel has no huge pages"
            raise HostError("hugepages", problem, "a kernel that has them", "leave `count` out")
        if hugepages.count * now.size_kib * 2 > now.memory_kib:
            most = now.memory_kib // 2 // now.size_kib
            pages = f"{hugepages.count} pages of {now.size_kib >> 10} MiB"
            problem = f"{pages} are more than half of the memory, {now.memory_kib >> 20} GiB"
            raise HostError("hugepages", problem, f"{most} at most", f"hugepages: {{count: {most}}}")
        text = templates.render("memory/sysctl.conf.j2", {"count": hugepages.count})
        changes = list(file.differing(facts, SYSCTL, text.encode()))
        yield from changes
        if (changes or now.total == 0) and now.total != hugepages.count:
            reserve = command("sysctl", "-q", "-p", SYSCTL, timeout_s=120)
            yield Change("run", "vm.nr_hugepages", str(now.total), str(hugepages.count), (reserve,))
    if hugepages.transparent is not None:
        if now.transparent is None:
            problem = "the kernel has no transparent huge pages"
            raise HostError("hugepages", problem, "a kernel that has them", "leave `transparent` out")
        text = templates.render("memory/tmpfiles.conf.j2", {"mode": hugepages.transparent})
        yield from file.differing(facts, TMPFILES, text.encode())
        if now.transparent != hugepages.transparent:
            apply = command("systemd-tmpfiles", "--create", TMPFILES)
            yield Change("run", "transparent huge pages", now.transparent, hugepages.transparent, (apply,))
