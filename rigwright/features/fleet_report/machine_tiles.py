"""The machines of the fleet page: their states, their GPUs with values for the heat map, and their plots."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from rigwright.checks.temperatures import HOT_C
from rigwright.core.gpu_labels import SHORT_UUID
from rigwright.features.fleet_report.plots import Series, Trend, spread, total
from rigwright.features.fleet_report.problems import DRIFT, NEVER, never_provisioned
from rigwright.report.html.host_page import HostView
from rigwright.report.labels import local_time

COOL_C = 30.0
"""The lower end of the colour scale; the upper end is the slowdown temperature, or HOT_C if it is unknown."""

IDLE_PERCENT = 5


class Value(Struct, frozen=True):
    """A value of a GPU as text, its share of the maximum (0 to 100), and both in words."""

    text: str
    share: int
    words: str


class Gpu(Struct, frozen=True):
    """A GPU: its position, state as a CSS class (`kind`), data, values by name, and all values in words."""

    title: str
    kind: str
    data: Mapping[str, Any]
    values: Mapping[str, Value]
    words: str


class Machine(Struct, frozen=True):
    """A machine: `verdict` and `label` of its state, its GPU models (`title`), GPUs and plots. `answered`: when an
    unreachable machine last answered, else ""."""

    host: HostView
    group: str
    verdict: str
    label: str
    title: str
    gpus: tuple[Gpu, ...]
    temperature: Trend | None
    power: Trend | None
    answered: str


SHOWN = {"temperature": "°C", "power": "W", "work": "% busy", "memory": "% mem"}
"""The values that the heat map can show, with their units."""


def state(host: HostView) -> tuple[str, str]:
    """The verdict and the label of a whole host."""
    status = host.data["status"]
    if status in ("unreachable", "not_attempted"):
        return "unknown", status.replace("_", " ")
    if host.data["error"]:
        return "fail", "in error"
    if any(gpu["lost"] for gpu in host.data["machine"]["gpus"]):
        return "fail", "with a lost GPU"
    if never_provisioned(host):
        return "unknown", NEVER
    failed = [finding["check"] for finding in host.findings if finding["verdict"] == "fail"]
    if failed:
        return "fail", "drifting" if any(check in DRIFT for check in failed) else "failing"
    if host.counts["unknown"]:
        return "unknown", "not proved"
    return ("warn", "with warnings") if host.counts["warn"] else ("pass", "as expected")


def machine(host: HostView, begin: float, end: float) -> Machine:
    """One machine, with its plots from `begin` to `end` (seconds since 1970)."""
    gpus = host.data["machine"]["gpus"]
    groups = [group for group in host.data["fleet"]["groups"] if group not in ("all", "ungrouped")]
    tiles = [_gpu(number, gpu, card.worst) for number, (gpu, card) in enumerate(zip(gpus, host.cards, strict=True))]
    temperatures, powers = series([host])
    limit = sum(gpu["power_limit_w"] or 0.0 for gpu in gpus) or None
    slowdown = min((gpu["slowdown_c"] for gpu in gpus if gpu["slowdown_c"]), default=None)
    plots = spread(temperatures, begin, end, slowdown), total(powers, begin, end, limit)
    at = host.data["fleet"]["answered"] if host.data["status"] == "unreachable" else None
    answered = local_time(datetime.datetime.fromisoformat(at)) if at else ""
    return Machine(host, groups[-1] if groups else "", *state(host), models(gpus), tuple(tiles), *plots, answered)


def model(gpu: Mapping[str, Any]) -> str:
    """The model of a GPU, or the one that is expected."""
    return str(gpu["name"] or gpu["expected"] or "unknown GPU")


def models(gpus: Sequence[Mapping[str, Any]]) -> str:
    """`4 x Tesla V100-SXM2-16GB`; several models in the order of their number."""
    return ", ".join(f"{number} x {name}" for name, number in Counter(map(model, gpus)).most_common())


def series(hosts: Sequence[HostView]) -> tuple[list[list[Series]], list[list[Series]]]:
    """The series of temperature and of power, for each machine and GPU."""
    readings = [list(host.data["fleet"]["readings"].values()) for host in hosts]

    def column(number: int) -> list[list[Series]]:
        return [
            [[(row[0], row[number]) for row in rows if row[number] is not None] for rows in gpus] for gpus in readings
        ]

    return column(1), column(2)


def times(hosts: Sequence[HostView], ended: datetime.datetime) -> tuple[float, float]:
    """The times of the first reading of all hosts and of the report, seconds since 1970."""
    first = [rows[0][0] for host in hosts for rows in host.data["fleet"]["readings"].values() if rows]
    end = ended.timestamp()
    return min(first, default=end), max(end, max(first, default=end))


def _gpu(number: int, gpu: Mapping[str, Any], worst: str) -> Gpu:
    title = str(gpu["position"] or f"GPU {number}")
    if not gpu["answers"]:
        why = str(gpu["lost"] or "does not answer")
        return Gpu(title, "fail" if gpu["lost"] else "unknown", gpu, {}, f"{title} {gpu['bus_id']}: {why}")
    values = _values(gpu)
    words = ", ".join(value.words for value in values.values())
    return Gpu(title, worst, gpu, values, f"{title} {str(gpu['uuid'])[:SHORT_UUID]}: {words or 'no values'}")


def _share(part: float, whole: float) -> int:
    return max(0, min(100, round(100 * part / whole))) if whole > 0 else 0


def _values(gpu: Mapping[str, Any]) -> dict[str, Value]:
    values = {}
    temperature, slowdown = gpu["temperature_c"], gpu["slowdown_c"]
    if temperature is not None:
        words = f"{temperature} °C" + (f" of {slowdown} °C, where it slows down" if slowdown else "")
        if not slowdown and gpu["tlimit_c"] is not None:
            slowdown = temperature + gpu["tlimit_c"]
            words += f", {gpu['tlimit_c']} °C left to its limit"
        share = _share(temperature - COOL_C, (slowdown or HOT_C) - COOL_C)
        values["temperature"] = Value(f"{temperature}", share, words)
    power, limit = gpu["power_w"], gpu["power_limit_w"]
    if power is not None:
        words = f"{power:.0f} W" + (f" of {limit:.0f} W" if limit else "")
        values["power"] = Value(f"{power:.0f}", _share(power, limit or 0.0), words)
    percent = gpu["utilization_percent"]
    if percent is not None:
        values["work"] = Value(f"{percent}", _share(percent, 100), f"{percent} % busy")
    used, size = gpu["memory_used_mib"], gpu["memory_mib"]
    if used is not None and size:
        share = _share(used, size)
        values["memory"] = Value(f"{share}", share, f"{used / 1024:.1f} of {size / 1024:.0f} GiB taken")
    return values
