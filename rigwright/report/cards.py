"""A GPU's card in words: what it is, how it runs, how its memory fares, and what it reaches of the others."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rigwright.report.heat import gb_s, short


@dataclass(frozen=True)
class Row:
    """A label and its words; `kind` says that they want a look (warn) or are bad (fail)."""

    label: str
    text: str
    kind: Literal["", "warn", "fail"] = ""


@dataclass(frozen=True)
class Group:
    """Rows under a title."""

    title: str
    rows: tuple[Row, ...]


def title(gpu: dict[str, Any]) -> str:
    """`SXM2-1 Tesla V100-SXM2-16GB`, or what is known of it."""
    return f"{gpu['position']} {gpu['name'] or gpu['expected'] or 'GPU'}".strip()


def groups(gpu: dict[str, Any], machine: dict[str, Any], p2p: dict[str, Any], limits: dict[str, Any]) -> list[Group]:
    """The card, group by group; rows without a value are left out."""
    if not gpu["answers"]:
        silent = Row("Answer", "none: no driver tells of it", "warn")
        answer = Row("Answer", gpu["lost"], "fail") if gpu["lost"] else silent
        return [Group("", (*_nonempty(_where(gpu)), answer))]
    found = (
        ("", _where(gpu)),
        ("Now", _now(gpu, limits)),
        ("Links", _links(gpu, machine)),
        ("Memory", _memory(gpu)),
        ("Measured", _measured(gpu, p2p)),
    )
    return [Group(name, rows) for name, made in found if (rows := _nonempty(made))]


def _nonempty(rows: Iterator[Row]) -> tuple[Row, ...]:
    return tuple(row for row in rows if row.text)


def _where(gpu: dict[str, Any]) -> Iterator[Row]:
    yield Row("Bus id", gpu["bus_id"])
    yield Row("UUID", gpu["uuid"])
    yield Row("Serial", gpu["serial"] or "")
    yield Row("VBIOS", gpu["vbios"] or "")
    yield Row("Part", gpu["part_number"] or "")
    ids = f"10de:{gpu['device_id']}" if gpu["device_id"] else ""
    yield Row("PCI id", f"{ids}, card {gpu['subsystem_id']}" if gpu["subsystem_id"] else ids)


def _unit(value: float | None, unit: str) -> str:
    return "" if value is None else f"{value:g} {unit}"


def _now(gpu: dict[str, Any], limits: dict[str, Any]) -> Iterator[Row]:
    heat = _unit(gpu["temperature_c"], "°C")
    if heat and gpu["slowdown_c"]:
        heat += f" (slows at {gpu['slowdown_c']})"
    if heat and gpu["memory_temperature_c"]:
        heat += f", memory {gpu['memory_temperature_c']} °C"
    yield Row("Temperature", heat)
    yield Row("Fan", _unit(gpu["fan_percent"], "%"))
    draw, limit = gpu["power_w"], gpu["power_limit_w"]
    power = " of ".join(part for part in (_unit(draw, "W"), _unit(limit, "W")) if part)
    span = f" (takes {gpu['power_min_w']:g} to {gpu['power_max_w']:g})" if gpu["power_max_w"] and limit else ""
    yield Row("Power", f"{power}{span}")
    if gpu["graphics_mhz"] is not None:
        top = f" of {gpu['graphics_max_mhz']}" if gpu["graphics_max_mhz"] else ""
        memory = f", memory {gpu['memory_mhz']} MHz" if gpu["memory_mhz"] is not None else ""
        yield Row("Clocks", f"{gpu['graphics_mhz']}{top} MHz{memory}" + (f", {gpu['state']}" if gpu["state"] else ""))
    for key, label in (("power", "Power limit"), ("application_clocks", "Clocks set"), ("locked_graphics", "Locked")):
        said = limits.get(key) or {}
        if said.get("drift"):
            yield Row(label, f"{said['in_force'] or 'unknown'}, wanted {said['wanted']}", "fail")
    yield Row("Reset", "required" if gpu["reset_required"] else "", "fail")
    yield Row("Not readable", ", ".join(gpu["unread"]), "warn")


def _links(gpu: dict[str, Any], machine: dict[str, Any]) -> Iterator[Row]:
    width, most = gpu["width"], gpu["width_max"]
    if width:
        narrow = bool(most and width < most)
        lanes = f"x{width} of x{most}" if narrow else f"x{width}"
        speeds = [value for value in (gpu["generation_max"], gpu["generation_host"]) if value]
        top = f", at most Gen{min(speeds)}" if speeds and gpu["generation"] != min(speeds) else ""
        now = f", Gen{gpu['generation']} now" if gpu["generation"] else ""
        yield Row("PCIe", f"{lanes}{now}{top}", "warn" if narrow else "")
    replays = gpu["replays"] or 0
    yield Row("Replays", f"{replays} since the driver was loaded" if replays else "", "warn")
    ends = [one for one in machine.get("nvlinks", []) if gpu["bus_id"] in (one["from"], one["to"])]
    up, down = sum(one["up"] for one in ends), sum(one["down"] for one in ends)
    short_of = sum(max((one["wanted"] or 0) - one["up"], 0) for one in ends)
    if ends:
        speed = next((one["gb_s"] for one in ends if one["gb_s"]), None)
        each = f", {speed:.3g} GB/s a link and way" if speed else ""
        missing = max(down, short_of)
        yield Row("NVLinks", f"{up} up{each}" + (f", {missing} missing" if missing else ""), "fail" if missing else "")


def _memory(gpu: dict[str, Any]) -> Iterator[Row]:
    size = gpu["memory_mib"]
    bar = f", BAR1 {gpu['bar1_mib']} MiB" if gpu["bar1_mib"] else ""
    yield Row("Size", f"{size} MiB{bar}" if size else "")
    if gpu["ecc"] is None:
        yield Row("ECC", "none")
    else:
        now, then = ("on" if value else "off" for value in (gpu["ecc"], gpu["ecc_next_boot"]))
        after = f", {then} after the next boot" if gpu["ecc_next_boot"] not in (None, gpu["ecc"]) else ""
        yield Row("ECC", now + after, "" if gpu["ecc"] else "warn")
    for key, label in (("ecc_since_load", "Errors since load"), ("ecc_ever", "Errors ever")):
        counts = gpu[key]
        good, bad = counts["corrected"], counts["uncorrected"]
        if good is not None or bad is not None:
            said = f"{bad if bad is not None else '?'} uncorrected, {good if good is not None else '?'} corrected"
            yield Row(label, said, "fail" if bad and key == "ecc_since_load" else "warn" if bad else "")
    yield from _retired(gpu)


def _retired(gpu: dict[str, Any]) -> Iterator[Row]:
    """Pages that were taken out of use, up to Turing; rows that were replaced, from Ampere on."""
    one, two = gpu["retired_single_bit"], gpu["retired_double_bit"]
    if one is not None or two is not None:
        said = f"{one or 0} by single bits, {two or 0} by double bits"
        yield Row("Retired pages", said, "warn" if one or two else "")
    yield Row("Retirement", "waits for a reboot" if gpu["retirement_pending"] else "", "fail")
    good, bad = gpu["remapped_corrected"], gpu["remapped_uncorrected"]
    if good is not None or bad is not None:
        yield Row("Remapped rows", f"{bad or 0} uncorrected, {good or 0} corrected", "warn" if bad or good else "")
    yield Row("Remapping", "waits for a reset" if gpu["remap_pending"] else "", "fail")
    yield Row("Remapping", "failed: no spare rows are left" if gpu["remap_failed"] else "", "fail")


def _measured(gpu: dict[str, Any], p2p: dict[str, Any]) -> Iterator[Row]:
    """What it copies in its own memory, and what it reaches of its peers, from the P2P test of this run."""
    index, own = next(
        ((one["index"], one.get("own") or {}) for one in p2p.get("gpus") or [] if same(one, gpu)), (None, {})
    )
    if index is None:
        return
    yield Row("Own memory", f"{gb_s(own['gb_s'])} GB/s" if own.get("ok") and own.get("gb_s") else "")
    for key, label in (("collective", "NCCL to peers"), ("bytes", "Copies to peers")):
        tried = [one[key] for one in p2p.get("pairs") or [] if one["from"] == index and one.get(key)]
        speeds = [float(one["gb_s"]) for one in tried if one.get("ok") and one.get("gb_s")]
        wrong = [one for one in tried if one.get("ok") is False]
        if speeds or wrong:
            yield Row(
                label, _spread(speeds, tried) + (f"; {len(wrong)} wrong" if wrong else ""), "fail" if wrong else ""
            )


def _spread(speeds: Sequence[float], tried: Sequence[dict[str, Any]]) -> str:
    if not speeds:
        return "none"
    least, most = gb_s(min(speeds)), gb_s(max(speeds))
    ways = dict.fromkeys(short(str(one.get("transport") or "")) for one in tried)
    way = " by " + ", ".join(word for word in ways if word) if any(ways) else ""
    middle = f" (median {gb_s(statistics.median(speeds))})" if least != most and len(speeds) > 2 else ""
    return (least if least == most else f"{least} to {most}") + f" GB/s{middle}{way}"


def same(one: dict[str, Any], gpu: dict[str, Any]) -> bool:
    """Whether the P2P document's GPU is this one."""
    return str(one.get("bus_id") or "").lower()[-12:] == gpu["bus_id"] or one.get("uuid") == (gpu["uuid"] or "-")
