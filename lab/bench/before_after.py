"""Prints the measurements of two runs side by side.

`scripts/demo rig-3090` runs it as its last step: `python -m lab.bench.before_after BEFORE AFTER`. Both arguments are
documents of one host that rigwright wrote with --json. The table contains only their numbers and words, no conclusion.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

WORDS = {"ok": "right", "hang": "hang", "not run": "not tried", "refused": "not granted"}


def rows(before: dict[str, Any], after: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Returns rows of a name and its value in each document.

    Raises KeyError for a document without a peer-to-peer test.
    """
    told: dict[str, Callable[[dict[str, Any]], str]] = {
        "driver": lambda host: str(host["p2p"]["versions"]["driver"]),
        "IOMMU": lambda host: _seen(host, "iommu.passthrough"),
        "copies between GPUs": lambda host: pairs([pair["bytes"] for pair in host["p2p"]["pairs"]]),
        "NCCL between GPUs": lambda host: pairs([pair["collective"] for pair in host["p2p"]["pairs"]]),
        "  by": _ways,
        "all-reduce": lambda host: _sum(host["p2p"]["all_reduce"]),
        "  NCCL_P2P_DISABLE=1": lambda host: _sum(host["p2p"]["all_reduce"]["without_p2p"]),
        "scaling (synthetic)": lambda host: _scaling(host["p2p"]["scaling"]),
    }
    return [(name, tell(before), tell(after)) for name, tell in told.items()]


def pairs(results: list[dict[str, Any]]) -> str:
    """Returns the number of pairs with each outcome, and the lowest and highest speed of pairs that were measured
    alone."""
    counted = Counter(WORDS.get(one["outcome"], one["outcome"]) for one in results)
    speeds = sorted(one["gb_s"] for one in results if one["gb_s"] is not None)
    ends = dict.fromkeys(f"{speed:.1f}" for speed in speeds[:1] + speeds[-1:])
    fast = f", {' to '.join(ends)} GB/s" if speeds else ""
    return ", ".join(f"{count} of {len(results)} {word}" for word, count in counted.items()) + fast


def _ways(host: dict[str, Any]) -> str:
    ways = {pair["collective"]["transport"] for pair in host["p2p"]["pairs"]}
    return ", ".join(sorted(ways - {None})) or "-"


def _sum(total: dict[str, Any]) -> str:
    speed = f", {total['busbw_gb_s']:.1f} GB/s busbw" if total["busbw_gb_s"] is not None else ""
    return WORDS.get(total["outcome"], str(total["outcome"])) + speed


def _scaling(table: list[dict[str, Any]]) -> str:
    last = next((row for row in reversed(table) if row["speed_up"]), None)
    return f"{last['gpus']} GPUs do {last['speed_up']:.2f} times one" if last else "-"


def _seen(host: dict[str, Any], check: str) -> str:
    return next((str(one["seen"]) for one in host["findings"] if one["check"] == check), "-")


def table(found: list[tuple[str, str, str]]) -> str:
    """Returns the rows as columns, at most 80 characters wide with the values of the demo."""
    first, second = (max(len(row[at]) for row in found) + 2 for at in (0, 1))
    return "\n".join(f"  {name:{first}}{one:{second}}{two}".rstrip() for name, one, two in found)


def main(paths: list[str]) -> int:
    """Prints the table, and returns the exit code."""
    hosts = [next(iter(json.loads(Path(path).read_text())["hosts"].values())) for path in paths]
    if len(hosts) != 2 or not all(host["p2p"] for host in hosts):
        print(
            "error lab.bench.before_after: two documents of runs that tested peer-to-peer are needed", file=sys.stderr
        )
        return 1
    print(table([("", "before", "after"), *rows(hosts[0], hosts[1])]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
