"""What hangs on each supply, and whether it carries it: steady, at the peak, and through a ramp of all GPUs at once.

The rules of the verdict, strictest first (docs/power.md says where each comes from):

- `does not fit`: the steady draw is above the rating of the supply, or of its connectors.
- `does not fit`: the ramp of all GPUs together is `RAMP_SHARED_PERCENT` of the rating of supplies that share a rail. Three
  of 1100 W carried four V100 that ramp by 800 W (24 %), two did not (36 %); between them it is `tight`, nobody knows.
- The same for a supply alone, by `RAMP_ALONE_PERCENT`: Intel's ATX 3.0 design guide demands that 12 V stands steps of 40 %
  of the rated amperes, and recommends 70 %.
- `does not fit`: the peak of one GPU, the others steady, is above `ONE_PEAK_PERCENT` of the rating, which is what ATX 3.0
  asks a supply to stand for a tenth of a second. Older supplies promise nothing above 100 %.
- `tight`: all peaks at once are above the rating. They last milliseconds and seldom meet; when they do, it may trip.
- `tight`: the steady draw is above `STEADY_PERCENT` of the rating, a rule of thumb (assumed), of a supply or a connector.
- `tight`: supplies that share a rail, and without one of them the peak is above what is left. They never share evenly;
  the owner of two saw GPUs drop even with limits, and none with a third.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rigwright.catalogue import Model, Rig, model
from rigwright.catalogue.rigs import BASE, Supply
from rigwright.errors import InputError
from rigwright.power.draw import FULL, Draw, Setting, draw

RAMP_SHARED_PERCENT = (25, 36)
RAMP_ALONE_PERCENT = (40, 70)
ONE_PEAK_PERCENT = 120
STEADY_PERCENT = 80
BASE_W = 200
"""The rest of the machine where a rig does not say `base_load_w`: assumed."""
BASE_IDLE_SHARE = 0.5
"""What the rest of the machine draws of that when nothing runs: assumed."""

VERDICTS = ("fits", "tight", "does not fit")


@dataclass(frozen=True)
class Circuit:
    """Supplies that feed the same things: the GPUs at `positions`, and the rest of the machine where `base`."""

    supplies: tuple[Supply, ...]
    positions: tuple[str, ...]
    base: bool

    @property
    def rating_w(self) -> float:
        """Watts of all of them."""
        return float(sum(one.watts * one.count for one in self.supplies))

    @property
    def left_w(self) -> float | None:
        """Watts without the largest of them; None where there is only one."""
        single = sum(one.count for one in self.supplies) == 1
        return None if single else self.rating_w - max(one.watts for one in self.supplies)

    @property
    def name(self) -> str:
        """`3 x 1100 W on one rail`."""
        each = " + ".join(
            f"{one.count} x {one.watts} W" if one.count > 1 else f"{one.watts} W" for one in self.supplies
        )
        return each if self.left_w is None else f"{each} on one rail"


@dataclass(frozen=True)
class Reason:
    """Why a verdict is what it is."""

    verdict: str
    text: str


@dataclass(frozen=True)
class Joint:
    """The connectors of one kind: how many, what each is made for, and what goes through each."""

    name: str
    count: int
    rated_a: float
    steady_a: float
    peak_a: float

    @property
    def margin_a(self) -> float:
        """Amperes to spare in each, steady."""
        return self.rated_a - self.steady_a


@dataclass(frozen=True)
class Load:
    """What hangs on one circuit, in watts at its output."""

    circuit: Circuit
    base_w: float
    gpus_steady_w: float
    gpus_peak_w: float
    ramp_w: float
    one_peak_w: float
    """All steady, and the one GPU at its peak that adds most."""

    @property
    def steady_w(self) -> float:
        """Base and GPUs, for minutes."""
        return self.base_w + self.gpus_steady_w

    @property
    def peak_w(self) -> float:
        """Base, and all GPUs at their peaks at once."""
        return self.base_w + self.gpus_peak_w

    @property
    def margin_w(self) -> float:
        """Watts to spare, steady; below 0 when there are too few."""
        return self.circuit.rating_w - self.steady_w

    @property
    def peak_margin_w(self) -> float:
        """Watts to spare with all peaks at once."""
        return self.circuit.rating_w - self.peak_w

    @property
    def ramp_percent(self) -> float:
        """The ramp as percent of the rating."""
        return 100 * self.ramp_w / self.circuit.rating_w

    @property
    def joints(self) -> tuple[Joint, ...]:
        """The connectors; each supply carries a part by its watts, each of its connectors the same part of that."""
        found = []
        for one in self.circuit.supplies:
            if one.connector_a is not None:
                part = one.watts * one.count / self.circuit.rating_w / one.volts / one.connectors
                name = one.connector or "connector"
                found.append(Joint(name, one.connectors, one.connector_a, self.steady_w * part, self.peak_w * part))
        return tuple(found)

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Everything that keeps it from fitting, worst first."""
        found = [*self._steady(), *self._ramp(), *self._peak()]
        return tuple(sorted(found, key=lambda reason: -VERDICTS.index(reason.verdict)))

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
                f"none to spare: with one supply out, {self.peak_w:.0f} W at the peak hang on {self.circuit.left_w:.0f} W",
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


