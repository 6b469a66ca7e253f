"""A fleet's report as metrics: the text format that Prometheus' node_exporter reads from files (*.prom).

One family after the other, each with its HELP and TYPE; no time stamps, which that reader refuses, and no sample twice,
for which it would refuse the whole file.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rigwright.hostreport import BAD
from rigwright.report.page import shown

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Sample:
    """A value under a family's name and labels."""

    name: str
    labels: Mapping[str, Any]
    value: Any


FAMILIES: dict[str, tuple[str, str]] = {
    "rigwright_report_time_seconds": ("gauge", "When the report was made, seconds since 1970."),
    "rigwright_report_duration_seconds": ("gauge", "How long the report took."),
    "rigwright_report_exit_code": ("gauge", "0 as wanted, 1 error, 2 drift, 3 a host did not answer."),
    "rigwright_host_info": ("gauge", "What a host is; always 1."),
    "rigwright_host_up": ("gauge", "1 when the host was asked and answered."),
    "rigwright_host_drifting": ("gauge", "1 when something on the host is not as its playbook, its past or its peers have it, or a check failed."),
    "rigwright_host_findings": ("gauge", "Findings by verdict: fail, unknown, warn."),
    "rigwright_host_pending_changes": ("gauge", "Changes that provision would make."),
    "rigwright_host_became_different": ("gauge", "Things that are no longer as in the report before."),
    "rigwright_host_end_of_life_time_seconds": ("gauge", "When security updates of the distribution, or the driver's branch, end; seconds since 1970."),
    "rigwright_gpu_info": ("gauge", "What a GPU is; always 1."),
    "rigwright_gpu_up": ("gauge", "1 when the GPU answers."),
    "rigwright_gpu_temperature_celsius": ("gauge", "The GPU's temperature."),
    "rigwright_gpu_slowdown_temperature_celsius": ("gauge", "Where the GPU slows itself down."),
    "rigwright_gpu_memory_temperature_celsius": ("gauge", "The temperature of the GPU's memory."),
    "rigwright_gpu_power_watts": ("gauge", "What the GPU draws."),
    "rigwright_gpu_power_limit_watts": ("gauge", "What the GPU may draw."),
    "rigwright_gpu_utilization_ratio": ("gauge", "The share of time in which the GPU worked, 0 to 1."),
    "rigwright_gpu_memory_bytes": ("gauge", "The GPU's memory."),
    "rigwright_gpu_memory_used_bytes": ("gauge", "The GPU's memory that is taken."),
    "rigwright_gpu_graphics_clock_hertz": ("gauge", "The GPU's clock now."),
    "rigwright_gpu_memory_errors_total": ("counter", "Memory errors in the card's life, corrected and uncorrected."),
    "rigwright_gpu_retired_pages": ("gauge", "Memory pages that are out of use."),
    "rigwright_gpu_remapped_rows": ("gauge", "Memory rows that were replaced."),
    "rigwright_gpu_pcie_replays_total": ("counter", "PCIe packets that were sent again, as the GPU counts them."),
    "rigwright_gpu_pcie_width_lanes": ("gauge", "PCIe lanes in use."),
    "rigwright_gpu_pcie_width_max_lanes": ("gauge", "PCIe lanes that the GPU has."),
}  # fmt: skip
"""Every family: its type and what its HELP says; docs/fleet.md lists them."""

_GPU = {
    "temperature_c": ("temperature_celsius", 1.0),
    "slowdown_c": ("slowdown_temperature_celsius", 1.0),
    "memory_temperature_c": ("memory_temperature_celsius", 1.0),
    "power_w": ("power_watts", 1.0),
    "power_limit_w": ("power_limit_watts", 1.0),
    "utilization_percent": ("utilization_ratio", 0.01),
    "memory_mib": ("memory_bytes", float(1 << 20)),
    "memory_used_mib": ("memory_used_bytes", float(1 << 20)),
    "graphics_mhz": ("graphics_clock_hertz", 1e6),
    "replays": ("pcie_replays_total", 1.0),
    "width": ("pcie_width_lanes", 1.0),
    "width_max": ("pcie_width_max_lanes", 1.0),
}
"""By key of a card its family, and what one unit of it is in the family's."""


