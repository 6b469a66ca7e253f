"""The load of each supply and the verdict: steady, at the peak, and with a simultaneous ramp of all GPUs.

docs/guide/power.md has the rules of the verdict with their sources.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from rigwright.catalogue import Model, Rig, model
from rigwright.catalogue.gpus import Power
from rigwright.catalogue.rigs import BASE, Supply
from rigwright.core.errors import InputError
from rigwright.features.power.draw import FULL, Setting, draw

RAMP_PERCENT = (40, 70)
"""Steps of the load that a supply has to tolerate, and should (ATX 3.0)."""
PLUGS_A = {"XT60": 60, "XT90": 90, "AS150": 150}
"""The currents that plugs for 12 V are rated for (data sheets of the maker, Amass)."""
ONE_PEAK_PERCENT = 120
"""The load that a supply has to tolerate for 0.1 s (ATX 3.0)."""
STEADY_PERCENT = 80
"""The steady load of a supply or a connector that leaves enough to spare (assumed: a rule of thumb)."""
BASE_W = 200
"""Power of the rest of the machine for a rig without `base_load_w` (assumed)."""
BASE_IDLE_SHARE = 0.5
"""Share of that power at idle (assumed)."""

VERDICTS = ("fits", "tight", "does not fit")


class Circuit(Struct, frozen=True):
    """Supplies that feed the same loads: the GPUs at `positions`, and the rest of the machine if `base`."""

    supplies: tuple[Supply, ...]
    positions: tuple[str, ...]
    base: bool

    @property
    def rating_w(self) -> float:
        """Power of all supplies, W."""
        return float(sum(supply.watts * supply.count for supply in self.supplies))

    @property
    def is_parallel(self) -> bool:
        """Whether several supplies share the load."""
        return sum(supply.count for supply in self.supplies) > 1

    @property
    def counted_w(self) -> float:
        """The power that counts, W. Supplies in parallel share a step unequally, so the largest does not count."""
        return self.rating_w - (max(supply.watts for supply in self.supplies) if self.is_parallel else 0)

    @property
    def name(self) -> str:
        """`3 x 1100 W on one rail`."""
        counts = [f"{supply.count} x " if supply.count > 1 else "" for supply in self.supplies]
        each = " + ".join(f"{text}{supply.watts} W" for text, supply in zip(counts, self.supplies, strict=True))
        return f"{each} on one rail" if self.is_parallel else each


class Reason(Struct, frozen=True):
    """A reason for a verdict other than `fits`."""

    verdict: str
    text: str


class Joint(Struct, frozen=True):
    """The connectors of one type: number, rated current and actual current of each."""

    name: str
    count: int
    rated_a: float
    steady_a: float
    peak_a: float

    @property
    def margin_a(self) -> float:
        """Spare current of each at steady load, A."""
        return self.rated_a - self.steady_a

    @property
    def is_weak(self) -> bool:
        """Whether it carries more than a connector should for long."""
        return self.steady_a > self.rated_a * STEADY_PERCENT / 100

    @property
    def reason(self) -> Reason:
        """The reason of a weak connector."""
        text = f"{self.steady_a:.0f} A steady through each {self.name} of {self.rated_a:g} A"
        if self.margin_a < 0:
            return Reason("does not fit", text)
        return Reason("tight", f"{text}, more than {STEADY_PERCENT} %")

    @property
    def stronger(self) -> str:
        """A stronger plug, and more cables, in place of a weak connector."""
        needed_a = 100 * self.steady_a / STEADY_PERCENT
        cables = f"{math.ceil(needed_a / self.rated_a)} cables with a {self.name} each"
        plug = next((f"{name} of {rated_a} A" for name, rated_a in PLUGS_A.items() if rated_a >= needed_a), "")
        old = f"in place of each {self.name} of {self.rated_a:g} A"
        return f"{plug} {old}, or {cables}" if plug else f"{cables} in place of one"


class Load(Struct, frozen=True):
    """The load of one circuit, W at its output."""

    circuit: Circuit
    base_w: float
    gpus_steady_w: float
    gpus_peak_w: float
    ramp_w: float
    one_peak_w: float
    """Steady load with one GPU at its peak: the GPU whose peak adds the most power, W."""

    @property
    def steady_w(self) -> float:
        """Base load and sustained power of the GPUs, W."""
        return self.base_w + self.gpus_steady_w

    @property
    def peak_w(self) -> float:
        """Base load and simultaneous peaks of all GPUs, W."""
        return self.base_w + self.gpus_peak_w

    @property
    def margin_w(self) -> float:
        """Spare power at steady load, W; negative if the supplies are too small."""
        return self.circuit.counted_w - self.steady_w

    @property
    def peak_margin_w(self) -> float:
        """Spare power with simultaneous peaks, W."""
        return self.circuit.counted_w - self.peak_w

    @property
    def ramp_percent(self) -> float:
        """The ramp in percent of the power that counts."""
        return 100 * self.ramp_w / self.circuit.counted_w

    @property
    def joints(self) -> tuple[Joint, ...]:
        """The connectors. Supplies share the load in proportion to their power, connectors of a supply equally."""
        joints = []
        for supply in self.circuit.supplies:
            if supply.connector_a is not None:
                part = supply.watts * supply.count / self.circuit.rating_w / supply.volts / supply.connectors
                currents = self.steady_w * part, self.peak_w * part
                joints.append(Joint(supply.connector or "connector", supply.connectors, supply.connector_a, *currents))
        return tuple(joints)

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """All reasons why the circuit does not fit or is tight, worst first."""
        reasons = *self.supply_reasons, *(joint.reason for joint in self.joints if joint.is_weak)
        return tuple(sorted(reasons, key=lambda reason: -VERDICTS.index(reason.verdict)))

    @property
    def verdict(self) -> str:
        """fits, tight, or does not fit."""
        return self.reasons[0].verdict if self.reasons else "fits"

    @property
    def supply_reasons(self) -> Iterator[Reason]:
        """The reasons that are not about connectors."""
        counted_w = self.circuit.counted_w
        rating = f"{counted_w:.0f} W" + (", without one supply" if self.circuit.is_parallel else "")
        percent = 100 * self.steady_w / counted_w
        steady = f"{self.steady_w:.0f} W steady"
        if percent > 100:
            yield Reason("does not fit", f"{steady} on {rating}")
        elif percent > STEADY_PERCENT:
            yield Reason("tight", f"{steady} is {percent:.0f} % of {rating}, more than {STEADY_PERCENT} %")
        required, recommended = RAMP_PERCENT
        if self.ramp_percent > required:
            text = f"all GPUs ramping together step up by {self.ramp_w:.0f} W, {self.ramp_percent:.0f} % of {rating}"
            verdict = "does not fit" if self.ramp_percent >= recommended else "tight"
            yield Reason(verdict, f"{text}; a supply has to stand {required} %, and should {recommended} %")
        if self.one_peak_w > counted_w * ONE_PEAK_PERCENT / 100:
            text = f"one GPU's spike alone makes it {self.one_peak_w:.0f} W"
            yield Reason("does not fit", f"{text}, more than {ONE_PEAK_PERCENT} % of {rating}")
        elif self.peak_w > counted_w:
            many = len(self.circuit.positions)
            spikes = "a spike does" if many == 1 else f"spikes of {'both' if many == 2 else f'all {many}'} at once do"
            yield Reason("tight", f"{spikes} not fit: {self.peak_w:.0f} W on {rating}")


class Budget(Struct, frozen=True):
    """The loads of all circuits with one setting, and their sums, W."""

    setting: Setting
    loads: tuple[Load, ...]
    idle_w: float

    @property
    def steady_w(self) -> float:
        """Sustained power of the machine, W."""
        return sum(load.steady_w for load in self.loads)

    @property
    def peak_w(self) -> float:
        """Power of the machine with simultaneous peaks, W."""
        return sum(load.peak_w for load in self.loads)

    @property
    def verdict(self) -> str:
        """The verdict of the worst circuit."""
        return max((load.verdict for load in self.loads), key=VERDICTS.index)


def models_of(rig: Rig) -> dict[str, Model]:
    """The model at every position, with the rig's own `gpu_power_w` as its default power limit. Raises InputError."""
    models = {position: model(key) for position, key in rig.gpus.items()}
    for position, watts in rig.gpu_power_w.items():
        card = models[position]
        low, high, peak = card.power_w.min, card.power_w.max, card.power_w.peak
        power = Power(
            float(watts),
            None if low is None else min(low, watts),
            None if high is None else max(high, watts),
            None if peak is None else max(peak, watts),
        )
        models[position] = replace(card, power_w=power)
    return models


