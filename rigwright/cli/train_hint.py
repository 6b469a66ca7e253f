"""The next command where the inventory asks for containers or a training environment, and the playbook of the command
has neither."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Any

from rigwright.core import host_ranges
from rigwright.core.process.program_name import program_name
from rigwright.inventory.model import Host
from rigwright.report.labels import as_is

VARIABLES = ("containers", "training")
"""What only the playbook `train` reads."""


def say(hosts: Iterable[Host], text: Any, command: str) -> None:
    """Writes `command` with `--playbook train` for the hosts whose inventory asks for more; nothing if none does."""
    asked = {host.name: [name for name in VARIABLES if name in host.variables] for host in hosts}
    names = [name for name, variables in asked.items() if variables]
    if names:
        variables = " and ".join(sorted({variable for name in names for variable in asked[name]}))
        host = shlex.quote(host_ranges.folded(names).replace(", ", ","))
        line = f"{variables} of the inventory: {program_name()} {command} --host {host} --playbook train"
        text.line(f"[dim]{as_is(line)}[/]")
