"""What an operation still wants done, and what it chose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rigwright.shell import Command

Action = Literal["add", "change", "remove", "run"]


@dataclass(frozen=True)
class Note:
    """A choice that an operation made, and why, for the plan to show. `warn`: it wants attention."""

    text: str
    warn: bool = False


@dataclass(frozen=True)
class Change:
    """One difference between a host and what is wanted, and the commands that end it.

    `disruptive`: work on the host may be interrupted. `leads_to`: what will follow from it ("reboot", "restart UNIT").
    `reboot`: the change is the reboot itself; it has no commands.
    """

    action: Action
    subject: str
    before: str = ""
    after: str = ""
    commands: tuple[Command, ...] = ()
    disruptive: bool = False
    leads_to: str = ""
    reboot: bool = False
