"""The load of each supply and the verdict: steady, at the peak, and with a simultaneous ramp of all GPUs.

docs/guide/power.md has the rules of the verdict with their sources.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from rigwright.catalogue import Model, Rig, model
from rigwright.catalogue.gpus import Power
from rigwright.catalogue.rigs import BASE, Supply
from rigwright.core.errors import InputError
from rigwright.features.power.draw import FULL, Draw, Setting, draw

RAMP_SHARED_PERCENT = (25, 36)
"""Steps of the power that supplies on one rail are known to hold, and to fail; between them is no measurement."""
RAMP_ALONE_PERCENT = (40, 70)
"""Steps that a single supply has to tolerate, and should (ATX 3.0)."""
ONE_PEAK_PERCENT = 120
"""The load that a supply has to tolerate for 0.1 s (ATX 3.0)."""
STEADY_PERCENT = 80
"""Of a supply or a connector, a rule of thumb (assumed)."""
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
        """Power of all of them, W."""
        return float(sum(supply.watts * supply.count for supply in self.supplies))

    @property
    def left_w(self) -> float | None:
        """Power without the largest one, W; None if there is only one."""
        single = sum(supply.count for supply in self.supplies) == 1
        return None if single else self.rating_w - max(supply.watts for supply in self.supplies)

    @property
    def name(self) -> str:
        """`3 x 1100 W on one rail`."""
        each = " + ".join(
            f"{supply.count} x {supply.watts} W" if supply.count > 1 else f"{supply.watts} W"
            for supply in self.supplies
        )
        return each if self.left_w is None else f"{each} on one rail"


class Reason(Struct, frozen=True):
    """The reason for a verdict."""

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
        return self.circuit.rating_w - self.steady_w

    @property
    def peak_margin_w(self) -> float:
        """Spare power with simultaneous peaks, W."""
        return self.circuit.rating_w - self.peak_w

    @property
    def ramp_percent(self) -> float:
        """The ramp in percent of the rated power."""
        return 100 * self.ramp_w / self.circuit.rating_w

    @property
    def joints(self) -> tuple[Joint, ...]:
        """The connectors; each supply has a share of the load in proportion to its power, its connectors equal
        parts."""
        joints = []
        for supply in self.circuit.supplies:
            if supply.connector_a is not None:
                part = supply.watts * supply.count / self.circuit.rating_w / supply.volts / supply.connectors
                name = supply.connector or "connector"
                joints.append(
                    Joint(name, supply.connectors, supply.connector_a, self.steady_w * part, self.peak_w * part)
                )
        return tuple(joints)

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """All reasons why the circuit does not fit or is tight, worst first."""
        reasons = [*self._steady(), *self._ramp(), *self._peak()]
        return tuple(sorted(reasons, key=lambda reason: -VERDICTS.index(reason.verdict)))

    @property
    def verdict(self) -> str:
        """fits, tight, or does not fit."""
        return max((reason.verdict for reason in self.reasons), key=VERDICTS.index, default="fits")

    def _steady(self) -> Iterator[Reason]:
        rating = self.circuit.rating_w
        percent = 100 * self.steady_w / rating
        if percent > 100:
            yield Reason("does not fit", f"{self.steady_w:.0f} W steady on {rating:.0f} W")
        elif percent > STEADY_PERCENT:
            yield Reason(
                "tight",
                f"{self.steady_w:.0f} W steady is {percent:.0f} % of {rating:.0f} W, more than {STEADY_PERCENT} %",
            )
        for joint in self.joints:
            text = f"{joint.steady_a:.0f} A steady through each {joint.name} of {joint.rated_a:g} A"
            if joint.steady_a > joint.rated_a:
                yield Reason("does not fit", text)
            elif joint.steady_a > joint.rated_a * STEADY_PERCENT / 100:
                yield Reason("tight", f"{text}, more than {STEADY_PERCENT} %")

    def _ramp(self) -> Iterator[Reason]:
        alone = self.circuit.left_w is None
        held, failed = RAMP_ALONE_PERCENT if alone else RAMP_SHARED_PERCENT
        known = "a supply has to stand {}, and should {}" if alone else "{} is known to hold, {} to fail"
        if self.ramp_percent > held:
            yield Reason(
                "does not fit" if self.ramp_percent >= failed else "tight",
                f"all GPUs ramping together step up by {self.ramp_w:.0f} W, {self.ramp_percent:.0f} % of the rating; "
                + known.format(f"{held} %", f"{failed} %"),
            )
        if self.circuit.left_w is not None and self.peak_w > self.circuit.left_w:
            yield Reason(
                "tight",
                f"no redundancy: without one supply, {self.peak_w:.0f} W at the peak exceed {self.circuit.left_w:.0f} W",
            )

    def _peak(self) -> Iterator[Reason]:
        rating = self.circuit.rating_w
        if self.one_peak_w > rating * ONE_PEAK_PERCENT / 100:
            yield Reason(
                "does not fit",
                f"one GPU's spike alone makes it {self.one_peak_w:.0f} W, more than {ONE_PEAK_PERCENT} % of {rating:.0f} W",
            )
        elif self.peak_w > rating:
            many = len(self.circuit.positions)
            which = {1: "a spike does not fit", 2: "spikes of both at once do not fit"}
            yield Reason(
                "tight",
                f"{which.get(many, f'spikes of all {many} at once do not fit')}: {self.peak_w:.0f} W on {rating:.0f} W",
            )


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
    return {position: _with_power(model(key), rig.gpu_power_w.get(position)) for position, key in rig.gpus.items()}


def _with_power(card: Model, default_w: int | None) -> Model:
    if default_w is None:
        return card
    low, high = card.power_w.min, card.power_w.max
    peak = card.power_w.peak
    power = Power(
        float(default_w),
        None if low is None else min(low, default_w),
        None if high is None else max(high, default_w),
        None if peak is None else max(peak, default_w),
    )
    return replace(card, power_w=power)


def base_w(rig: Rig) -> float:
    """Power of the rest of the machine at full load, W."""
    return float(BASE_W if rig.base_load_w is None else rig.base_load_w)


def circuits(rig: Rig, where: str) -> tuple[Circuit, ...]:
    """The supplies of a rig with their loads. Raises InputError if there are none, or if it is unclear what they
    feed."""
    todo = "or try some: the same command with --supplies 2x1600"
    if not rig.supplies:
        raise InputError(
            where, f"{rig.key} names no supplies", "supplies: [{watts: 1600}], and a line for it under sources", todo
        )
    fed = {name for supply in rig.supplies for name in supply.feeds}
    separate = [
        Circuit((source,), tuple(at for at in rig.gpus if at in source.feeds), BASE in source.feeds)
        for source in rig.supplies
        if source.feeds
    ]
    rest = tuple(source for source in rig.supplies if not source.feeds)
    if not rest:
        return tuple(separate)
    single = len(rest) == 1 and rest[0].count == 1
    if not single and not all(source.shared for source in rest):
        raise InputError(
            where,
            f"{rig.key} does not say which of its supplies feeds what",
            f"one entry for each with feeds: [{', '.join([*list(rig.gpus)[:2], BASE])}], or shared: true for one rail",
            todo,
        )
    left = tuple(at for at in rig.gpus if at not in fed)
    return (*separate, Circuit(rest, left, BASE not in fed)) if left or BASE not in fed else tuple(separate)


def budget(
    rig: Rig, on: tuple[Circuit, ...], setting: Setting = FULL, by_model: Mapping[str, Setting] | None = None
) -> Budget:
    """The load of each circuit with a setting; `by_model`: the settings of models that have another one, by their keys.

    Raises InputError for a model whose power is unknown.
    """
    others = by_model or {}
    draws = {position: draw(card, others.get(card.key, setting)) for position, card in models_of(rig).items()}
    base = base_w(rig)
    idle = base * BASE_IDLE_SHARE + sum(position_draw.idle_w for position_draw in draws.values())
    return Budget(setting, tuple(_load(circuit, draws, base) for circuit in on), idle)


def _load(circuit: Circuit, draws: Mapping[str, Draw], base: float) -> Load:
    here = [draws[position] for position in circuit.positions]
    own = base if circuit.base else 0.0
    steady = sum(gpu_draw.steady_w for gpu_draw in here)
    added = max((gpu_draw.peak_w - gpu_draw.steady_w for gpu_draw in here), default=0.0)
    return Load(
        circuit,
        own,
        steady,
        sum(gpu_draw.peak_w for gpu_draw in here),
        sum(gpu_draw.ramp_w for gpu_draw in here),
        own + steady + added,
    )
