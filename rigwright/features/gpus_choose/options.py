"""The options of `invoke gpus.choose`."""

from __future__ import annotations

from rigwright.cli import option_values
from rigwright.cli.options import REQUIRED, HostsOptions, option


class GpusChooseOptions(HostsOptions, command="gpus.choose", positional=("count",)):
    """Choose the GPUs of a host that are best joined, and print the environment variables for them. Changes nothing.

        invoke gpus.choose 2 --host servbadge
        eval "$(invoke gpus.choose 2 --host localhost --export)"

    Where earlier runs have measured all pairs (peer-to-peer test), their bandwidths count first, and the age of the
    measurement is shown. Otherwise the pairs with the most NVLinks come first (on a DGX-1 not every pair has one), then
    a common PCIe switch, root complex and NUMA node. GPUs in use, with MIG on, and lost ones are left out, and named.
    """

    count: int = option("how many GPUs", REQUIRED, type=option_values.count("GPUs", 1, 20))
    export: bool = option("a line for `eval` in a shell", False)
    busy: bool = option("choose among GPUs in use too", False)
