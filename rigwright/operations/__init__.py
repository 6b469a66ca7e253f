"""Operations: pure functions from facts and parameters to the changes still needed. They run nothing.

A playbook names one as MODULE.FUNCTION. Its first parameter is `facts`; the others are keyword parameters, whose
annotations say what a playbook may give. The decorator `operation` declares what the engine has to know of it.
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

    `affects_p2p`: after its changes the GPUs may reach each other in another way, so the peer-to-peer
    test is required until it passes.
    `affects_gpus`: with `affects_p2p`; each GPU by itself may work otherwise too, so a host with a single GPU needs
    the test as well. `reboots`: its change is the reboot that the changes before it lead to.
    `sets_limits`: it sets the limits of its parameter `limits` on the GPUs.
    `modules`: kernel modules that its changes replace; a host that goes back to what ran before does not load the new
    ones. `momentary`: it reads the clock of this machine, so it may answer otherwise for another host with the same
    facts.
    """

    affects_p2p: bool = False
    affects_gpus: bool = False
    reboots: bool = False
    sets_limits: bool = False
    modules: tuple[str, ...] = ()
    momentary: bool = False

    def requires_p2p_test(self, gpus: int | None) -> bool:
        """Whether a host with so many GPUs (None: not known) needs the peer-to-peer test after its changes."""
        return self.affects_p2p and (gpus is None or gpus > 1 or (gpus == 1 and self.affects_gpus))

    def __call__(self, function: F) -> F:
        """Declares the function as an operation."""
        _DECLARATIONS[plugin_name(function)] = self
        return function


operation = Declaration
