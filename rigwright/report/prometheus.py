"""The metrics of `fleet.report`, in the text format that Prometheus' node_exporter reads from files (*.prom).

Its textfile collector refuses time stamps, and a file with the same sample twice; so there are none.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from rigwright.core.control_characters import visible
from rigwright.engine.report import BAD

Labels = tuple[tuple[str, str], ...]


class Sample(Struct, frozen=True):
    """A value with the name of its metric and its labels."""

    name: str
    labels: Mapping[str, Any]
    value: Any


FAMILIES: dict[str, tuple[str, str]] = {
    "rigwright_report_time_seconds": ("gauge", "When the report was made, seconds since 1970."),
    "rigwright_report_duration_seconds": ("gauge", "How long the report took."),
    "rigwright_report_exit_code": ("gauge", "0 as expected, 1 error, 2 drift, 3 a host did not answer."),
    "rigwright_host_info": ("gauge", "The host in labels; always 1."),
    "rigwright_host_up": ("gauge", "1 when the host was asked and answered."),
    "rigwright_host_drifting": ("gauge",
                                "1 when the host differs from its playbook, its past or its peers, or a check failed "
                                "or could not be answered."),
    "rigwright_host_findings": ("gauge", "Findings by verdict: fail, unknown, warn."),
    "rigwright_host_pending_changes": ("gauge", "Changes that provision would make."),
    "rigwright_host_became_different": ("gauge", "Differences from the last report."),
    "rigwright_host_end_of_life_time_seconds": ("gauge", "When security updates of the distribution, "
                                                         "or the driver's branch, end; seconds since 1970."),
    "rigwright_gpu_info": ("gauge", "The GPU in labels; always 1."),
    "rigwright_gpu_up": ("gauge", "1 when the GPU answers."),
    "rigwright_gpu_temperature_celsius": ("gauge", "The GPU's temperature."),
    "rigwright_gpu_slowdown_temperature_celsius": ("gauge", "The temperature at which the GPU slows down."),
    "rigwright_gpu_temperature_margin_celsius": ("gauge", "Degrees left to the GPU's temperature limit (T.Limit, "
                                                          "Ada and newer)."),
    "rigwright_gpu_memory_temperature_celsius": ("gauge", "The temperature of the GPU's memory."),
    "rigwright_gpu_power_watts": ("gauge", "The GPU's power draw."),
    "rigwright_gpu_power_limit_watts": ("gauge", "The GPU's power limit."),
    "rigwright_gpu_utilization_ratio": ("gauge", "The share of time in which the GPU worked, 0 to 1."),
    "rigwright_gpu_memory_bytes": ("gauge", "The GPU's memory."),
    "rigwright_gpu_memory_used_bytes": ("gauge", "The GPU's used memory."),
    "rigwright_gpu_graphics_clock_hertz": ("gauge", "The GPU's clock now."),
    "rigwright_gpu_memory_errors_total": ("counter", "Memory errors in the card's life, corrected and uncorrected."),
    "rigwright_gpu_retired_pages": ("gauge", "Retired memory pages."),
    "rigwright_gpu_remapped_rows": ("gauge", "Remapped memory rows."),
    "rigwright_gpu_pcie_replays_total": ("counter", "PCIe packets that were sent again, counted by the GPU."),
    "rigwright_gpu_pcie_width_lanes": ("gauge", "PCIe lanes in use."),
    "rigwright_gpu_pcie_width_max_lanes": ("gauge", "PCIe lanes that the GPU has."),
    "rigwright_gpu_full_load_ratio": ("gauge", "What the newest stress measured as a share of the model's figure, "
                                               "by kind of product."),
    "rigwright_gpu_full_load_time_seconds": ("gauge", "When the newest stress measured the GPU; seconds since 1970."),
}  # fmt: skip
"""Every metric: its type and its HELP text; docs/guide/fleet.md lists them."""

_GPU = {
    "temperature_c": ("temperature_celsius", 1.0),
    "slowdown_c": ("slowdown_temperature_celsius", 1.0),
    "tlimit_c": ("temperature_margin_celsius", 1.0),
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
"""By key of a GPU: its metric, and the factor to the unit of the metric."""


def text(document: Mapping[str, Any]) -> str:
    """The metrics of a document; an unknown value has no line."""
    families: dict[str, dict[Labels, str]] = {name: {} for name in FAMILIES}
    for sample in _samples(document):
        if (number := _number(sample.value)) is not None:
            labels = tuple((key, _escaped(value)) for key, value in sample.labels.items())
            families[sample.name].setdefault(labels, number)
    lines = []
    for name, samples in families.items():
        if samples:
            kind, help_text = FAMILIES[name]
            lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]
        for labels, number in samples.items():
            inside = ",".join(f'{key}="{value}"' for key, value in labels)
            lines.append(f"{name}{{{inside}}} {number}" if inside else f"{name} {number}")
    return "".join(f"{line}\n" for line in lines)


def _escaped(value: Any) -> str:
    """A label's value: control characters replaced; backslash, quote and newline escaped."""
    return visible("" if value is None else str(value)).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: Any) -> str | None:
    """A number in the format; None for a value that is no finite number."""
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