def consumption_w(rig: Rig, setting: Setting) -> float:
    """The steady power of the machine with a setting, W. Raises InputError for a model whose power is unknown."""
    return base_w(rig) + sum(draw(card, setting).steady_w for card in models_of(rig).values())


def base_w(rig: Rig) -> float:
    """The power of the machine without its GPUs, W."""
    return float(BASE_W if rig.base_load_w is None else rig.base_load_w)


def circuits(rig: Rig, where: str) -> tuple[Circuit, ...]:
    """The supplies of a rig with their loads. Raises InputError without supplies, or if their loads are unclear."""
    fix = "or try some: the same command with --supplies 2x1600"
    if not rig.supplies:
        expected = "supplies: [{watts: 1600}], and a line for it under sources"
        raise InputError(where, f"{rig.key} names no supplies", expected, fix)
    fed = {name for supply in rig.supplies for name in supply.feeds}
    separate = [
        Circuit((supply,), tuple(at for at in rig.gpus if at in supply.feeds), BASE in supply.feeds)
        for supply in rig.supplies
        if supply.feeds
    ]
    rest = tuple(supply for supply in rig.supplies if not supply.feeds)
    if sum(supply.count for supply in rest) > 1 and not all(supply.shared for supply in rest):
        found = f"{rig.key} does not say which of its supplies feeds what"
        feeds = ", ".join([*list(rig.gpus)[:2], BASE])
        expected = f"one entry for each with feeds: [{feeds}], or shared: true for one rail"
        raise InputError(where, found, expected, fix)
    unfed = tuple(at for at in rig.gpus if at not in fed)
    if rest and (unfed or BASE not in fed):
        separate.append(Circuit(rest, unfed, BASE not in fed))
    return tuple(separate)


def budget(
    rig: Rig, on: tuple[Circuit, ...], setting: Setting = FULL, by_model: Mapping[str, Setting] | None = None
) -> Budget:
    """The load of each circuit with a setting; `by_model`: other settings of some models, by their keys.

    Raises InputError for a model whose power is unknown.
    """
    others = by_model or {}
    draws = {position: draw(card, others.get(card.key, setting)) for position, card in models_of(rig).items()}
    base = base_w(rig)
    loads = []
    for circuit in on:
        here = [draws[position] for position in circuit.positions]
        own = base if circuit.base else 0.0
        steady, peak, ramp = (sum(getattr(gpu, name) for gpu in here) for name in ("steady_w", "peak_w", "ramp_w"))
        added = max((gpu.peak_w - gpu.steady_w for gpu in here), default=0.0)
        loads.append(Load(circuit, own, steady, peak, ramp, own + steady + added))
    return Budget(setting, tuple(loads), base * BASE_IDLE_SHARE + sum(gpu.idle_w for gpu in draws.values()))
