"""Huge pages of the kernel."""

from __future__ import annotations

from collections.abc import Iterator

from rigwright.checks import Finding, check
from rigwright.core.desired import Hugepages
from rigwright.facts import Facts, memory


@check()
def hugepages_in_force(facts: Facts, *, hugepages: Hugepages) -> Iterator[Finding]:
    """The kernel has reserved the huge pages of the inventory, and transparent ones have its mode."""
    now = facts(memory.huge_pages)
    if hugepages.count is not None:
        seen = f"{now.total} of {now.size_kib >> 10} MiB"
        if now.total == hugepages.count:
            yield Finding("huge pages", "pass", seen)
        else:
            few = now.total < hugepages.count
            cause = (
                "the memory is fragmented, so the kernel found no more"
                if few
                else "another program or file reserves them"
            )
            fix = (
                "sudo reboot; or invoke provision"
                if few
                else "grep -rn nr_hugepages /etc/sysctl.conf /etc/sysctl.d; sudo dmesg | grep -i hugepage"
            )
            yield Finding("huge pages", "fail", seen, str(hugepages.count), cause, fix, "inventory")
    if hugepages.transparent is not None:
        right = now.transparent == hugepages.transparent
        fix = (
            ""
            if right
            else "invoke provision; another program may set it: systemctl list-units | grep -e tuned -e hugepage"
        )
        wanted = "" if right else hugepages.transparent
        yield Finding(
            "transparent huge pages",
            "pass" if right else "fail",
            now.transparent or "none",
            wanted,
            "",
            fix,
            "inventory",
        )
