"""The card of a GPU as labelled rows: identity, current values, links, memory errors, measured bandwidth."""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from msgspec import Struct

from rigwright.report.html.p2p_matrix import gb_s, short


class Row(Struct, frozen=True):
    """A label and its text; `kind` marks a warning or a failure."""

    label: str
    text: str
    kind: Literal["", "warn", "fail"] = ""


class Group(Struct, frozen=True):
    """Rows under a title."""

    title: str
    rows: tuple[Row, ...]


def groups(
    gpu: dict[str, Any],
    machine: dict[str, Any],
    p2p: dict[str, Any],
    limits: dict[str, Any],
    measured: Sequence[dict[str, Any]] = (),
) -> list[Group]:
    """The groups of a card; rows without a value are left out. `limits`: the GPU's row of the key `gpus` of the
    document; `measured`: that key of the document, of all GPUs."""
    if not gpu["answers"]:
        answer = Row("Answer", gpu["lost"], "fail") if gpu["lost"] else Row("Answer", "none from the driver", "warn")
        return [Group("", (*_nonempty(_identity(gpu)), answer))]
    sections = (
        ("", _identity(gpu)),
        ("Now", _now(gpu, limits)),
        ("Links", _links(gpu, machine)),
        ("Memory", _memory(gpu)),
        ("Measured", _measured(gpu, p2p)),
        ("Under full load", _loaded(next((one for one in measured if one["uuid"] == gpu["uuid"]), None))),
    )
    return [Group(name, rows) for name, all_rows in sections if (rows := _nonempty(all_rows))]


def _nonempty(rows: Iterator[Row]) -> tuple[Row, ...]:
    return tuple(row for row in rows if row.text)


def _identity(gpu: dict[str, Any]) -> Iterator[Row]:
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
    temperature = _unit(gpu["temperature_c"], "°C")
    if temperature and gpu["slowdown_c"]:
        temperature += f" (slows down at {gpu['slowdown_c']})"
    elif temperature and (margin := gpu["tlimit_c"]) is not None:
        words = f"{margin} below its limit" if margin > 0 else f"{-margin} past its limit" if margin else "at its limit"
        temperature += f" ({words})"
    if temperature and gpu["memory_temperature_c"]:
        temperature += f", memory {gpu['memory_temperature_c']} °C"
    yield Row("Temperature", temperature)
    yield Row("Fan", _unit(gpu["fan_percent"], "%"))
    draw, limit = gpu["power_w"], gpu["power_limit_w"]
    power = " of ".join(part for part in (_unit(draw, "W"), _unit(limit, "W")) if part)
    span = f" (range {gpu['power_min_w']:g} to {gpu['power_max_w']:g})" if gpu["power_max_w"] and limit else ""
    yield Row("Power", f"{power}{span}")
    if gpu["graphics_mhz"] is not None:
        top = f" of {gpu['graphics_max_mhz']}" if gpu["graphics_max_mhz"] else ""
        memory = f", memory {gpu['memory_mhz']} MHz" if gpu["memory_mhz"] is not None else ""
        yield Row("Clocks", f"{gpu['graphics_mhz']}{top} MHz{memory}" + (f", {gpu['state']}" if gpu["state"] else ""))
    for key, label in (("power", "Power limit"), ("application_clocks", "Clocks set"), ("locked_graphics", "Locked")):
        limit = limits.get(key) or {}
        if limit.get("drift"):
            yield Row(label, f"{limit['in_force'] or 'unknown'}, expected {limit['expected']}", "fail")
    yield Row("Recovery", f"the driver asks for: {gpu['recovery_action']}" if gpu["recovery_action"] else "", "fail")
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
    links = [link for link in machine.get("nvlinks", []) if gpu["bus_id"] in (link["from"], link["to"])]
    up, down = sum(link["up"] for link in links), sum(link["down"] for link in links)
    short_of = sum(max((link["expected"] or 0) - link["up"], 0) for link in links)
    if links:
        speed = next((link["gb_s"] for link in links if link["gb_s"]), None)
        each = f", {speed:.3g} GB/s per link and direction" if speed else ""
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
        corrected, bad = counts["corrected"], counts["uncorrected"]
        if corrected is not None or bad is not None:
            kinds = ("uncorrected", "corrected")
            text = ", ".join(f"{'?' if counts[kind] is None else counts[kind]} {kind}" for kind in kinds)
            yield Row(label, text, "fail" if bad and key == "ecc_since_load" else "warn" if bad else "")
    # Retired pages, up to Turing; remapped rows, from Ampere on.
    single, double = gpu["retired_single_bit"], gpu["retired_double_bit"]
    if single is not None or double is not None:
        text = f"{single or 0} for single-bit errors, {double or 0} for double-bit errors"
        yield Row("Retired pages", text, "warn" if single or double else "")
    yield Row("Retirement", "waits for a reboot" if gpu["retirement_pending"] else "", "fail")
    good, bad = gpu["remapped_corrected"], gpu["remapped_uncorrected"]
    if good is not None or bad is not None:
        yield Row("Remapped rows", f"{bad or 0} uncorrected, {good or 0} corrected", "warn" if bad or good else "")
    yield Row("Remapping", "waits for a reset" if gpu["remap_pending"] else "", "fail")
    yield Row("Remapping", "failed: a bad row could not be replaced" if gpu["remap_failed"] else "", "fail")
    for key, part in (("channel_repair_pending", "a memory channel"), ("tpc_repair_pending", "a processor (TPC)")):
        yield Row("Repair", f"of {part} waits for a reset" if gpu[key] else "", "fail")


