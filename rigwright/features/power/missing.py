"""The numbers that a power plan needs and a rig does not have."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from rigwright.catalogue import Rig, model
from rigwright.catalogue.rigs import Supply
from rigwright.features.power.budget import budget, circuits, models_of
from rigwright.features.power.draw import FULL, Setting

SMALLEST_SUPPLY_W, LARGEST_SUPPLY_W, STEP_W = 300, 4000, 50


class Missing(Struct, frozen=True):
    """A number that is missing: in words, the flag of `power.plan` that gives it with an example, and its line in a
    rig's file."""

    text: str
    flag: str
    line: str


def missing(rig: Rig, setting: Setting | None) -> tuple[Missing, ...]:
    """What the rig lacks for a plan with a setting; () if nothing. The base load is never missing: it is assumed."""
    return tuple(_missing(rig, setting or FULL))


def _missing(rig: Rig, setting: Setting) -> Iterator[Missing]:
    unknown = positions_without_power(rig)
    if unknown:
        named = ", ".join(f"{model(rig.gpus[at]).label} at {at}" for at in unknown)
        yield Missing(
            f"the default power limit of {named}",
            f"--gpu-power-w {','.join(f'{at}=WATTS' for at in unknown)}",
            f"gpu_power_w: {{{', '.join(f'{at}: WATTS' for at in unknown)}}}",
        )
    if not rig.supplies:
        watts = None if unknown else smallest_supply_w(rig, setting)
        enough = f" (one of {watts} W would fit)" if watts else ""
        example = watts or "WATTS"
        yield Missing(
            f"the watts of its power supplies{enough}", f"--supplies 1x{example}", f"supplies: [{{watts: {example}}}]"
        )


def positions_without_power(rig: Rig) -> tuple[str, ...]:
    """The positions whose GPU's default power limit is not known."""
    return tuple(position for position, card in models_of(rig).items() if card.power_w.default is None)


def smallest_supply_w(rig: Rig, setting: Setting = FULL) -> int | None:
    """The watts of the smallest single supply with the verdict `fits`, in steps of 50; None if 4000 W do not
    suffice."""
    for watts in range(SMALLEST_SUPPLY_W, LARGEST_SUPPLY_W + 1, STEP_W):
        on = circuits(replace(rig, supplies=(Supply(watts),)), rig.key)
        if budget(rig, on, setting).verdict == "fits":
            return watts
    return None
