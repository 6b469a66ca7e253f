"""A stress as text: a table of the GPUs under full load, and when what went wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console

from rigwright.checks import Finding
from rigwright.core.gpu_labels import place
from rigwright.core.plugin_name import plugin_name
from rigwright.core.schema import BusId
from rigwright.features.stress.checks import as_before
from rigwright.features.stress.facts import Stage, StageResult, Stress, StressedGpu
from rigwright.report.labels import as_is
from rigwright.report.tables import with_columns, write
from rigwright.report.wrapping import hanging

KINDS = ("fp32", "tf32", "fp16", "fp64")
_SHOWN = 12
"""The number of events that are listed."""


def show(console: Console, stress: Stress, slots: Mapping[BusId, str] | None) -> None:
    """Writes a row for each GPU: its speeds alone and with all others, and its highest power and temperatures."""
    console.print()
    titles = [
        "GPU",
        *(f"{kind.upper()} TFLOPS" for kind in KINDS),
        "memory GB/s",
        "to / from GPU",
        "W",
        "MHz",
        "°C",
        "memory °C",
    ]
    table = with_columns(*titles)
    rows = [_cells(stress, gpu, slots) for gpu in stress.gpus]
    widths = [max(len(row[at]) for row in rows) for at in range(len(titles))] if rows else []
    for cells in rows:
        table.add_row(as_is(cells[0]), *(cell.rjust(widths[at]) for at, cell in enumerate(cells[1:], 1)))
    write(console, table)
    reduced = [stage.all_reduce_gb_s for stage in stress.stages if stage.all_reduce_gb_s is not None]
    words = "TFLOPS and GB/s of each GPU alone; W, MHz and °C: the highest power and temperature and the mean clock of all stages"
    words += " with all GPUs." + (f" All-reduce: {reduced[-1]:.1f} GB/s (bus bandwidth)." if reduced else "")
    hanging(console, f"[dim]{words}[/]", 0)
    for event in stress.events[:_SHOWN]:
        at = place(stress.gpus[event.gpu].bus_id, slots) if event.gpu is not None else "the machine"
        hanging(
            console,
            f"[bold red]{event.what}[/] after {event.at_s:.0f} s, {as_is(event.stage)}: {as_is(at)}: {as_is(event.text)}",
            4,
        )
    if len(stress.events) > _SHOWN:
        hanging(console, f"  and {len(stress.events) - _SHOWN} more")


def with_other_settings(console: Console, findings: Sequence[Finding]) -> None:
    """Writes a line for each GPU whose speed differs from an earlier one that was measured with other settings."""
    for finding in findings:
        if finding.check == plugin_name(as_before) and finding.verdict == "info" and finding.cause:
            hanging(console, f"{as_is(finding.subject)}: {as_is(finding.seen)}: {as_is(finding.cause)}", 4)


def loaded(stress: Stress, gpu: int) -> Sequence[tuple[Stage, StageResult]]:
    """The results of a GPU in the stages in which all GPUs work at once, or, of a GPU without one, in all stages."""
    every = [(stage, one) for stage in stress.stages for one in stage.results if one.gpu == gpu]
    most = max((len(stage.gpus) for stage, _ in every), default=0)
    return [(stage, one) for stage, one in every if len(stage.gpus) == most]


def _cells(stress: Stress, gpu: StressedGpu, slots: Mapping[BusId, str] | None) -> list[str]:
    alone = next((one for _, one in stress.results("alone") if one.gpu == gpu.index), None)
    results = loaded(stress, gpu.index)
    rates = [one.tflops if alone and (one := alone.rate(kind)) else None for kind in KINDS]
    clocks = [product.sm_mean_mhz for _, one in results for product in one.products if product.sm_mean_mhz is not None]
    copies = alone.gb_s if alone else None
    ways = (copies.to_device, copies.from_device) if copies else (None, None)
    return [
        place(gpu.bus_id, slots),
        *(_number(rate, 1) for rate in rates),
        _number(copies.memory if copies else None, 0),
        " / ".join(_number(way, 1) for way in ways) if any(way is not None for way in ways) else "-",
        _number(_most(one.power_max_w for _, one in results), 0),
        _number(sum(clocks) / len(clocks) if clocks else None, 0),
        _number(_most(one.core_max_c for _, one in results), 0),
        _number(_most(one.memory_max_c for _, one in results), 0),
    ]


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
