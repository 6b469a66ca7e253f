"""What goes between a GPU and its neighbour goes at a tenth of the speed.

No program says so: a bandwidth test of the pair does (as far as the lab simulates one).
"""

from __future__ import annotations

from lab.faults import tamper
from lab.host.disk import Host

NEEDS: tuple[str, ...] = ("gpu", "several-gpus")
ONE_GPU = True
LASTS: int | None = None


def apply(host: Host, gpu: int) -> None:
    tamper.remembers(host, **{f"fault.pair.{_pair(host, gpu)}": "slow:10"})


def heal(host: Host, gpu: int) -> None:
    tamper.remembers(host, **{f"fault.pair.{_pair(host, gpu)}": ""})


def _pair(host: Host, gpu: int) -> str:
    pairs = dict(tamper.others(host, gpu))
    return pairs.get(gpu + 1) or pairs[gpu - 1]
