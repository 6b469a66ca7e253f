"""The facts that `invoke facts` shows."""

from __future__ import annotations

from typing import Any

from rigwright.facts import Fact, driver, gpu, grub, pci
from rigwright.facts import apt as dpkg
from rigwright.facts import kernel as kernels
from rigwright.facts import os as system

SHOWN: tuple[Fact[Any], ...] = (
    system.simulated,
    system.os_release,
    system.architecture,
    system.running_kernel,
    system.boot_id,
    system.free_mib,
    kernels.command_line,
    grub.grub,
    driver.secure_boot,
    dpkg.dpkg_audit,
    pci.gpus,
    driver.loaded_version,
    driver.library_version,
    gpu.gpus,
    gpu.processes,
)


def show(work: list[Any], text: Any, _yes: bool, _show: bool) -> None:
    """Reads the facts of every host and shows them."""
    from rich.pretty import Pretty

    from rigwright import fleet

    def read(one: Any) -> None:
        one.run.read(SHOWN)
        one.report.facts = {fact.name: one.run.store.known[fact] for fact in SHOWN}
        one.report.simulated = str(one.report.facts.get("os.simulated", ""))
        one.report.status = "ok"

    fleet.run_hosts(work, read)
    for one in work:
        for name, value in one.report.facts.items():
            text.console.print(f"  [bold]{name}[/]", end=" ")
            text.console.print(
                Pretty(value) if not isinstance(value, Exception) else f"[yellow]unavailable: {value}[/]"
            )
