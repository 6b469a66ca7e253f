"""Rollouts: hosts in batches, how many may fail, and what a rollout that stopped leaves for the next run to go on with."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rigwright import state
from rigwright.errors import UsageError

SCHEMA = 1
FOLDER = "rollouts"
_SIZES = "numbers of hosts, or percents of them, such as 1,10%,100%"


@dataclass(frozen=True)
class Size:
    """How many hosts a batch has: so many, or so many percent of all hosts of the rollout."""

    number: int
    percent: bool

    def of(self, total: int) -> int:
        """Hosts, rounded down, 1 at least."""
        return max(1, total * self.number // 100) if self.percent else self.number


def sizes(text: str) -> tuple[Size, ...]:
    """The sizes of `1,10%,100%`. Raises UsageError."""
    found = []
    for word in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,6})\s*(%?)\s*", word)
        if not match or not int(match[1]):
            raise UsageError("--serial", f"'{word.strip()}' is no size of a batch", _SIZES)
        if match[2] and int(match[1]) > 100:
            raise UsageError("--serial", f"'{word.strip()}' is more than all hosts", _SIZES)
        found.append(Size(int(match[1]), bool(match[2])))
    return tuple(found)


def batches(hosts: Sequence[str], of: Sequence[Size]) -> tuple[tuple[str, ...], ...]:
    """The hosts in their order, in batches of these sizes; the last size counts for all that are left."""
    found: list[tuple[str, ...]] = []
    rest = tuple(hosts)
    while rest:
        count = of[min(len(found), len(of) - 1)].of(len(hosts))
        found.append(rest[:count])
        rest = rest[count:]
    return tuple(found)


@dataclass(frozen=True)
class Rollout:
    """A rollout as it stands: of which files, which hosts in which batches, and which of them are done.

    `done` has with each host a digest of what it was made; `run` is the run that began it.
    """

    run: str
    inventory: str
    playbook: str
    host: str
    tags: str
    max_fail: int
    reboots: int
    hosts: tuple[str, ...]
    batches: tuple[tuple[str, ...], ...] = ()
    done: dict[str, str] = field(default_factory=dict)
    schema: int = SCHEMA

    @property
    def left(self) -> tuple[str, ...]:
        """The hosts that are not done."""
        return tuple(name for name in self.hosts if name not in self.done)


def save(rollout: Rollout) -> None:
    """It can be gone on with. Raises UsageError where the state cannot be written: better before the first host than after it."""
    path = _file(rollout)
    try:
        state.write(path, json.dumps(dataclasses.asdict(rollout), indent=1), lasting=True)
    except OSError as error:
        found = f"cannot be written ({error.strerror}), so a rollout that stops could not be gone on with"
        raise UsageError(str(path.parent), found, "a folder that you may write", "set XDG_STATE_HOME") from None


def begin(rollout: Rollout) -> None:
    """As `save`; an older rollout of the same hosts and files is none any more."""
    save(rollout)
    for other in _kept():
        if other.run != rollout.run and _of(other) == _of(rollout):
            end(other)


def _of(rollout: Rollout) -> tuple[str, ...]:
    return rollout.inventory, rollout.playbook, rollout.host, rollout.tags


def end(rollout: Rollout) -> None:
    """Nothing is left to go on with."""
    with contextlib.suppress(OSError):
        _file(rollout).unlink()


def stopped() -> Rollout:
    """The rollout that was stopped last. Raises UsageError when there is none."""
    found = next(_kept(), None)
    if found:
        return found
    todo = "begin one: invoke provision --host PATTERN --serial 1,10%,100%"
    raise UsageError("--resume", "no rollout was stopped", "a rollout that has hosts left", todo)


def _kept() -> Iterator[Rollout]:
    """All that can be gone on with, the newest first; what is not ours, or of another version, is passed by."""
    for path in sorted(state.place(FOLDER).glob("*.json"), reverse=True):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            yield _read(json.loads(path.read_text(encoding="utf-8")))


def _read(found: dict[str, Any]) -> Rollout:
    """Raises TypeError, KeyError, ValueError for what is no rollout of this schema."""
    if found["schema"] != SCHEMA:
        raise ValueError("another schema")
    lists = {"hosts": tuple(found["hosts"]), "batches": tuple(map(tuple, found["batches"]))}
    return Rollout(**{**found, **lists})


def _file(rollout: Rollout) -> Path:
    return state.place(FOLDER, f"{rollout.run}.json")
