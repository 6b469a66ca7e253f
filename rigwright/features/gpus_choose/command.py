"""`invoke gpus.choose`: which GPUs of a host a program should use, as environment variables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from msgspec import to_builtins

from rigwright.cli import runner
from rigwright.core.errors import HostError, UsageError
from rigwright.core.process.program_name import program_name
from rigwright.core.schema import BusId
from rigwright.engine import host_variables
from rigwright.engine.host_run import HostRun
from rigwright.engine.report import FactsResult
from rigwright.facts import Unavailable, Unreadable, driver
from rigwright.facts.gpu import gpus as gpu, mig, topology
from rigwright.facts.nccl import p2p_test as nccl
from rigwright.features.gpus_choose import choice as gpu_choice
from rigwright.features.gpus_choose.options import GpusChooseOptions
from rigwright.features.stress import earlier_figures
from rigwright.features.stress.measured_before import MeasuredPairs
from rigwright.fleet import pool

NAME = "gpus.choose"
FACTS = (gpu.gpus, gpu.users, topology.places, topology.nvlinks, driver.loaded_version, mig.modes)


def gpus_choose(options: GpusChooseOptions) -> int:
    """Prints the environment variables for the GPUs of each host that are best joined; returns the exit code."""
    slots: dict[str, dict[BusId, str]] = {}

    def bind(inventory: Any, bound: Sequence[Any]) -> None:
        if options.export and len(bound) != 1:
            names = ", ".join(each.host.name for each in bound[:4])
            raise UsageError("--export", f"{len(bound)} hosts: {names}", "one host", f"--host {bound[0].host.name}")
        for each in bound:
            slots[each.host.name] = host_variables.of_host(each.host, inventory.rigs).desired.slots or {}

    def act(runs: list[HostRun], text: Any) -> None:
        before = earlier_figures.pairs([run for run in runs if run.report.error is None], text)
        pool.run_hosts(runs, partial(_choose, options=options, slots=slots, before=before))

    def prepare(_run_id: str) -> runner.HostCommand:
        after, looked_up = partial(_show, export=options.export), (nccl.tested.name,)
        return runner.HostCommand(
            options, act, before_connecting=bind, quiet=True, afterwards=after, looked_up=looked_up
        )

    return runner.run(options, prepare, to_stderr=options.export)


def _show(runs: list[HostRun], text: Any, export: bool) -> None:
    for run in runs:
        if run.report.error is None:
            chosen = gpu_choice.Choice(**run.report.facts[NAME])
            settings = " ".join(chosen.settings)
            if export:
                print(f"export {settings}")
            else:
                text.copied(settings)
            host = f"{run.host.name}, " if len(runs) > 1 else ""
            joined = f": {chosen.joined}" if chosen.joined else ""
            text.plain(f"# {host}{', '.join(chosen.names)}{joined}")
            if chosen.basis:
                text.plain(f"# {chosen.basis}")
            for reason in chosen.left_out:
                text.plain(f"# {reason}")


def _choose(
    run: HostRun, options: GpusChooseOptions, slots: dict[str, dict[BusId, str]], before: dict[str, MeasuredPairs]
) -> Iterator[FactsResult]:
    run.read(FACTS)
    cards, links, loaded, modes = (
        run.store.known[fact] for fact in (gpu.gpus, topology.nvlinks, driver.loaded_version, mig.modes)
    )
    if isinstance(cards, (Unavailable, Unreadable)):
        fix = f"{program_name()} verify --host {run.host.name}, which says why"
        raise HostError(run.host.name, str(cards), "GPUs that nvidia-smi lists", fix)
    chosen = gpu_choice.choose(
        options.count,
        cards,
        run.value(topology.places),
        () if isinstance(links, (Unavailable, Unreadable)) else links,
        {} if options.busy else run.value(gpu.users),
        slots.get(run.host.name),
        before.get(run.host.name),
        driver="" if loaded is None or isinstance(loaded, (Unavailable, Unreadable)) else str(loaded),
        split=[mode.bus_id for mode in modes if mode.current] if isinstance(modes, tuple) else [],
    )
    yield FactsResult({NAME: to_builtins(chosen)})
