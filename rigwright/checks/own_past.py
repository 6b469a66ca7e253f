"""Compares the measured figures of a GPU with its own earlier ones on the same machine."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence

from msgspec import Struct

from rigwright.facts.gpu.figures import Dated, GpuFigures

SLOWER = 0.05
"""From this share on a GPU is slower than its peers of the same model, or than it was with the same settings (assumed:
sound cards of a model differ by 2 or 3 %, two stresses of one card by 1 or 2 %)."""
SLOWER_MEMORY = 0.10
"""The same for copies within its memory (assumed)."""
SLOWER_LINK = 0.25
"""The same for copies between host and GPU: half of the lanes are half of the speed (assumed)."""
SAME_POWER_W = 1.0
"""Up to this difference two power limits are the same: drivers round them (assumed)."""
LONGER = 3.0
"""From this factor on two stresses are of different lengths: a GPU that computes for longer gets warmer, and its clock
lower (assumed)."""
SAME_CLOCK = 0.02
"""Up to this share two clocks count as the same (assumed)."""


class Difference(Struct, frozen=True):
    """What differs most between a GPU now and then, `at` (ISO 8601). `by`: the share that it is slower, negative where
    it is faster.

    `settings`: what was set otherwise then, in words; () where the speeds can be compared. `clock`: the share of its
    clock then, None where one of them is not known or the clock has no part in it. `hotter_c`: degrees more than then.
    `slowed_by`: why its clock is lowered now.
    """

    name: str
    unit: str
    now: float
    then: float
    by: float
    at: str
    settings: tuple[str, ...] = ()
    clock: float | None = None
    hotter_c: float | None = None
    slowed_by: str = ""

    @property
    def words(self) -> str:
        """`6% slower in FP32 than on 2026-05-12 at the same power limit (13.2 TFLOPS, then 14.0)`."""
        settings = "with other settings" if self.settings else "at the same power limit"
        speeds = f"({self.now:.1f} {self.unit}, then {self.then:.1f})"
        return f"{self._how} in {self.name} than {on_day(self.at)} {settings} {speeds}"

    @property
    def brief(self) -> str:
        """`13.2 TFLOPS: 6% slower than on 2026-05-12 at the same power limit`, or with what was set otherwise: at most
        two settings."""
        more = f"; and {len(self.settings) - 2} other settings" if len(self.settings) > 2 else ""
        settings = f": {'; '.join(self.settings[:2])}{more}" if self.settings else " at the same power limit"
        return f"{self.now:.1f} {self.unit}: {self._how} than {on_day(self.at)}{settings}"

    @property
    def _how(self) -> str:
        return f"{abs(self.by):.0%} {'slower' if self.by > 0 else 'faster'}"


def on_day(at: str) -> str:
    """`on 2026-05-12`, in this machine's time zone; with the time where that day is today."""
    when = datetime.datetime.fromisoformat(at).astimezone()
    return f"on {when:%Y-%m-%d %H:%M}" if when.date() == datetime.date.today() else f"on {when:%Y-%m-%d}"


def difference(now: GpuFigures, before: Sequence[Dated]) -> Difference | None:
    """How much slower a GPU is than in the fastest of its earlier stresses with the same settings; None: not by a share
    that counts.

    Where none had the same settings, the difference from the newest one in either direction, with the settings that
    differ.
    """
    alike = [one for one in before if not other_settings(now, one.figures)]
    if alike:
        slower = [one for earlier in alike for one in _differences(now, earlier) if one.by > 0]
        return max(slower, key=lambda one: one.by, default=None)
    newest = max(before, key=lambda one: one.at, default=None)
    return max(_differences(now, newest), key=lambda one: abs(one.by), default=None) if newest else None


def compared_with(now: GpuFigures, before: Sequence[Dated]) -> str:
    """When the newest earlier stress with the same settings was (ISO 8601); "" without one."""
    return max((one.at for one in before if not other_settings(now, one.figures)), default="")


def other_settings(now: GpuFigures, then: GpuFigures) -> tuple[str, ...]:
    """What differs between two stresses and changes the speed, in words."""
    found = []
    limits = now.power_limit_w, then.power_limit_w
    if None in limits and limits[0] != limits[1]:
        found.append("its power limit is not known of both")
    elif limits[0] is not None and limits[1] is not None and abs(limits[0] - limits[1]) > SAME_POWER_W:
        found.append(f"its power limit was {limits[1]:g} W and is {limits[0]:g} W")
    if now.branch != then.branch:
        found.append(f"the driver was {then.driver or 'unknown'} and is {now.driver or 'unknown'}")
    if now.cuda != then.cuda:
        found.append(f"the CUDA runtime was {then.cuda or 'unknown'} and is {now.cuda or 'unknown'}")
    shorter, longer = sorted((now.asked_s, then.asked_s))
    if longer >= LONGER * shorter:
        found.append(f"it worked for {_duration(then.asked_s)} then and for {_duration(now.asked_s)} now")
    return tuple(found)


def _duration(seconds: float) -> str:
    return f"{seconds / 60:g} min" if seconds >= 60 else f"{seconds:g} s"


def _differences(now: GpuFigures, earlier: Dated) -> Iterator[Difference]:
    """The differences that count."""
    then, settings = earlier.figures, other_settings(now, earlier.figures)
    hotter = (
        now.alone_max_c - then.alone_max_c if now.alone_max_c is not None and then.alone_max_c is not None else None
    )
    for kind, rate in now.tflops.items():
        before = then.tflops.get(kind)
        if before and abs(by := 1 - rate / before) >= SLOWER:
            clocks = now.clocks_mhz.get(kind), then.clocks_mhz.get(kind)
            clock = clocks[0] / clocks[1] if clocks[0] and clocks[1] else None
            yield Difference(
                kind.upper(), "TFLOPS", rate, before, by, earlier.at, settings, clock, hotter, now.slowed_by
            )
    for field, name, share in (
        ("memory_gb_s", "copies within its memory", SLOWER_MEMORY),
        ("to_device_gb_s", "copies to it", SLOWER_LINK),
        ("from_device_gb_s", "copies from it", SLOWER_LINK),
    ):
        gb_s, gb_s_then = getattr(now, field), getattr(then, field)
        if gb_s is not None and gb_s_then and abs(by := 1 - gb_s / gb_s_then) >= share:
            yield Difference(name, "GB/s", gb_s, gb_s_then, by, earlier.at, settings)
