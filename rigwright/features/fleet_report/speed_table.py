"""The speed of a fleet's GPUs under full load as text: machines, and the slowest GPUs with what to do."""

from __future__ import annotations

import datetime
import shlex
from collections.abc import Sequence

from rich.console import Console

from rigwright.core.host_ranges import folded
from rigwright.core.numbers import count
from rigwright.core.process.program_name import as_typed
from rigwright.engine.machine import MachineResult, MeasuredGpus
from rigwright.engine.report import HostReport
from rigwright.features.stress import speed_rank
from rigwright.report.causes import LONGEST_NAMES
from rigwright.report.labels import as_is
from rigwright.report.tables import with_columns, write
from rigwright.report.wrapping import hanging

SHOWN = 8
"""The number of machines, and of entries of GPUs, that are listed; the page and --json have all."""


def show(console: Console, reports: Sequence[HostReport]) -> None:
    """Writes the machines and slowest GPUs by their share of the model's figure, and the machines without a speed."""
    measured = {report.host.name: gpus for report in reports if (gpus := report.last(MeasuredGpus).gpus)}
    ranked = speed_rank.gpus(measured)
    if ranked:
        console.print()
        _machines(console, speed_rank.machines(ranked))
        _gpus(console, ranked)
    if models := speed_rank.without_figure(measured):
        hanging(console, f"[dim]the catalogue has no figure of {as_is(', '.join(models))}: not ranked[/]")
    without = unmeasured(reports)
    if without:
        names = folded(without).replace(", ", ",")
        hosts = as_is(shlex.quote(names)) if len(names) <= LONGEST_NAMES else "NAMES"
        of = count(len(without), "machine") if measured else "any machine"
        words = f"no speed under full load is known of {of}: invoke stress --host {hosts} measures it"
        hanging(console, as_typed(words))


def unmeasured(reports: Sequence[HostReport]) -> list[str]:
    """The machines with a GPU that answers and without a measured one."""
    return [
        report.host.name
        for report in reports
        if not report.last(MeasuredGpus).gpus
        and any(gpu["answers"] for gpu in report.last(MachineResult).machine.get("gpus", ()))
    ]


def day(at: str) -> str:
    """The day of a time (ISO 8601), in this machine's time zone."""
    return f"{datetime.datetime.fromisoformat(at).astimezone():%Y-%m-%d}"


def _machines(console: Console, machines: Sequence[speed_rank.RankedMachine]) -> None:
    table = with_columns("machine", "slowest GPU", "mean", "GPUs", "measured")
    for machine in machines[:SHOWN]:
        shares = f"{machine.slowest:.0%}", f"{machine.mean:.0%}"
        table.add_row(as_is(machine.host), *shares, str(machine.gpus), day(machine.at))
    write(console, table)
    _more(console, len(machines) - SHOWN, "machine")


def _gpus(console: Console, ranked: Sequence[speed_rank.RankedGpu]) -> None:
    hanging(console, "[dim]shares of the model's figure under full load; the slowest GPUs:[/]")
    entries = speed_rank.entries(ranked)
    for entry in entries[:SHOWN]:
        gpu = entry.first
        mark = "[yellow]![/]" if gpu.wrong else " "
        words = [f"{entry.shares} in {gpu.kind.upper()}", *([as_is(gpu.cause)] if gpu.cause else [])]
        hanging(console, f"{mark} [bold]{as_is(gpu.host)}[/] {as_is(entry.places)}: {': '.join(words)}", 4)
        if gpu.todo:
            hanging(console, f"    [dim]to do[/]  {as_is(as_typed(gpu.todo))}", 11)
    _more(console, sum(len(entry.gpus) for entry in entries[SHOWN:]), "GPU")


def _more(console: Console, number: int, what: str) -> None:
    if number > 0:
        hanging(console, f"[dim]and {count(number, what)} more, which are faster: the page and --json have them[/]")
