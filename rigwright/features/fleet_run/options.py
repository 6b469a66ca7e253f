"""The options of `invoke fleet.run`."""

from __future__ import annotations

from rigwright.cli.option_values import duration
from rigwright.cli.options import HostsOptions, option


class FleetRunOptions(HostsOptions, command="fleet.run", changes_hosts=True):
    """Run one command on many hosts at once, and show the output; equal outputs are shown once.

        invoke fleet.run --cmd 'uptime -p'
        invoke fleet.run --host gpu --cmd 'nvidia-smi -L' --sudo

    Asks nothing and verifies nothing. Exit 1 when the command failed somewhere, 3
    when a host does not answer.
    """

    cmd: str = option("the command, in quotes, for the shell of the host; its stdin is empty")
    host: str | None = option("a host, a group or a pattern of the inventory (default: all)", None)
    sudo: bool = option("run it as root (default: as the user that logs in)", False)
    timeout_s: float = option(
        "seconds after which the command is ended", 60, type=duration("seconds", 0.1, 86400, "60")
    )
