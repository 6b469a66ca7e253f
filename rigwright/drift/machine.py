"""What is known of a machine when a fleet is compared, and what is said of one that differs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rigwright.checks import Finding

Findings = dict[str, list[Finding]]
"""By the name of the machine."""


@dataclass(frozen=True)
class Machine:
    """One machine that answered: its facts by name as JSON types, and those of a run before ({} when no run saw it).

    `groups`: of the inventory, the nearest last. `held`: what its playbook holds its GPUs to. Whether that is so is the plan's to
    say, and not once more for its past and for its peers, which may be held to something else.
    """

    name: str
    groups: tuple[str, ...]
    facts: Mapping[str, Any]
    before: Mapping[str, Any] = field(default_factory=dict)
    held: frozenset[str] = frozenset()


def finding(kind: Literal["past", "peers", "gpus"], subject: str, seen: str, wanted: str, cause: str = "") -> Finding:
    """A drift: `fleet.past`, `fleet.peers` or `fleet.gpus`."""
    source: Literal["past", "peers"] = "peers" if kind == "peers" else "past"
    return Finding(f"fleet.{kind}", subject, "fail", seen or "nothing", wanted or "nothing", cause, "", source)
