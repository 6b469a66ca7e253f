"""The options of `rigwright scratch.room`."""

from __future__ import annotations

from rigwright.cli.options import HostsOptions, option


class RoomOptions(HostsOptions, command="scratch.room", function="rigwright_scratch.command:room"):
    """Show the free room of a folder on each host. Changes nothing."""

    path: str = option("the folder", "/scratch")
