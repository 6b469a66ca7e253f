"""The options of `invoke power.plan` and `invoke power.watch`."""

from __future__ import annotations

from rigwright.cli.option_values import count
from rigwright.cli.options import HostsOptions, InventoryOptions, JsonOptions, option


class PowerWatchOptions(
    HostsOptions, command="power.watch", function="rigwright.features.power.power_watch:power_watch"
):
    """Show watts, clocks, degrees and the 12 V rail of a host ten times a second, with the peaks, until Ctrl-C.

    A recorder runs on the host while this command does, and nothing of it is left there. If the machine goes down, its
    journal stays, and this command and the next `verify` tell what it said last (docs/guide/recorder.md).

        invoke power.watch --host servbadge
        invoke power.watch --host servbadge --seconds 60 --html power.html

    Exit 2 when the machine went down.
    """

    host: str | None = option("a host of the inventory (default: the only one)", None)
    seconds: int | None = option(
        "end after so many seconds, up to 86400 (default: at Ctrl-C, after a day at the latest)",
        None,
        type=count("seconds", 1, 86400, example=60),
    )
    html: str = option("write a page with a plot for each GPU to FILE: one HTML file that needs no other files")


class PowerPlanOptions(
    InventoryOptions, JsonOptions, command="power.plan", function="rigwright.features.power.power_plan:power_plan"
):
    """Show whether the power supplies carry a machine, also when all GPUs ramp together, and which limits would fit.

        invoke power.plan --rig servbadge
        invoke power.plan --host servbadge --limits-w 200
        invoke power.plan --rig servbadge --supplies 2x1100 --price-per-kwh 0.30

    Connects to no host. Exit 2 when it does not fit. How it is calculated: docs/guide/power.md.
    """

    rig: str = option("a machine of the catalogue, or FILE.yml that describes one, also one not bought yet")
    host: str = option("a host of the inventory: its rig and its limits")
    limits_w: str = option("power limit of each GPU in watts, such as 200 (default: the limits of the machine)")
    clocks_mhz: str = option("highest graphics clock of each GPU in MHz, such as 1005 (default: as --limits-w)")
    supplies: str = option("other power supplies: COUNTxWATTS such as 2x1100, several joined by +")
    gpu_power_w: str = option(
        "default power limit of GPUs that the catalogue does not describe, in watts: PCIE-1=180,PCIE-2=100"
    )
    base_load_w: str = option(
        "power of the machine without its GPUs in watts (default: base_load_w of the rig, or 200)"
    )
    price_per_kwh: str = option("price of a kWh, such as 0.30, to show the cost of a day")
