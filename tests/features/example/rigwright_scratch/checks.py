"""Checks of the feature `scratch`."""

from __future__ import annotations

from collections.abc import Iterator

from rigwright.checks import Finding, check
from rigwright.facts import Facts
from rigwright_scratch.facts import room_gib
from rigwright_scratch.variables import Scratch


@check()
def room(facts: Facts, *, scratch: Scratch) -> Iterator[Finding]:
    """The folder has the room that the inventory asks for."""
    free = facts(room_gib(scratch.path))
    verdict = "pass" if free >= scratch.least_gib else "fail"
    fix = f"remove data from {scratch.path}"
    yield Finding(scratch.path, verdict, f"{free} GiB free", f"{scratch.least_gib} GiB", "", fix, "inventory")
