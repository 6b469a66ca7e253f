"""The options of `invoke limits.find`."""

from __future__ import annotations

from rigwright.cli.option_values import count, one_of
from rigwright.cli.options import HostsOptions, WheelsOptions, option


class LimitsFindOptions(WheelsOptions, HostsOptions, command="limits.find"):
    """Find the power limit (or clock) worth having: measure speed and power at several, and put the limits back.

        invoke limits.find --host servbadge
        invoke limits.find --host servbadge --clocks --points 8
        invoke limits.find --host servbadge --yes --choose per-watt --write

    All GPUs of the host compute at once at each point, about twelve minutes in all; they must be idle. The power
    limit goes from the lowest that the GPUs take to their default, or as far as the supplies of the rig carry.
    Three points are named: the fastest, the most products per watt, and the fewest watts with at least 80 % of
    the fastest. The one that you choose is written into the inventory after a yes; invoke limits sets it.

    The limits are as before afterwards: also after Ctrl-C, a lost connection, kill -9 here or there, a power cut.
    The load is products of matrices, which is not your training: that draws less at the same limit where it waits
    for memory, data or other GPUs, and loses less by a limit. Measure your own at the two limits that matter
    (docs/guide/limits_find.md).

    Exit 0 measured, 2 it was not confirmed, 1 an error.
    """

    clocks: bool = option("sweep the graphics clock in place of the power limit", False)
    points: int = option("how many points, 3 to 16", 7, type=count("points", 3, 16, example=7))
    lowest: int | None = option(
        "the lowest limit, W (with --clocks MHz) (default: the lowest of the GPUs; half of the clock)",
        None,
        type=count("watts or MHz of one GPU", example=150),
    )
    highest: int | None = option(
        "the highest limit, W (with --clocks MHz) (default: the default limit; the highest clock)",
        None,
        type=count("watts or MHz of one GPU", example=300),
    )
    beyond_supplies: bool = option(
        "also limits that the power plan says the supplies do not carry: GPUs can drop out, the machine can reset",
        False,
    )
    choose: str = option(
        "fastest, per-watt, quiet or none (default: ask on a terminal, else none)",
        type=one_of("fastest", "per-watt", "quiet", "none"),
    )
    write: bool = option("write the chosen limit into the inventory without asking", False)
    yes: bool = option("measure without asking", False)
