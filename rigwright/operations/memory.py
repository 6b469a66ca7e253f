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
    """So many huge pages of the usual size (2 MiB) are reserved, and transparent ones have the mode of `hugepages`, now
    and at every boot.

    Raises HostError for more than half of the memory, and where the kernel has no huge pages. A kernel whose memory is
    fragmented may reserve fewer than wanted until the next boot; `verify` says so. Pages of 1 GiB are reserved at the
    boot only: `kernel_cmdline: [hugepagesz=1G, hugepages=16]`.
    """
    now, _, _ = facts.all(memory.huge_pages, files.file(SYSCTL), files.file(TMPFILES))
    if hugepages.count is not None:
        _require_room(now, hugepages.count)
        text = templates.render("memory/sysctl.conf.j2", {"count": hugepages.count})
        changes = list(file.differing(facts, SYSCTL, text.encode()))
        yield from changes
        if (changes or now.total == 0) and now.total != hugepages.count:
            reserve = command("sysctl", "-q", "-p", SYSCTL, timeout_s=120)
            yield Change("run", "vm.nr_hugepages", str(now.total), str(hugepages.count), (reserve,))
    if hugepages.transparent is not None:
        if now.transparent is None:
            raise HostError(
                "hugepages",
                "the kernel has no transparent huge pages",
                "a kernel that has them",
                "leave `transparent` out",
            )
        text = templates.render("memory/tmpfiles.conf.j2", {"mode": hugepages.transparent})
        yield from file.differing(facts, TMPFILES, text.encode())
        if now.transparent != hugepages.transparent:
            apply = command("systemd-tmpfiles", "--create", TMPFILES)
            yield Change("run", "transparent huge pages", now.transparent, hugepages.transparent, (apply,))


def _require_room(now: memory.HugePages, count: int) -> None:
    if not now.size_kib:
        raise HostError("hugepages", "the kernel has no huge pages", "a kernel that has them", "leave `count` out")
    if count * now.size_kib * 2 > now.memory_kib:
        most = now.memory_kib // 2 // now.size_kib
        found = (
            f"{count} pages of {now.size_kib >> 10} MiB are more than half of the memory, {now.memory_kib >> 20} GiB"
        )
        raise HostError("hugepages", found, f"{most} at most", f"hugepages: {{count: {most}}}")