def _measured(gpu: dict[str, Any], p2p: dict[str, Any]) -> Iterator[Row]:
    """The bandwidth in its own memory and to its peers, from the peer-to-peer test of this run."""
    tested = next((tested for tested in p2p.get("gpus") or [] if same(tested, gpu)), None)
    if tested is None:
        return
    own = tested.get("own") or {}
    yield Row("Own memory", f"{gb_s(own['gb_s'])} GB/s" if own.get("ok") and own.get("gb_s") else "")
    for key, label in (("collective", "NCCL to peers"), ("bytes", "Copies to peers")):
        results = [pair[key] for pair in p2p.get("pairs") or [] if pair["from"] == tested["index"] and pair.get(key)]
        right = [result for result in results if result.get("ok")]
        alone = [float(result["gb_s"]) for result in right if result.get("gb_s")]
        rounds = [
            float(result["round_gb_s"]) for result in right if not result.get("gb_s") and result.get("round_gb_s")
        ]
        wrong = [result for result in results if result.get("ok") is False]
        if alone or rounds or wrong:
            text = _spread(alone, results) if alone or not rounds else ""
            text += ("; " if text else "") + _spread(rounds, results) + " in rounds" if rounds else ""
            text += f"; {len(wrong)} wrong" if wrong else ""
            yield Row(label, text, "fail" if wrong else "")


def _loaded(measured: dict[str, Any] | None) -> Iterator[Row]:
    """The figures of its newest stress, each with its share of the model's figure."""
    if measured is None:
        return
    at = datetime.datetime.fromisoformat(measured["at"]).astimezone()
    limit = f", power limit {measured['power_limit_w']:g} W" if measured["power_limit_w"] is not None else ""
    driver = f", driver {measured['driver']}" if measured["driver"] else ""
    yield Row("Stressed", f"{at:%Y-%m-%d}{limit}{driver}")
    limited = measured["slowed_by"] == "application clocks"
    for kind, rate in measured["tflops"].items():
        share, at_clock = measured["shares"].get(kind), measured["clock_shares"].get(kind)
        clocks = f"; its clocks are limited: {at_clock:.0%} at that clock" if limited and at_clock else ""
        yield Row(kind.upper(), f"{rate:.1f} TFLOPS{_of_model(share)}{clocks}")
    rate = measured["memory_gb_s"]
    yield Row("Memory speed", "" if rate is None else f"{rate:.0f} GB/s{_of_model(measured['memory_share'])}")
    ways = ((measured["to_device_gb_s"], "to it"), (measured["from_device_gb_s"], "from it"))
    copies = [f"{value:.1f} GB/s {words}" for value, words in ways if value is not None]
    yield Row("Host link", ", ".join(copies))
    readings = (
        ("", measured["power_max_w"], "W"),
        ("", measured["core_max_c"], "°C"),
        ("memory ", measured["memory_max_c"], "°C"),
    )
    yield Row("Highest", ", ".join(f"{of}{value:.0f} {unit}" for of, value, unit in readings if value is not None))


def _of_model(share: float | None) -> str:
    return "" if share is None else f", {share:.0%} of its model's figure"


def _spread(speeds: Sequence[float], results: Sequence[dict[str, Any]]) -> str:
    if not speeds:
        return "none"
    least, most = gb_s(min(speeds)), gb_s(max(speeds))
    transports = dict.fromkeys(short(str(result.get("transport") or "")) for result in results)
    way = " by " + ", ".join(filter(None, transports)) if any(transports) else ""
    middle = f" (median {gb_s(statistics.median(speeds))})" if least != most and len(speeds) > 2 else ""
    return (least if least == most else f"{least} to {most}") + f" GB/s{middle}{way}"


def same(tested: dict[str, Any], gpu: dict[str, Any]) -> bool:
    """Whether a GPU of the peer-to-peer document is this one."""
    return str(tested.get("bus_id") or "").lower()[-12:] == gpu["bus_id"] or tested.get("uuid") == (gpu["uuid"] or "-")
