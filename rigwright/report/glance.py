"""A fleet at a glance: its figures, its machines with their GPUs as heat, and the plots of the last days."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rigwright.hostreport import FAILS
from rigwright.positions import SHORT_UUID
from rigwright.report.attention import DRIFT
from rigwright.report.page import HostView
from rigwright.report.trend import Series, Trend, spread, total

COOL_C, HOT_C = 30.0, 90.0
"""The ends of the scale of heat, where a GPU does not say at which temperature it slows down."""

IDLE_PERCENT = 5


@dataclass(frozen=True)
class Value:
    """A figure, its share of what it can be (0 to 100), and both in words; empty where the GPU does not tell."""

    text: str
    share: int
    words: str


@dataclass(frozen=True)
class Gpu:
    """A GPU: what it is called, `kind` by its worst finding or its silence, its figures by name, and all of it in words."""

    title: str
    name: str
    kind: str
    said: Mapping[str, Any]
    values: Mapping[str, Value]
    words: str


@dataclass(frozen=True)
class Machine:
    """A machine: `verdict` and `label` of its state, what it is in words, its GPUs and its plots; of one that does not answer,
    when it last did."""

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
"""What the map of heat can show, with its unit."""


def state(host: HostView) -> tuple[str, str]:
    """A verdict and a word or two for a whole host."""
    status = host.said["status"]
    if status in ("unreachable", "not_attempted"):
        return "unknown", status.replace("_", " ")
    if host.said["error"]:
        return "fail", "in error"
    bad = [one for one in host.findings if one["verdict"] in FAILS]
    if bad:
        return "fail", "drifting" if any(one["check"] in DRIFT for one in bad) else "failing"
    return ("warn", "with warnings") if host.counts["warn"] else ("pass", "as wanted")


def machine(host: HostView, begin: float, end: float) -> Machine:
    """One machine, with its plots between two times."""
    gpus = host.said["machine"]["gpus"]
    groups = [group for group in host.said["fleet"]["groups"] if group not in ("all", "ungrouped")]
    temperatures, powers = series([host])
    limit = sum(gpu["power_limit_w"] or 0.0 for gpu in gpus) or None
    slowdown = min((gpu["slowdown_c"] for gpu in gpus if gpu["slowdown_c"]), default=None)
    return Machine(
        host, groups[-1] if groups else "", *state(host), models(gpus),
        tuple(_gpu(number, gpu, card.worst) for number, (gpu, card) in enumerate(zip(gpus, host.cards, strict=True))),
        spread(temperatures, begin, end, slowdown), total(powers, begin, end, limit),
        when(answered) if host.said["status"] == "unreachable" and (answered := host.said["fleet"]["answered"]) else "",
    )  # fmt: skip


def when(text: str) -> str:
    """A time by this machine's clock, to the minute."""
    return datetime.datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M")


def models(gpus: Sequence[Mapping[str, Any]]) -> str:
    """`4 x Tesla V100-SXM2-16GB`; of several models each, the most common first."""
    count = Counter(str(gpu["name"] or gpu["expected"] or "GPU that does not answer") for gpu in gpus)
    return ", ".join(f"{number} x {name}" for name, number in count.most_common())


def series(hosts: Sequence[HostView]) -> tuple[list[list[Series]], list[list[Series]]]:
    """The temperatures and the powers over time, by machine and GPU."""
    readings = [list(host.said["fleet"]["readings"].values()) for host in hosts]
    temperatures: list[list[Series]] = [
        [[(row[0], row[1]) for row in rows if row[1] is not None] for rows in gpus] for gpus in readings
    ]
    powers: list[list[Series]] = [
        [[(row[0], row[2]) for row in rows if row[2] is not None] for rows in gpus] for gpus in readings
    ]
    return temperatures, powers


def times(hosts: Sequence[HostView], ended: datetime.datetime) -> tuple[float, float]:
    """From the first reading of all hosts to the report."""
    first = [rows[0][0] for host in hosts for rows in host.said["fleet"]["readings"].values() if rows]
    end = ended.timestamp()
    return min(first, default=end), max(end, max(first, default=end))


def _gpu(number: int, gpu: Mapping[str, Any], worst: str) -> Gpu:
    title = str(gpu["position"] or f"GPU {number}")
    name = str(gpu["name"] or gpu["expected"] or "")
    if not gpu["answers"]:
        why = str(gpu["lost"] or "does not answer")
        return Gpu(title, name, "fail" if gpu["lost"] else "unknown", gpu, {}, f"{title} {gpu['bus_id']}: {why}")
    values = {key: value for key in SHOWN if (value := _VALUES[key](gpu)) is not None}
    told = ", ".join(value.words for value in values.values())
    return Gpu(title, name, worst, gpu, values, f"{title} {str(gpu['uuid'])[:SHORT_UUID]}: {told or 'tells nothing'}")


def _share(part: float, whole: float) -> int:
    return max(0, min(100, round(100 * part / whole))) if whole > 0 else 0


def _temperature(gpu: Mapping[str, Any]) -> Value | None:
    now, most = gpu["temperature_c"], gpu["slowdown_c"]
    if now is None:
        return None
    words = f"{now} °C" + (f" of {most} °C, where it slows down" if most else "")
    return Value(f"{now}", _share(now - COOL_C, (most or HOT_C) - COOL_C), words)


def _power(gpu: Mapping[str, Any]) -> Value | None:
    now, most = gpu["power_w"], gpu["power_limit_w"]
    if now is None:
        return None
    return Value(f"{now:.0f}", _share(now, most or 0.0), f"{now:.0f} W" + (f" of {most:.0f} W" if most else ""))


def _work(gpu: Mapping[str, Any]) -> Value | None:
    now = gpu["utilization_percent"]
    return None if now is None else Value(f"{now}", _share(now, 100), f"{now} % busy")


def _memory(gpu: Mapping[str, Any]) -> Value | None:
    now, most = gpu["memory_used_mib"], gpu["memory_mib"]
    if now is None or not most:
        return None
    share = _share(now, most)
    return Value(f"{share}", share, f"{now / 1024:.1f} of {most / 1024:.0f} GiB taken")


_VALUES = {"temperature": _temperature, "power": _power, "work": _work, "memory": _memory}
