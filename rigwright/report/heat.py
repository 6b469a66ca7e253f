"""The matrix of what every GPU reaches of every other one: GB/s, the way, and whether it is right."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Cell:
    """One ordered pair. `heat` 0 to 100, on a logarithmic scale up to the fastest pair of the matrix."""

    text: str
    way: str
    kind: str
    heat: int
    title: str


@dataclass(frozen=True)
class Matrix:
    """A caption, the GPUs' names, and a row of cells for each GPU; None on the diagonal."""

    caption: str
    names: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell | None, ...]], ...]


def matrices(p2p: dict[str, Any], positions: dict[str, str]) -> list[Matrix]:
    """NCCL's matrix, then CUDA's copies; those that have anything. `positions` by bus id, without its upper half."""
    gpus = p2p.get("gpus") or []
    names = {one["index"]: _name(one, positions) for one in gpus}
    views = (
        ("NCCL send and receive, GB/s one way", "collective", "transport"),
        ("CUDA copies between peers, GB/s one way", "bytes", ""),
        ("NCCL without P2P (NCCL_P2P_DISABLE=1), GB/s one way", "without_p2p", "transport"),
    )
    found = []
    for caption, key, way in views:
        results = {(one["from"], one["to"]): _result(one, key) for one in p2p.get("pairs") or []}
        if any(result is not None for result in results.values()):
            found.append(_matrix(caption, results, names, way))
    return found


def _name(gpu: dict[str, Any], positions: dict[str, str]) -> str:
    bus_id = str(gpu.get("bus_id") or "").lower()[-12:]
    return positions.get(bus_id) or f"GPU {gpu['index']}"


def _result(pair: dict[str, Any], key: str) -> dict[str, Any] | None:
    holder = (pair.get("collective") or {}) if key == "without_p2p" else pair
    found = holder.get(key)
    return found if isinstance(found, dict) else None


def _matrix(
    caption: str, results: dict[tuple[int, int], dict[str, Any] | None], names: dict[int, str], way: str
) -> Matrix:
    speeds = [float(one["gb_s"]) for one in results.values() if one and one.get("gb_s")]
    most = max(speeds, default=1.0)
    rows = []
    for a, name in names.items():
        cells = tuple(None if a == b else _cell(results.get((a, b)), way, most, f"{name} to {names[b]}") for b in names)
        rows.append((name, cells))
    return Matrix(caption, tuple(names.values()), tuple(rows))


def _cell(result: dict[str, Any] | None, way: str, most: float, pair: str) -> Cell:
    if result is None:
        return Cell("–", "", "none", 0, f"{pair}: not tried")
    outcome = str(result.get("outcome") or "")
    if not result.get("ok"):
        kind = "refused" if outcome == "refused" else "none" if outcome == "not run" else "wrong"
        said = f"{pair}: {outcome}. {result.get('error') or ''}".rstrip()
        return Cell({"refused": "no", "not run": "–"}.get(outcome, outcome), "", kind, 0, said)
    speed = float(result.get("gb_s") or 0.0)
    how = str(result.get(way) or "") if way else ""
    latency = f", {result['latency_us']:g} µs" if result.get("latency_us") else ""
    heat = round(100 * math.log1p(speed) / math.log1p(most)) if most else 0
    return Cell(gb_s(speed), short(how), "ok", heat, f"{pair}: {speed:g} GB/s{latency} {how}".rstrip())


def gb_s(value: float) -> str:
    """Two or three figures: 48, 7.8, 0.79."""
    return f"{value:.0f}" if value >= 9.95 else f"{value:.1f}" if value >= 0.995 else f"{value:.2f}"


def short(transport: str) -> str:
    """`P2P/direct pointer` is `P2P`: the first word of each way; the whole stands in the cell's title."""
    parts: Sequence[str] = [part.split("/")[0].split(":")[0] for part in transport.split(" + ")]
    return "+".join(dict.fromkeys(parts))
