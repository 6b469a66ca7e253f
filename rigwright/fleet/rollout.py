"""Rollouts: hosts in batches until too many have failed. `fleet/journal.py` keeps what `--resume` continues from."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Collection, Container, Sequence
from functools import partial
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from rigwright.core import host_ranges
from rigwright.core.errors import UsageError
from rigwright.core.numbers import count
from rigwright.engine.host_run import HostRun
from rigwright.engine.playbook import BoundPlaybook
from rigwright.facts.plain import plain
from rigwright.fleet import journal, pool
from rigwright.fleet.journal import Rollout

JOURNAL_RETRY_S = 30.0
"""The journal is not written again for this time after a failure, because each try may wait for another process."""


def batches(hosts: Sequence[str], sizes: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """The hosts in batches of these sizes; the last size is repeated; `10%` of the hosts is at least one host."""
    result: list[tuple[str, ...]] = []
    rest = tuple(hosts)
    while rest:
        size = sizes[min(len(result), len(sizes) - 1)]
        number = max(1, len(hosts) * int(size[:-1]) // 100) if size.endswith("%") else int(size)
        result.append(rest[:number])
        rest = rest[number:]
    return tuple(result)


class Rolling(Struct):
    """A rollout that a run works on: its state, the batch sizes (() when it is resumed), why it stopped."""

    state: Rollout
    sizes: tuple[str, ...] = ()
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
        """The hosts to provision: those that are not done, and those whose steps or variables have changed since."""
        self.digests = {playbook.host.name: digest(playbook) for playbook in bound}
        return [each for each in bound if self.state.done.get(each.host.name) != self.digests[each.host.name]]

    def insist(self, hosts: Container[str]) -> None:
        """Raises UsageError when the inventory no longer has a host of the rollout."""
        if gone := [name for name in self.state.hosts if name not in hosts]:
            run = f"(rollout of run {self.state.run})"
            problem = f"{self.state.inventory} has no {host_ranges.folded(gone)} any more {run}"
            raise UsageError("--resume", problem, "all its hosts", "begin a new rollout: --serial in place of --resume")

    def as_json(self) -> dict[str, Any]:
        """The key `rollout` of the JSON document."""
        return {
            "batches": [list(batch) for batch in self.state.batches],
            "max_fail": self.state.max_fail,
            "reboots": self.state.reboots,
            "goes_on_with": self.state.run if self.going_on else "",
            "stopped": self.stopped,
            "left": list(self.state.pending),
        }


def digest(bound: BoundPlaybook, place: str = "") -> str:
    """A hash of the steps and checks of a host with their parameters, without the folder `place` in paths."""
    steps = [(step.name, step.operation, bool(step.skipped), plain(step.parameters)) for step in bound.steps]
    checks = [(check.name, check.check, plain(check.parameters)) for check in bound.checks]
    text = json.dumps([steps, checks], sort_keys=True, default=str)
    return hashlib.sha256((text.replace(place, "") if place else text).encode()).hexdigest()[:16]


def roll(
    runs: Sequence[HostRun], text: Any, batch: Callable[..., object], rolling: Rolling, finished: Collection[str] = ()
) -> list[str]:
    """Provisions batch after batch until all are done or too many have failed; returns the names of failed hosts.

    The journal has what `--resume` needs. `batch` provisions runs; its other arguments are `on_end`, called when a host
    has ended, and `too_many`: whether so many failed hosts are too many. `finished`: the hosts with nothing left to do.
    """
    pending = {run.host.name: run for run in runs if run.report.error or run.report.status == "pending"}
    ready = [run for run in runs if run.host.name not in pending]
    if not rolling.going_on:
        names = tuple(run.host.name for run in runs)
        rolling.state = replace(rolling.state, hosts=names, batches=batches(list(pending), rolling.sizes))
    known = {name for part in rolling.state.batches for name in part}
    parts = [[name for name in part if name in pending] for part in rolling.state.batches]
    parts = [part for part in (*parts, [name for name in pending if name not in known]) if part]
    (journal.resume if rolling.going_on else journal.begin)(rolling.state)
    record = _Record(rolling, text)
    failed: dict[str, None] = {}
    try:
        pool.tidy(list(pending.values()))
        for run in pending.values():
            run.transport.close()  # its turn may come in an hour; it is connected to again then
        record.begun(ready)
        for run in ready:
            if run.host.name in finished:
                record.ended(run)
        batch([run for run in ready if run.host.name not in finished], on_end=record.ended)
        for number, names_of_batch in enumerate(parts, 1):
            members = [pending[name] for name in names_of_batch]
            hosts = f"{count(len(members), 'host')}, {host_ranges.folded(names_of_batch)}"
            text.line(f"\n[bold]Batch {number} of {len(parts)}[/]: {hosts}")
            failed |= {run.host.name: None for run in members if run.report.error}
            before = len(failed)
            if not rolling.must_stop(before):
                record.begun(members)
                batch(
                    members, on_end=record.ended, too_many=lambda more, before=before: rolling.must_stop(before + more)
                )
                # Hosts that were running when there were too many have ended since.
                failed |= {run.host.name: None for run in members if run.report.bad}
            if rolling.must_stop(len(failed)):
                rolling.stopped = f"more than --max-fail {rolling.state.max_fail}"
                break
        pool.leave_out([run for run in pending.values() if run.report.status == "pending"])
        return list(failed)
    finally:
        record.close()


class _Record:
    """Writes to the journal and to the state of a rollout which hosts are begun and done.

    A journal that cannot be written while hosts are being changed is a warning, once; the entries are written later.
    """

    def __init__(self, rolling: Rolling, text: Any) -> None:
        self._rolling, self._text = rolling, text
        self._unwritten: list[Callable[[], None]] = []
        self._not_before = 0.0

    def begun(self, runs: Sequence[HostRun]) -> None:
        """Writes that these hosts are given out now."""
        plans = {run.host.name: self._rolling.digests[run.host.name] for run in runs if run.report.error is None}
        self._write(partial(journal.record_begin, self._rolling.state.run, plans))

    def ended(self, run: HostRun) -> None:
        """Writes how a host has ended, unless the run did not get to it."""
        report, state = run.report, self._rolling.state
        if report.status == "not_attempted":
            return
        name, plan = run.host.name, self._rolling.digests[run.host.name]
        if not report.bad:
            self._rolling.state = replace(state, done={**state.done, name: plan})
        self._write(partial(journal.record_end, state.run, name, plan, not report.bad))

    def close(self) -> None:
        """Writes the remaining entries, and that this process has left the rollout; deletes a finished rollout."""
        state = self._rolling.state
        self._write(partial(journal.leave if state.pending else journal.end, state.run), now=True)

    def _write(self, write: Callable[[], None], now: bool = False) -> None:
        self._unwritten.append(write)
        if not now and time.monotonic() < self._not_before:
            return
        try:
            while self._unwritten:
                self._unwritten[0]()
                del self._unwritten[0]
        except UsageError as error:
            if not self._not_before:
                problem = f"{error.where}: {error.found}; --resume would plan hosts again that are done"
                self._text.warn(f"{problem} ({error.fix})")
            self._not_before = time.monotonic() + JOURNAL_RETRY_S
