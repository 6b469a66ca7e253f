"""Writes the stand-ins of InfiniBand and RoCE adapters: /sys/class/infiniband as the kernel shows it. Nothing can be
sent through them.

`write` fills a folder for a bind mount over /sys/class/infiniband. A port is up, `down` (without a cable), or `slow`
(one lane of four).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

LAYERS = ("InfiniBand", "Ethernet")
DOWN, SLOW = "down", "slow"
STATES = ("", DOWN, SLOW)
KEY = "hca."
"""The prefix of the keys in the machine's memory: hca.mlx5_0=down."""


def states(values: Mapping[str, str]) -> dict[str, str]:
    """Returns the state of each adapter that is not up, from the values of the machine."""
    return {key.removeprefix(KEY): value for key, value in values.items() if key.startswith(KEY) and value}


def write(folder: Path, adapters: Sequence[Mapping[str, Any]], state: Mapping[str, str]) -> None:
    """Writes the files of the adapters: `device`, `layer`, `gbit_s` of four lanes, `speed` of a lane such as EDR,
    `interface`."""
    for adapter in adapters:
        port = folder / adapter["device"] / "ports/1"
        port.mkdir(parents=True, exist_ok=True)
        (folder / adapter["device"] / "device/net" / adapter["interface"]).mkdir(parents=True, exist_ok=True)
        for name, text in _files(adapter, state.get(adapter["device"], "")).items():
            (port / name).write_text(text + "\n")


def _files(adapter: Mapping[str, Any], state: str) -> dict[str, str]:
    layer, gbit, speed = adapter["layer"], float(adapter["gbit_s"]), adapter["speed"]
    rates = {"": f"{gbit:g} Gb/sec (4X {speed})", SLOW: f"{gbit / 4:g} Gb/sec (1X {speed})", DOWN: "10 Gb/sec (4X SDR)"}
    without_cable = "3: Disabled" if layer == "Ethernet" else "2: Polling"
    down = state == DOWN
    return {
        "state": "1: DOWN" if down else "4: ACTIVE",
        "phys_state": without_cable if down else "5: LinkUp",
        "rate": rates[state],
        "link_layer": layer,
    }
