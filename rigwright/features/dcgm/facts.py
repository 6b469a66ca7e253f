"""DCGM on the host: the GPUs that its host engine knows."""

from __future__ import annotations

import re

from rigwright.core import host_text
from rigwright.core.command import Result, command
from rigwright.core.control_characters import one_line
from rigwright.facts import Fact, Unavailable

UNIT = "nvidia-dcgm.service"
MOST_GPUS = 64


def _discovered(result: Result) -> tuple[str, ...]:
    if result.code == 127 or "not found" in result.error_text:
        raise Unavailable("dcgmi is not installed")
    lines = host_text.lines(result.text)
    if result.code != 0:
        said = next((one_line(line) for line in lines if line.startswith("Error")), f"nothing (exit {result.code})")
        raise Unavailable(f"dcgmi says: {said[:200]}")
    counts = [int(match[1]) for line in lines if (match := re.fullmatch(r"(\d{1,3}) GPUs? found\.", line.strip()))]
    uuids = [match[1] for line in lines if (match := re.search(r"Device UUID: (GPU-[0-9a-f-]{36}) ", line))]
    if counts != [len(uuids)] or len(uuids) > MOST_GPUS:
        raise ValueError(f"{len(uuids)} UUIDs for {counts} GPUs")
    return tuple(uuids)


discovered: Fact[tuple[str, ...]] = Fact(
    "dcgm.discovered", command("dcgmi", "discovery", "-l", timeout_s=60), _discovered
)
"""The UUIDs of the GPUs that the host engine of DCGM knows."""
