"""How a command that somebody typed ended on a host (`fleet.run`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rigwright.core.host_result import HostResult, HostStatus


class CommandResult(HostResult, frozen=True):
    """How the command ended: its exit code (None: the time limit passed) and its output. `cut`: the output was too
    long, and its end is missing."""

    KEY = "ran"
    FAILURE_CODE = 1
    code: int | None
    output: str
    cut: bool = False

    def host_status(self, earlier: HostStatus) -> HostStatus:
        """ok for exit code 0, else failed."""
        del earlier
        return "ok" if self.code == 0 else "failed"


def read(host: Mapping[str, Any]) -> CommandResult | None:
    """The result from the part of a JSON document about a host; None if no command ran."""
    return None if host["ran"] is None else CommandResult(**host["ran"])
