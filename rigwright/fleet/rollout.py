"""Rollouts: hosts in batches, and the limit of failed hosts. `fleet/journal.py` keeps what `--resume` continues
from."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Container, Sequence
from typing import Any

from msgspec import Struct, field

from rigwright.core import host_ranges
from rigwright.core.errors import UsageError
from rigwright.engine.playbook import BoundPlaybook
from rigwright.facts.plain import plain

_SIZES = "numbers of hosts, or percents of them, such as 1,10%,100%"


class Size(Struct, frozen=True):
    """The size of a batch: a number of hosts, or a percentage of all hosts of the rollout."""

    number: int
    percent: bool

    def of(self, total: int) -> int:
        """The number of hosts, rounded down, at least 1."""
        return max(1, total * self.number // 100) if self.percent else self.number


def sizes(text: str) -> tuple[Size, ...]:
    """The sizes of `1,10%,100%`. Raises UsageError."""
    result = []
    for word in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,6})\s*(%?)\s*", word)
        if not match or not int(match[1]):
            raise UsageError("--serial", f"'{word.strip()}' is no size of a batch", _SIZES)
        if match[2] and int(match[1]) > 100:
            raise UsageError("--serial", f"'{word.strip()}' is more than all hosts", _SIZES)
        result.append(Size(int(match[1]), bool(match[2])))
    return tuple(result)


def batches(hosts: Sequence[str], of: Sequence[Size]) -> tuple[tuple[str, ...], ...]:
    """The hosts in order, in batches of these sizes; the last size is repeated."""
    result: list[tuple[str, ...]] = []
    rest = tuple(hosts)
    while rest:
        count = of[min(len(result), len(of) - 1)].of(len(hosts))
        result.append(rest[:count])
        rest = rest[count:]
    return tuple(result)


class Rollout(Struct, frozen=True):
    """A rollout: its files, its hosts in batches, and the hosts that are done (`fleet/journal.py`).

    `run`: the run that began it; `runs`: that one and those that continued it, in order. `max_fail`: None for no limit.
    `done`: for each host that is done the digest of its steps and checks. `begun`: hosts whose work was given out and
    has not ended.
    """

    run: str
    inventory: str
    playbook: str
    host: str
    tags: str
    max_fail: int | None
    reboots: int
    hosts: tuple[str, ...]
    batches: tuple[tuple[str, ...], ...] = ()
    done: dict[str, str] = field(default_factory=dict)
    begun: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()

    @property
    def left(self) -> tuple[str, ...]:
        """The hosts that are not done."""
        return tuple(name for name in self.hosts if name not in self.done)


class Rolling(Struct):
    """A rollout while a run works on it: its state, the batch sizes of a new one (none when it is resumed), why it
    stopped."""

    state: Rollout
    sizes: tuple[Size, ...] = ()
    digests: dict[str, str] = field(default_factory=dict)
    stopped: str = ""

    @property
    def going_on(self) -> bool:
        """Whether an earlier run began the rollout."""
        return not self.sizes

    def must_stop(self, failed: int) -> bool:
        """Whether the rollout stops after so many failed hosts."""
        return self.state.max_fail is not None and failed > self.state.max_fail

    def to_do(self, bound: Sequence[BoundPlaybook]) -> list[BoundPlaybook]:
        """The hosts that this run provisions: those that are not done, and those whose steps or variables have changed
        since."""
        self.digests = {playbook.host.name: digest(playbook) for playbook in bound}
        return [each for each in bound if self.state.done.get(each.host.name) != self.digests[each.host.name]]

    def insist(self, hosts: Container[str]) -> None:
        """Raises UsageError when the inventory no longer has a host of the rollout."""
        gone = [name for name in self.state.hosts if name not in hosts]
        if gone:
            run = f"(rollout of run {self.state.run})"
            found = f"{self.state.inventory} has no {host_ranges.folded(gone)} any more {run}"
            raise UsageError("--resume", found, "all its hosts", "begin a new rollout: --serial in place of --resume")

    def as_json(self) -> dict[str, Any]:
        """The key `rollout` of the JSON document."""
        return {
            "batches": [list(batch) for batch in self.state.batches],
            "max_fail": self.state.max_fail,
            "reboots": self.state.reboots,
            "goes_on_with": self.state.run if self.going_on else "",
            "stopped": self.stopped,
            "left": list(self.state.left),
        }


def digest(bound: BoundPlaybook, place: str = "") -> str:
    """A hash of the steps and checks of a host with their parameters: it changes when they change. `place`: the folder
    that paths of files begin with and that is left out."""
    steps = [(step.name, step.operation, bool(step.skipped), plain(step.parameters)) for step in bound.steps]
    checks = [(check.name, check.check, plain(check.parameters)) for check in bound.checks]
    text = json.dumps([steps, checks], sort_keys=True, default=str)
    return hashlib.sha256((text.replace(place, "") if place else text).encode()).hexdigest()[:16]
