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
"""From this factor on two stresses have different lengths: a GPU that computes longer gets warmer, and its clock lower
(assumed)."""
SAME_CLOCK = 0.02
"""Up to this share two clocks count as the same (assumed)."""


class Difference(Struct, frozen=True):
    """A difference in a figure of a GPU, `now` and `then`, at the time `at` (ISO 8601). `by`: the share that it is
    slower; negative if it is faster.

    `settings`: the settings that differed then, in words; () if the speeds are comparable. `clock`: the clock now as a
    share of the clock then; None if not known, or without influence. `hotter_c`: degrees more than then. `slowed_by`:
    why its clock is lowered now.
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
        """`13.2 TFLOPS: 6% slower than on 2026-05-12 at the same power limit`, or with up to two settings."""
        more = f"; and {len(self.settings) - 2} other settings" if len(self.settings) > 2 else ""
        settings = f": {'; '.join(self.settings[:2])}{more}" if self.settings else " at the same power limit"
        return f"{self.now:.1f} {self.unit}: {self._how} than {on_day(self.at)}{settings}"

    @property
    def _how(self) -> str:
        return f"{abs(self.by):.0%} {'slower' if self.by > 0 else 'faster'}"


def on_day(at: str) -> str:
    """`on 2026-05-12`, in this machine's time zone; with the time if that is today."""
    when = datetime.datetime.fromisoformat(at).astimezone()
    return f"on {when:%Y-%m-%d %H:%M}" if when.date() == datetime.date.today() else f"on {when:%Y-%m-%d}"


def difference(now: GpuFigures, before: Sequence[Dated]) -> Difference | None:
    """The greatest share by which a GPU is slower than in an earlier stress with the same settings; None if it is not
    slower by a share that counts. If no earlier stress had the same settings, the greatest difference from the newest
    stress, in either direction."""
    alike = [stress for stress in before if not other_settings(now, stress.figures)]
    if alike:
        slower = [found for stress in alike for found in _differences(now, stress) if found.by > 0]
        return max(slower, key=lambda found: found.by, default=None)
    newest = max(before, key=lambda stress: stress.at, default=None)
    return max(_differences(now, newest), key=lambda found: abs(found.by), default=None) if newest else None


def compared_with(now: GpuFigures, before: Sequence[Dated]) -> str:
    """The time of the newest earlier stress with the same settings (ISO 8601); "" if there is none."""
    return max((stress.at for stress in before if not other_settings(now, stress.figures)), default="")


def other_settings(now: GpuFigures, then: GpuFigures) -> tuple[str, ...]:
    """The settings that differ between two stresses and change the speed, in words."""
    differ = []
    limit_w, limit_w_then = now.power_limit_w, then.power_limit_w
    if limit_w is not None and limit_w_then is not None:
        if abs(limit_w - limit_w_then) > SAME_POWER_W:
            differ.append(f"its power limit was {limit_w_then:g} W and is {limit_w:g} W")
    elif limit_w != limit_w_then:
        differ.append("its power limit is not known of both")
    if now.branch != then.branch:
        differ.append(f"the driver was {then.driver or 'unknown'} and is {now.driver or 'unknown'}")
    if now.cuda != then.cuda:
        differ.append(f"the CUDA runtime was {then.cuda or 'unknown'} and is {now.cuda or 'unknown'}")
    shorter, longer = sorted((now.asked_s, then.asked_s))
    if longer >= LONGER * shorter:
        differ.append(f"it worked for {_duration(then.asked_s)} then and for {_duration(now.asked_s)} now")
    return tuple(differ)


def _duration(seconds: float) -> str:
    return f"{seconds / 60:g} min" if seconds >= 60 else f"{seconds:g} s"


def _differences(now: GpuFigures, earlier: Dated) -> Iterator[Difference]:
    """The differences of at least the share that counts."""
    then, at, settings = earlier.figures, earlier.at, other_settings(now, earlier.figures)
    known = now.alone_max_c is not None and then.alone_max_c is not None
    hotter_c = (now.alone_max_c or 0) - (then.alone_max_c or 0) if known else None
    for kind, rate in now.tflops.items():
        before, kind_name = then.tflops.get(kind), kind.upper()
        if before and abs(by := 1 - rate / before) >= SLOWER:
            mhz, mhz_then = now.clocks_mhz.get(kind), then.clocks_mhz.get(kind)
            clock = mhz / mhz_then if mhz and mhz_then else None
            yield Difference(kind_name, "TFLOPS", rate, before, by, at, settings, clock, hotter_c, now.slowed_by)
    for field, name, share in (
        ("memory_gb_s", "copies within its memory", SLOWER_MEMORY),
        ("to_device_gb_s", "copies to it", SLOWER_LINK),
        ("from_device_gb_s", "copies from it", SLOWER_LINK),
    ):
        gb_s, gb_s_then = getattr(now, field), getattr(then, field)
        if gb_s is not None and gb_s_then and abs(by := 1 - gb_s / gb_s_then) >= share:
            yield Difference(name, "GB/s", gb_s, gb_s_then, by, at, settings)
