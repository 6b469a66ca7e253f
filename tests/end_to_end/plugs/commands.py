"""The commands that are cut, the state of the host in which each begins, and how each ends."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_BUSY = re.compile(r"in use by|is running|is at work|still at work")
"""Words of a refusal because a program that an earlier run left on the host is not done."""


@dataclass(frozen=True)
class Command:
    """A command that is cut.

    `name`: in the table. `words`: what is typed. `start`: the state of the host before it (test_plugs.Tables).
    `variables`: of the host, besides those of the lab. `exits`: the usual exit code. `left_s`: a program that a cut
    leaves on the host ends by itself within so many seconds; until then the same command may be refused. `from_steps`:
    a cut starts from the host as it was when the step of its place began, not from the first one.
    """

    name: str
    words: tuple[str, ...]
    start: str = "provisioned"
    variables: Mapping[str, Any] = field(default_factory=dict)
    exits: int = 0
    left_s: float = 0.0
    from_steps: bool = False

    def is_refused(self, code: int, error: str) -> bool:
        """Whether a run that ended so was refused because of a program that is still at work on the host."""
        return self.left_s > 0 and code == 1 and bool(_BUSY.search(error))


TRAINING = {"owner": "ubuntu", "lock": "/srv/lock.txt", "wheels": "/srv/wheels"}
_TRY = ("try", "--limits", "power_limit_w: 250", "--rounds", "2", "--keep-if", "never")

COMMANDS = (
    Command("provision", ("provision",), "bare", {"p2p_wheels": "none"}, from_steps=True),
    Command("rollback", ("rollback",)),
    Command("rollback without a trial", ("rollback",), variables={"reboot": {"trial": False}}),
    Command("remove", ("remove",)),
    Command("remove --driver", ("remove", "--driver")),
    Command("try --limits", _TRY, exits=2, left_s=60),
    Command("limits.find", ("limits.find", "--points", "3"), left_s=60),
    Command("stress", ("stress", "--minutes", "0.2"), left_s=200),
    Command("train.smoke", ("train.smoke", "--seconds", "6"), "trainable", {"training": TRAINING}, left_s=200),
)
"""All of them; the first makes the state in which most others begin. The recorder beside a load ends 120 s after it."""
