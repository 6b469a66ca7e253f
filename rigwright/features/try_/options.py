"""The options of `invoke try`."""

from __future__ import annotations

from rigwright.cli.option_values import count, one_of
from rigwright.cli.options import PlaybookOptions, WheelsOptions, option


class TryOptions(WheelsOptions, PlaybookOptions, command="try", changes_hosts=True):
    """Change one thing on a host, measure before and after, and keep the change or go back.

        invoke try --host servbadge --driver 580
        invoke try --host servbadge --kernel-cmdline 'iommu=pt' --keep-if faster --yes
        invoke try --host servbadge --limits 'power_limit_w: 250'

    Measures the peer-to-peer test and a short load, in rounds; the inventory stays as it is, and the value counts for
    this run only. A change that fails, hangs or breaks a check is taken back. For a change made by hand, such as a
    BIOS:

        invoke try --host servbadge                               # before it
        invoke try --host servbadge --again --note 'BIOS 4.11'    # after it

    Exit 0 when the change is kept or nothing was to be changed, 2 when the host went back.
    """

    driver: str = option("a driver branch, or a version of it: 580, 580.95.05")
    kernel_cmdline: str = option(
        "all words for the kernel command line in place of the inventory's; one at least is new"
    )
    limits: str = option("limits of the GPUs over those of the inventory, as YAML: 'power_limit_w: 250'")
    again: str = option(
        "change nothing; measure, and compare with what RUN measured (without RUN: the last try of this host)",
        without_value="last",
    )
    note: str = option("a few words about what is measured, for the history: 'BIOS 4.11'")
    keep_if: str = option(
        "faster, no-slower, ask or never (default: ask on a terminal, else never)",
        type=one_of("faster", "no-slower", "ask", "never"),
    )
    rounds: int = option(
        "rounds of the load, in each of two processes; more tell smaller differences from noise",
        3,
        type=count("rounds", 2, 50, example=3),
    )
    write: bool = option("write a change that is kept into the inventory", False)
    yes: bool = option("make the change without asking", False)
    disrupt: bool = option("also make changes that the plan did not announce", False)
