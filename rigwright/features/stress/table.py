"""A stress as text: a table of the GPUs under full load, and what went wrong when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console

from rigwright.checks import Finding
from rigwright.core.gpu_labels import place
from rigwright.core.plugin_name import plugin_name
from rigwright.core.schema import BusId
from rigwright.features.stress.checks import as_before
from rigwright.features.stress.facts import Copies, Stress, StressedGpu, highest
from rigwright.report.labels import as_is
from rigwright.report.tables import with_columns, write
from rigwright.report.wrapping import hanging

KINDS = ("fp32", "tf32", "fp16", "fp64")
_SHOWN = 12
"""The number of events that are listed."""


def show(console: Console, stress: Stress, slots: Mapping[BusId, str] | None) -> None:
    """Writes a row for each GPU: its speeds alone and with all others, and its highest power and temperatures."""
    console.print()
    speeds = (*(f"{kind.upper()} TFLOPS" for kind in KINDS), "memory GB/s", "to / from GPU")
    titles = ("GPU", *speeds, "W", "MHz", "°C", "memory °C")
    table = with_columns(*titles)
    rows = [_cells(stress, gpu, slots) for gpu in stress.gpus]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for cells in rows:
        table.add_row(as_is(cells[0]), *(cell.rjust(widths[at]) for at, cell in enumerate(cells[1:], 1)))
    write(console, table)
    words = "TFLOPS and GB/s of each GPU alone; W, MHz and °C: the highest power and temperature and the mean clock of"
    words += " all stages with all GPUs."
    reduced = [stage.all_reduce_gb_s for stage in stress.stages if stage.all_reduce_gb_s is not None]
    if reduced:
        words += f" All-reduce: {reduced[-1]:.1f} GB/s (bus bandwidth)."
    hanging(console, f"[dim]{words}[/]", 0)
    for event in stress.events[:_SHOWN]:
        at = place(stress.gpus[event.gpu].bus_id, slots) if event.gpu is not None else "the machine"
        words = f"after {event.at_s:.0f} s, {event.stage}: {at}: {event.text}"
        hanging(console, f"[bold red]{event.what}[/] {as_is(words)}", 4)
    if len(stress.events) > _SHOWN:
        hanging(console, f"  and {len(stress.events) - _SHOWN} more")


def show_other_settings(console: Console, findings: Sequence[Finding]) -> None:
    """Writes a line for each GPU whose speed differs from an earlier one that was measured with other settings."""
    for finding in findings:
        if finding.check == plugin_name(as_before) and finding.verdict == "info" and finding.cause:
            hanging(console, f"{as_is(finding.subject)}: {as_is(finding.seen)}: {as_is(finding.cause)}", 4)


def _cells(stress: Stress, gpu: StressedGpu, slots: Mapping[BusId, str] | None) -> list[str]:
    alone = stress.alone.get(gpu.index)
    # The stages with the most GPUs in which this GPU worked
    every = stress.results_of(gpu)
    most = max((len(stage.gpus) for stage, _ in every), default=0)
    loaded = [result for stage, result in every if len(stage.gpus) == most]
    rates = [products.tflops if alone and (products := alone.products_of(kind)) else None for kind in KINDS]
    clocks = [
        products.sm_mean_mhz for result in loaded for products in result.products if products.sm_mean_mhz is not None
    ]
    copies = alone.gb_s if alone else Copies(None, None, None)
    ways = (copies.to_device, copies.from_device)
    return [
        place(gpu.bus_id, slots),
        *(_number(rate, 1) for rate in rates),
        _number(copies.memory, 0),
        " / ".join(_number(way, 1) for way in ways) if ways != (None, None) else "-",
        _number(highest(result.power_max_w for result in loaded), 0),
        _number(sum(clocks) / len(clocks) if clocks else None, 0),
        _number(highest(result.core_max_c for result in loaded), 0),
        _number(highest(result.memory_max_c for result in loaded), 0),
    ]


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
