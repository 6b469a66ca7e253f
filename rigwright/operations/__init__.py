"""Operations: pure functions from facts and keyword parameters to the changes that are still needed. They run nothing.

A playbook names one as MODULE.FUNCTION. The annotations of its parameters define what a playbook may contain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from msgspec import Struct

from rigwright.core.change import Change, Note
from rigwright.core.plugin_name import plugin_name

F = TypeVar("F", bound=Callable[..., Iterator[Change | Note]])

_DECLARATIONS: dict[str, Declaration] = {}
declared = _DECLARATIONS.get
"""The declaration of MODULE.FUNCTION; None if its module is not imported or declares no such function."""


class Declaration(Struct, frozen=True, kw_only=True):
    """What an operation declares; `operation` is the decorator.

    `affects_p2p`: its changes can affect transfers between GPUs, so the peer-to-peer test must pass again.
    `affects_gpus`: with `affects_p2p`; its changes can affect each GPU, so the test must pass with a single GPU too.
    `reboots`: its change is the reboot that the changes before it lead to.
    `sets_limits`: it sets the limits of its parameter `limits` on the GPUs.
    `modules`: kernel modules that its changes replace; a host that goes back does not load the new ones.
    `momentary`: it reads the clock of this machine, so its result is not shared between hosts with equal facts.
    """

    affects_p2p: bool = False
    affects_gpus: bool = False
    reboots: bool = False
    sets_limits: bool = False
    modules: tuple[str, ...] = ()
    momentary: bool = False

    def requires_p2p_test(self, gpus: int | None) -> bool:
        """Whether a host with this number of GPUs (None: not known) must pass the peer-to-peer test again."""
        return self.affects_p2p and (gpus is None or gpus > 1 or (gpus == 1 and self.affects_gpus))

    def __call__(self, function: F) -> F:
        """Declares the function as an operation."""
        _DECLARATIONS[plugin_name(function)] = self
        return function


operation = Declaration
