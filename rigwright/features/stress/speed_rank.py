"""Ranks the GPUs and machines of a fleet by their newest stress, the slowest first, with what to do about it.

The thresholds are those of the checks of a stress.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from msgspec import Struct

from rigwright.checks import Finding
from rigwright.checks.own_past import SAME_POWER_W, SLOWER, on_day
from rigwright.core.numbers import count
from rigwright.core.plugin_name import plugin_name
from rigwright.engine.machine import MeasuredGpu
from rigwright.features.stress.checks import LEAST_OF_PEAK, as_before

Measured = Mapping[str, Sequence[MeasuredGpu]]
"""By the name of a machine its measured GPUs."""

_COOLER = "its cooler: fan, dust, screws, paste; then invoke stress --host HOST again"
_BRAKE = "invoke explain power.brake"
_SWAP = "swap it with a faster one, then invoke stress --host HOST again: if the slowness moves with it, return it"
_AGAIN = (
    "invoke stress --host HOST again, with nothing else on the machine; then invoke try --host HOST --driver BRANCH"
)
_REASONS: dict[str, tuple[str, str, bool]] = {
    "power limit": ("its power limit of LIMIT", "nothing is wrong; invoke limits.find --host HOST measures whether"
                    " another limit is worth it", False),
    "application clocks": ("its clocks are set lower", "invoke limits --host HOST --show", False),
    "sync boost": ("it runs at the clock of the slowest GPU of its group", "nvidia-smi -q -d CLOCK", False),
    "heat, by the driver": ("heat", _COOLER, True),
    "heat, by the hardware": ("heat", _COOLER, True),
    "power brake": ("the power supply or the board brakes it", _BRAKE, True),
    "hardware slowdown": ("its hardware brakes it", _BRAKE, True),
}  # fmt: skip
"""By the reason for lower clocks: the cause, what to do, and whether something is wrong."""


class RankedGpu(Struct, frozen=True):
    """A GPU with the lowest of its shares of the model's figures, and the kind of product of that share. `cause`: why
    it is no higher, "" if not known; `todo`: what to do, "" for nothing; `wrong`: whether something needs a repair."""

    host: str
    gpu: MeasuredGpu
    share: float
    kind: str
    cause: str
    todo: str
    wrong: bool


class Entry(Struct, frozen=True):
    """GPUs of one machine with the same kind, cause and advice, the slowest first."""

    gpus: tuple[RankedGpu, ...]

    @property
    def first(self) -> RankedGpu:
        """The slowest GPU."""
        return self.gpus[0]

    @property
    def shares(self) -> str:
        """`58%`, or `83% to 85%`."""
        least, most = (f"{one.share:.0%}" for one in (self.gpus[0], self.gpus[-1]))
        return least if least == most else f"{least} to {most}"

    @property
    def places(self) -> str:
        """`SXM2-1, SXM2-3`: their positions, or bus ids."""
        return ", ".join(one.gpu.position or one.gpu.bus_id for one in self.gpus)


class RankedMachine(Struct, frozen=True):
    """A machine with the share of its slowest GPU, the mean share of all, and the time (ISO 8601) of the oldest
    measurement."""

    host: str
    slowest: float
    mean: float
    gpus: int
    at: str


def gpus(measured: Measured) -> list[RankedGpu]:
    """The GPUs whose model has a figure in the catalogue, the slowest first."""
    peers = _Peers([gpu for of_host in measured.values() for gpu in of_host])
    ranked = []
    for host, gpu in ((host, gpu) for host, of_host in measured.items() for gpu in of_host):
        if gpu.shares:
            kind = min(gpu.shares, key=lambda name: gpu.shares[name])
            cause, todo, wrong = _advice(gpu, kind, peers)
            limit = f"{gpu.power_limit_w:g} W" if gpu.power_limit_w is not None else "an unknown value"
            cause, todo = (text.replace("HOST", host).replace("LIMIT", limit) for text in (cause, todo))
            ranked.append(RankedGpu(host, gpu, gpu.shares[kind], kind, cause, todo, wrong))
    return sorted(ranked, key=lambda one: (one.share, one.host, one.gpu.bus_id))


class _Peers:
    """The GPUs of a fleet, grouped by model, driver branch and power limit. The rates of a group are sorted once, as a
    group may have thousands of GPUs."""

    def __init__(self, gpus: Sequence[MeasuredGpu]) -> None:
        self._alike: dict[tuple[str, str], list[MeasuredGpu]] = {}
        for gpu in gpus:
            self._alike.setdefault(_kind_of(gpu), []).append(gpu)
        self._rates: dict[tuple[str, str, float | None], tuple[int, dict[str, list[float]]]] = {}

    def others(self, gpu: MeasuredGpu) -> int:
        """How many other GPUs are comparable."""
        return self._of(gpu)[0] - 1

    def median(self, gpu: MeasuredGpu, product: str) -> float | None:
        """The median rate of the others; None if no other has one."""
        others = self._of(gpu)[1].get(product, []).copy()
        if own := gpu.tflops.get(product):
            del others[bisect_left(others, own)]
        return (others[(len(others) - 1) // 2] + others[len(others) // 2]) / 2 if others else None

    def _of(self, gpu: MeasuredGpu) -> tuple[int, dict[str, list[float]]]:
        key = (*_kind_of(gpu), gpu.power_limit_w)
        if key not in self._rates:
            same = [other for other in self._alike[_kind_of(gpu)] if _same_limit(gpu, other)]
            products = {product for other in same for product in other.tflops}
            rates = {name: sorted(rate for other in same if (rate := other.tflops.get(name))) for name in products}
            self._rates[key] = len(same), rates
        return self._rates[key]


def findings(host: str, measured: Sequence[MeasuredGpu]) -> tuple[Finding, ...]:
    """A warning for each GPU of a machine that was slower in its newest stress than it should be."""
    warnings = []
    for ranked in gpus({host: measured}):
        if ranked.wrong:
            subject = f"{ranked.gpu.position} {ranked.gpu.bus_id}".strip()
            share = f"{ranked.share:.0%} of its model's figure in {ranked.kind.upper()} {on_day(ranked.gpu.at)}"
            seen, check = f"{share}: {ranked.cause}", plugin_name(as_before)
            warnings.append(Finding(subject, "warn", seen, fix=ranked.todo, source="past", check=check))
    return tuple(warnings)


def entries(ranked: Sequence[RankedGpu]) -> list[Entry]:
    """The ranked GPUs, the slowest first; those of a machine with the same kind, cause and advice are one entry."""
    alike: dict[tuple[str, ...], list[RankedGpu]] = {}
    for one in ranked:
        alike.setdefault((one.host, one.kind, one.cause, one.todo), []).append(one)
    return [Entry(tuple(group)) for group in alike.values()]


def machines(ranked: Sequence[RankedGpu]) -> list[RankedMachine]:
    """The machines of ranked GPUs, the one with the slowest GPU first."""
    by_host: dict[str, list[RankedGpu]] = {}
    for one in ranked:
        by_host.setdefault(one.host, []).append(one)
    made = []
    for host, group in by_host.items():
        mean, oldest = sum(one.share for one in group) / len(group), min(one.gpu.at for one in group)
        made.append(RankedMachine(host, group[0].share, mean, len(group), oldest))
    return made


def without_figure(measured: Measured) -> list[str]:
    """The models of measured GPUs of which the catalogue has no figure, sorted."""
    return sorted({gpu.model or "unknown" for of_host in measured.values() for gpu in of_host if not gpu.shares})


def _advice(gpu: MeasuredGpu, kind: str, peers: _Peers) -> tuple[str, str, bool]:
    """Why a GPU has no higher share, what to do, and whether something is wrong."""
    behind = {name: 1 - rate / middle for name, rate in gpu.tflops.items() if (middle := peers.median(gpu, name))}
    by = max(behind.values(), default=0.0)
    reason, todo, wrong = _REASONS.get(gpu.slowed_by, ("", "", False))
    if by >= SLOWER:
        cause = f"{by:.0%} slower than {count(peers.others(gpu), 'other GPU')} of its model at the same power limit"
        return cause, todo if wrong else _SWAP, True
    clock_share = gpu.clock_shares.get(kind)
    if clock_share is not None and clock_share < LEAST_OF_PEAK:
        return f"{clock_share:.0%} of its model's figure at its clock", _AGAIN, True
    return reason, todo, wrong


def _kind_of(gpu: MeasuredGpu) -> tuple[str, str]:
    return gpu.model, gpu.driver.partition(".")[0]


def _same_limit(one: MeasuredGpu, other: MeasuredGpu) -> bool:
    limits = one.power_limit_w, other.power_limit_w
    return limits[0] == limits[1] if None in limits else abs((limits[0] or 0) - (limits[1] or 0)) <= SAME_POWER_W
