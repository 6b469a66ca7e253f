"""`invoke facts`: shows what a host reports."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rigwright.cli import runner
from rigwright.cli.options import FactsOptions
from rigwright.engine.host_run import HostRun
from rigwright.engine.report import FactsResult
from rigwright.facts import Fact, driver, footprint, grub, kernel, pci, system
from rigwright.facts.apt import dpkg
from rigwright.facts.gpu import gpus as gpu
from rigwright.fleet import pool
from rigwright.report.labels import as_is
from rigwright.report.tables import facts as table

SHOWN: tuple[Fact[Any], ...] = (
    system.simulated,
    system.os_release,
    system.architecture,
    system.running_kernel,
    system.boot_id,
    system.free_mib,
    kernel.command_line,
    grub.grub,
    driver.secure_boot,
    dpkg.dpkg_audit,
    pci.gpus,
    driver.loaded_version,
    driver.library_version,
    gpu.gpus,
    gpu.processes,
    footprint.footprint,
)


def facts(options: FactsOptions) -> int:
    """Prints the facts of every host; returns the exit code."""
    return runner.run(options, lambda _run_id: runner.HostCommand(options, _show))


def _show(runs: list[HostRun], text: Any) -> None:
    pool.run_hosts(runs, _read, reads=True)
    for run in runs:
        if len(runs) > 1:
            text.line(f"[bold]{as_is(run.host.name)}[/]")
        table.show(text.console, run.report.facts)


def _read(run: HostRun) -> Iterator[FactsResult]:
    run.read(SHOWN)
    yield FactsResult({fact.name: run.store.known[fact] for fact in SHOWN})
