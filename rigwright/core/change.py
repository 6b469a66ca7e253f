"""The changes that an operation needs, and its notes."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from rigwright.core.command import Command

Action = Literal["add", "change", "remove", "run"]


class Note(Struct, frozen=True):
    """A choice of an operation with its reason, shown in the plan. `warn`: shown as a warning.

    `foreign`: it is about a setting of others that works against the playbook; `verify` warns of it too. Its text ends
    with `: ` and what to do.
    """

    text: str
    warn: bool = False
    foreign: bool = False


class Change(Struct, frozen=True):
    """One difference between a host and its desired state, and the commands that remove it.

    `disruptive`: work on the host may be interrupted. `leads_to`: the later action that the change requires ("reboot",
    "restart UNIT"). `units`: the units of systemd that it enables, disables, starts or stops.
    `reboot`: the change is the reboot itself; its commands run before it, and the host must answer again within
    `reboot_timeout_s`. `in_vain`: commands that run after the boot if the step still wants something. `same_boot`: the
    reboot starts what runs now, so the boot is not tried. `gpus_after`: how many GPUs answer to the driver after the
    reboot; None: as many as before it.
    """

    action: Action
    subject: str
    before: str = ""
    after: str = ""
    commands: tuple[Command, ...] = ()
    disruptive: bool = False
    leads_to: str = ""
    units: tuple[str, ...] = ()
    reboot: bool = False
    reboot_timeout_s: int = 900
    in_vain: tuple[Command, ...] = ()
    same_boot: bool = False
    gpus_after: int | None = None
