"""The matrices of the peer-to-peer test: bandwidth, transport and result of every pair of GPUs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from msgspec import Struct


class Cell(Struct, frozen=True):
    """One ordered pair. `text` in parentheses: not measured alone. `way`: the transport; `kind`: a CSS class; `heat`: 0
    to 100, logarithmic up to the fastest pair."""

    text: str
    way: str
    kind: str
    heat: int
    title: str


class Matrix(Struct, frozen=True):
    """A caption, the names of the GPUs, and a row of cells for each GPU; None on the diagonal."""

    caption: str
    names: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell | None, ...]], ...]


def matrices(p2p: dict[str, Any], positions: dict[str, str]) -> list[Matrix]:
    """The matrices with results: NCCL, CUDA copies, NCCL without P2P. `positions`: by bus id with a short domain."""
    gpus = p2p.get("gpus") or []
    names = {
        gpu["index"]: positions.get(str(gpu.get("bus_id") or "").lower()[-12:]) or f"GPU {gpu['index']}" for gpu in gpus
    }
    views = (
        ("NCCL send and receive, GB/s one way", "collective", "transport"),
        ("CUDA copies between peers, GB/s one way", "bytes", ""),
        ("NCCL without P2P (NCCL_P2P_DISABLE=1), GB/s one way", "without_p2p", "transport"),
    )
    result = []
    for caption, key, way in views:
        results = {(pair["from"], pair["to"]): _result(pair, key) for pair in p2p.get("pairs") or []}
        if any(result is not None for result in results.values()):
            result.append(_matrix(caption, results, names, way))
    return result


def _result(pair: dict[str, Any], key: str) -> dict[str, Any] | None:
    holder = (pair.get("collective") or {}) if key == "without_p2p" else pair
    result = holder.get(key)
    return result if isinstance(result, dict) else None


def _matrix(
    caption: str, results: dict[tuple[int, int], dict[str, Any] | None], names: dict[int, str], way: str
) -> Matrix:
    speeds = [speed for result in results.values() if result and (speed := _speed(result)[0])]
    most = max(speeds, default=1.0)
    rows = []
    for a, name in names.items():
        cells = tuple(None if a == b else _cell(results.get((a, b)), way, most, f"{name} to {names[b]}") for b in names)
        rows.append((name, cells))
    return Matrix(caption, tuple(names.values()), tuple(rows))


def _cell(result: dict[str, Any] | None, way: str, most: float, pair: str) -> Cell:
    if result is None:
        return Cell("–", "", "none", 0, f"{pair}: not tested")
    outcome = str(result.get("outcome") or "")
    if not result.get("ok"):
        kind = "refused" if outcome == "refused" else "none" if outcome == "not run" else "wrong"
        title = f"{pair}: {outcome}. {result.get('error') or ''}".rstrip()
        return Cell({"refused": "no", "not run": "–"}.get(outcome, outcome), "", kind, 0, title)
    speed, alone = _speed(result)
    transport = str(result.get(way) or "") if way else ""
    latency = f", {result['latency_us']:g} µs" if result.get("latency_us") else ""
    heat = round(100 * math.log1p(speed) / math.log1p(most)) if most else 0
    when = "" if alone else " in its round, not measured alone;"
    title = f"{pair}: {speed:g} GB/s{latency}{when} {transport}".rstrip(" ;")
    return Cell(gb_s(speed) if alone else f"({gb_s(speed)})", short(transport), "ok", heat, title)


def _speed(result: dict[str, Any]) -> tuple[float, bool]:
    """GB/s, and whether it was measured while no other pair transferred."""
    if result.get("gb_s") is None and result.get("round_gb_s") is not None:
        return float(result["round_gb_s"]), False
    return float(result.get("gb_s") or 0.0), True


def gb_s(value: float) -> str:
    """Two or three figures: 48, 7.8, 0.79."""
    return f"{value:.0f}" if value >= 9.95 else f"{value:.1f}" if value >= 0.995 else f"{value:.2f}"


def short(transport: str) -> str:
    """The first word of each transport: `P2P/direct pointer` is `P2P`."""
    parts: Sequence[str] = [part.split("/")[0].split(":")[0] for part in transport.split(" + ")]
    return "+".join(dict.fromkeys(parts))
