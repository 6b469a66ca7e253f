"""The data of a machine in a comparison, and the finding for a difference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rigwright.checks import Finding

Findings = dict[str, list[Finding]]
"""By the name of the machine."""


@dataclass(frozen=True)
class Machine:
    """A machine that answered: its facts by name as JSON types, and those of an earlier run ({} without one).

    `groups`: of the inventory, the nearest last. `held`: the GPU values that its playbook sets; the plan compares them, so they
    are not compared with the past and the peers.
    """

    name: str
    groups: tuple[str, ...]
    facts: Mapping[str, Any]
    before: Mapping[str, Any] = field(default_factory=dict)
    held: frozenset[str] = frozenset()


def finding(kind: Literal["past", "peers", "gpus"], subject: str, seen: str, expected: str, cause: str = "") -> Finding:
    """A failed finding of the check `fleet.past`, `fleet.peers` or `fleet.gpus`."""
    source: Literal["past", "peers"] = "peers" if kind == "peers" else "past"
    check = f"fleet.{kind}"
    return Finding(subject, "fail", seen or "nothing", expected or "nothing", cause, "", source, check=check)