def text(document: Mapping[str, Any]) -> str:
    """The metrics of a report's document; a value that a host or GPU does not tell has no line."""
    found: dict[str, dict[Labels, str]] = {name: {} for name in FAMILIES}
    for one in _samples(document):
        if (number := _number(one.value)) is not None:
            labels = tuple((key, _escaped(value)) for key, value in one.labels.items())
            found[one.name].setdefault(labels, number)
    lines = []
    for name, samples in found.items():
        if samples:
            kind, said = FAMILIES[name]
            lines += [f"# HELP {name} {said}", f"# TYPE {name} {kind}"]
        for labels, number in samples.items():
            inside = ",".join(f'{key}="{value}"' for key, value in labels)
            lines.append(f"{name}{{{inside}}} {number}" if inside else f"{name} {number}")
    return "".join(f"{line}\n" for line in lines)


def _escaped(value: Any) -> str:
    """A label's value: what steers a terminal is a sign for it, and backslash, quote and line end are escaped."""
    plain = str(shown("" if value is None else str(value)))
    return plain.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: Any) -> str | None:
    """A number as the format has it; None for what is none."""
    if isinstance(value, bool):
        return str(int(value))
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return repr(round(float(value), 6)).removesuffix(".0")


def _samples(document: Mapping[str, Any]) -> Iterator[Sample]:
    began, ended = (datetime.datetime.fromisoformat(document[key]).timestamp() for key in ("started", "ended"))
    yield Sample("rigwright_report_time_seconds", {}, ended)
    yield Sample("rigwright_report_duration_seconds", {}, ended - began)
    yield Sample("rigwright_report_exit_code", {}, document["exit_code"])
    for name, host in document["hosts"].items():
        yield from _host({"host": name}, host)


def _host(of: dict[str, Any], host: Mapping[str, Any]) -> Iterator[Sample]:
    machine, over_time = host["machine"] or {}, host["fleet"] or {}
    told = {key: machine.get(key) or "" for key in ("board", "system", "kernel", "driver")}
    rig = (machine.get("rig") or {}).get("key", "")
    yield Sample("rigwright_host_info", {**of, "address": host["address"], **told, "rig": rig}, 1)
    asked = host["round_trips"] > 0  # one with a mistake in the inventory is not
    yield Sample("rigwright_host_up", of, asked and host["status"] not in ("unreachable", "not_attempted"))
    if host["error"] is None:
        yield Sample("rigwright_host_drifting", of, host["status"] == "failed")
        for verdict in BAD:
            number = sum(one["verdict"] == verdict for one in host["findings"])
            yield Sample("rigwright_host_findings", {**of, "verdict": verdict}, number)
        yield Sample("rigwright_host_pending_changes", of, len(host["changes"]))
        if over_time.get("since"):
            yield Sample("rigwright_host_became_different", of, len(over_time["became"]))
    for end in over_time.get("ends", ()):
        if end["date"] and end["kind"] in ("system", "driver"):
            day = datetime.datetime.fromisoformat(end["date"]).replace(tzinfo=datetime.timezone.utc)
            labels = {**of, "kind": end["kind"], "name": end["name"]}
            yield Sample("rigwright_host_end_of_life_time_seconds", labels, day.timestamp())
    for gpu in machine.get("gpus", ()):
        yield from _gpu({**of, "bus_id": gpu["bus_id"], "uuid": gpu["uuid"]}, gpu)


def _gpu(of: dict[str, Any], gpu: Mapping[str, Any]) -> Iterator[Sample]:
    told = {key: gpu[key] or "" for key in ("position", "name", "serial", "vbios")}
    yield Sample("rigwright_gpu_info", {**of, **told}, 1)
    yield Sample("rigwright_gpu_up", of, gpu["answers"])
    for key, (name, unit) in _GPU.items():
        if gpu[key] is not None:
            yield Sample(f"rigwright_gpu_{name}", of, gpu[key] * unit)
    for kind in ("corrected", "uncorrected"):
        yield Sample("rigwright_gpu_memory_errors_total", {**of, "kind": kind}, gpu["ecc_ever"][kind])
    for name, keys in (
        ("retired_pages", ("retired_single_bit", "retired_double_bit")),
        ("remapped_rows", ("remapped_corrected", "remapped_uncorrected")),
    ):
        parts = [gpu[key] for key in keys if gpu[key] is not None]
        yield Sample(f"rigwright_gpu_{name}", of, sum(parts) if parts else None)