@dataclass(frozen=True)
class Budget:
    """The loads of every circuit under one setting, and their sums in watts."""

    setting: Setting
    loads: tuple[Load, ...]
    idle_w: float

    @property
    def steady_w(self) -> float:
        """All of the machine, for minutes."""
        return sum(load.steady_w for load in self.loads)

    @property
    def peak_w(self) -> float:
        """All of the machine with all peaks at once."""
        return sum(load.peak_w for load in self.loads)

    @property
    def verdict(self) -> str:
        """That of its worst circuit."""
        return max((load.verdict for load in self.loads), key=VERDICTS.index)


def models_of(rig: Rig) -> dict[str, Model]:
    """The model at every position. Raises InputError."""
    return {position: model(key) for position, key in rig.gpus.items()}


def base_w(rig: Rig) -> float:
    """What the rest of the machine draws at full load."""
    return float(BASE_W if rig.base_load_w is None else rig.base_load_w)


def circuits(rig: Rig, where: str) -> tuple[Circuit, ...]:
    """The supplies of a rig with what hangs on them. Raises InputError when it has none, or does not say what feeds what."""
    todo = "or try some: the same command with --supplies 2x1600"
    if not rig.supplies:
        raise InputError(
            where, f"{rig.key} names no supplies", "supplies: [{watts: 1600}], and a line for it under sources", todo
        )
    fed = {name for supply in rig.supplies for name in supply.feeds}
    found = [
        Circuit((one,), tuple(at for at in rig.gpus if at in one.feeds), BASE in one.feeds)
        for one in rig.supplies
        if one.feeds
    ]
    rest = tuple(one for one in rig.supplies if not one.feeds)
    if not rest:
        return tuple(found)
    single = len(rest) == 1 and rest[0].count == 1
    if not single and not all(one.shared for one in rest):
        raise InputError(
            where,
            f"{rig.key} does not say which of its supplies feeds what",
            f"one entry for each with feeds: [{', '.join([*list(rig.gpus)[:2], BASE])}], or shared: true for one rail",
            todo,
        )
    left = tuple(at for at in rig.gpus if at not in fed)
    return (*found, Circuit(rest, left, BASE not in fed)) if left or BASE not in fed else tuple(found)


def budget(rig: Rig, on: tuple[Circuit, ...], setting: Setting = FULL) -> Budget:
    """What hangs on each circuit under a setting. Raises InputError for a model whose draw is not known."""
    draws = {position: draw(one, setting) for position, one in models_of(rig).items()}
    base = base_w(rig)
    idle = base * BASE_IDLE_SHARE + sum(one.idle_w for one in draws.values())
    return Budget(setting, tuple(_load(circuit, draws, base) for circuit in on), idle)


def _load(circuit: Circuit, draws: Mapping[str, Draw], base: float) -> Load:
    here = [draws[position] for position in circuit.positions]
    own = base if circuit.base else 0.0
    steady = sum(one.steady_w for one in here)
    added = max((one.peak_w - one.steady_w for one in here), default=0.0)
    return Load(
        circuit, own, steady, sum(one.peak_w for one in here), sum(one.ramp_w for one in here), own + steady + added
    )