def _host(labels: dict[str, Any], host: Mapping[str, Any]) -> Iterator[Sample]:
    machine, over_time = host["machine"] or {}, host["fleet"] or {}
    texts = {key: machine.get(key) or "" for key in ("board", "system", "kernel", "driver")}
    rig = (machine.get("rig") or {}).get("key", "")
    yield Sample("rigwright_host_info", {**labels, "address": host["address"], **texts, "rig": rig}, 1)
    connected = host["round_trips"] > 0  # not with an error in the inventory
    yield Sample("rigwright_host_up", labels, connected and host["status"] not in ("unreachable", "not_attempted"))
    if host["error"] is None:
        yield Sample("rigwright_host_drifting", labels, host["status"] == "failed")
        for verdict in BAD:
            number = sum(finding["verdict"] == verdict for finding in host["findings"])
            yield Sample("rigwright_host_findings", {**labels, "verdict": verdict}, number)
        yield Sample("rigwright_host_pending_changes", labels, len(host["changes"]))
        if over_time.get("since"):
            yield Sample("rigwright_host_became_different", labels, len(over_time["became"]))
    for end in over_time.get("ends", ()):
        if end["date"] and end["kind"] in ("system", "driver"):
            day = datetime.datetime.fromisoformat(end["date"]).replace(tzinfo=datetime.timezone.utc)
            end_labels = {**labels, "kind": end["kind"], "name": end["name"]}
            yield Sample("rigwright_host_end_of_life_time_seconds", end_labels, day.timestamp())
    for gpu in machine.get("gpus", ()):
        yield from _gpu({**labels, "bus_id": gpu["bus_id"], "uuid": gpu["uuid"]}, gpu)
    for measured in host["measured"] or ():
        of_gpu = {**labels, "bus_id": measured["bus_id"], "uuid": measured["uuid"]}
        at = datetime.datetime.fromisoformat(measured["at"]).timestamp()
        yield Sample("rigwright_gpu_full_load_time_seconds", of_gpu, at)
        for kind, share in measured["shares"].items():
            yield Sample("rigwright_gpu_full_load_ratio", {**of_gpu, "kind": kind}, share)


def _gpu(labels: dict[str, Any], gpu: Mapping[str, Any]) -> Iterator[Sample]:
    texts = {key: gpu[key] or "" for key in ("position", "name", "serial", "vbios")}
    yield Sample("rigwright_gpu_info", {**labels, **texts}, 1)
    yield Sample("rigwright_gpu_up", labels, gpu["answers"])
    for key, (name, unit) in _GPU.items():
        if gpu[key] is not None:
            yield Sample(f"rigwright_gpu_{name}", labels, gpu[key] * unit)
    for kind in ("corrected", "uncorrected"):
        yield Sample("rigwright_gpu_memory_errors_total", {**labels, "kind": kind}, gpu["ecc_ever"][kind])
    for name, keys in (
        ("retired_pages", ("retired_single_bit", "retired_double_bit")),
        ("remapped_rows", ("remapped_corrected", "remapped_uncorrected")),
    ):
        parts = [gpu[key] for key in keys if gpu[key] is not None]
        yield Sample(f"rigwright_gpu_{name}", labels, sum(parts) if parts else None)
