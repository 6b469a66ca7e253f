"""`invoke provision`: the plan of all hosts, a yes, then a batch of hosts at a time, until too many have failed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.markup import escape

from rigwright import fleet, patterns, rollout, showing
from rigwright.errors import UsageError
from rigwright.figures import count, whole
from rigwright.fleet import HostReport, Work
from rigwright.plan import Planned
from rigwright.playbook import Bound
from rigwright.report import document
from rigwright.rollout import Rollout, Size
from rigwright.showing import Said

MANY = 4
"""With more hosts than this, findings that pass are counted and not shown one by one."""


@dataclass
class Rolling:
    """A rollout in this run: as it stands, the sizes of its batches (none: those it has), why it stopped."""

    state: Rollout
    sizes: tuple[Size, ...] = ()
    wanted: dict[str, str] = field(default_factory=dict)
    stopped: str = ""

    @property
    def going_on(self) -> bool:
        """Whether it goes on with a rollout that an earlier run began."""
        return not self.sizes

    def to_do(self, bound: Sequence[Bound]) -> list[Bound]:
        """The hosts that this run is for: those that are done are not asked again, unless what is wanted of them has changed."""
        self.wanted = {one.host.name: digest(one) for one in bound}
        return [one for one in bound if self.state.done.get(one.host.name) != self.wanted[one.host.name]]

    def insist(self, hosts: Container[str]) -> None:
        """Raises UsageError when the inventory no longer has a host of the rollout."""
        gone = [name for name in self.state.hosts if name not in hosts]
        if gone:
            found = f"{self.state.inventory} has no {patterns.folded(gone)} any more (rollout of run {self.state.run})"
            raise UsageError("--resume", found, "all its hosts", "begin a new rollout: --serial in place of --resume")

    def told(self) -> dict[str, Any]:
        """What the JSON document of the run says of it."""
        return {
            "batches": [list(batch) for batch in self.state.batches],
            "max_fail": self.state.max_fail,
            "reboots": self.state.reboots,
            "goes_on_with": self.state.run if self.going_on else "",
            "stopped": self.stopped,
            "left": list(self.state.left),
        }


def asked(said: Said, run_id: str, inventory: Path, playbook: Path | None) -> tuple[Said, Rolling | None]:
    """The words as they count, and the rollout that they ask for, None for none. Raises UsageError."""
    reboots = whole("--reboots", said.reboots, 1, "hosts") if said.reboots else 1
    most = whole("--max-fail", said.max_fail, 0, "hosts") if said.max_fail else None
    if said.resume:
        return _resumed(said, most, reboots)
    if not said.serial and most is None:
        return said, None
    files = str(inventory.resolve()), str(playbook.resolve()) if playbook else ""
    state = Rollout(run_id, *files, said.host or "", said.tags, most or 0, reboots, ())
    return said, Rolling(state, rollout.sizes(said.serial or "100%"))


def _resumed(said: Said, most: int | None, reboots: int) -> tuple[Said, Rolling]:
    """The words of the rollout that was stopped last. Raises UsageError for words that it contradicts."""
    if said.serial:
        raise UsageError("--resume", "keeps the batches of the rollout that stopped", "no --serial beside it")
    state = rollout.stopped()
    given = {
        "--inventory": (said.inventory and str(Path(said.inventory).resolve()), state.inventory),
        "--playbook": (said.playbook and str(Path(said.playbook).resolve()), state.playbook),
        "--host": (said.host or "", state.host),
        "--tags": (said.tags, state.tags),
    }
    for option, (typed, was) in given.items():
        if typed and typed != was:
            found = f"the rollout that stopped (run {state.run}) was of {option} {was or 'without'}, not {typed}"
            todo = f"leave {option} out; or begin a new rollout: --serial in place of --resume"
            raise UsageError("--resume", found, "one and the same rollout", todo)
    state = replace(
        state, max_fail=state.max_fail if most is None else most, reboots=reboots if said.reboots else state.reboots
    )
    hosts = ",".join(state.hosts)
    same = replace(said, inventory=state.inventory, playbook=state.playbook, host=hosts, tags=state.tags)
    return same, Rolling(state)


def digest(bound: Bound) -> str:
    """What tells whether the same is wanted of a host as before: its steps and checks with their parameters."""
    steps = [(one.name, one.operation, document.plain(one.parameters)) for one in bound.steps]
    checks = [(one.name, one.check, document.plain(one.parameters)) for one in bound.checks]
    return hashlib.sha256(json.dumps([steps, checks], sort_keys=True, default=str).encode()).hexdigest()[:16]


def provision(work: list[Work], text: Any, said: Said, rolling: Rolling | None = None) -> None:
    """Every host is what its playbook wants, proved and checked; or the rollout stopped, and the rest was not attempted."""
    if rolling and rolling.going_on:
        _introduce(rolling, text)
    fleet.run_hosts(work, fleet.plan, doing="planning")
    alive = [one for one in work if one.report.error is None]
    text.plans([one.report for one in alive])
    if any(one.report.status == "pending" for one in alive):
        showing.consent(said.yes)
    if rolling is None:
        _batch(alive, text, said.wheels, len(work) > MANY)
    else:
        _roll(work, text, said.wheels, rolling)


def _introduce(rolling: Rolling, text: Any) -> None:
    """Which rollout this is."""
    state = rolling.state
    text.line(
        f"Going on with the rollout of run [bold]{state.run}[/]:"
        f" {len(state.hosts) - len(state.left)} of {count(len(state.hosts), 'host')} done"
    )
    host, tags = (
        f", {option} {value}" if value else "" for option, value in (("--host", state.host), ("--tags", state.tags))
    )
    text.plain(f"  inventory {state.inventory}, playbook {state.playbook}{host}{tags}")


def _roll(work: list[Work], text: Any, wheels: str, rolling: Rolling) -> None:
    """Batch after batch, until all are done or too many have failed; where it stands is kept for `--resume`."""
    todo = {one.report.host.name: one for one in work if one.report.error or one.report.status == "pending"}
    ready = [one for one in work if one.report.host.name not in todo]
    batches = _batches(rolling, [one.report.host.name for one in work], list(todo))
    (rollout.save if rolling.going_on else rollout.begin)(rolling.state)
    for one in todo.values():
        one.run.transport.close()  # its turn may come in an hour; it is connected to again then
    _batch(ready, text, wheels, len(work) > MANY)
    _note(rolling, ready)
    failed: list[Work] = []

    def enough(one: Work) -> bool:
        failed.extend([one] if one.report.bad else [])
        return len(failed) > rolling.state.max_fail

    for number, names in enumerate(batches, 1):
        members = [todo[name] for name in names]
        text.line(f"\n[bold]Batch {number} of {len(batches)}[/]: {count(len(names), 'host')}, {patterns.folded(names)}")
        failed += [one for one in members if one.report.error]
        if len(failed) <= rolling.state.max_fail:
            _batch(members, text, wheels, len(work) > MANY, enough)
            _note(rolling, members)
            counted = {one.report.host.name for one in failed}  # what was under way as it was enough has ended since
            failed += [one for one in members if one.report.bad and one.report.host.name not in counted]
        if len(failed) > rolling.state.max_fail:
            rolling.stopped = f"more than --max-fail {rolling.state.max_fail}"
            break
    _close(rolling, [one.report.host.name for one in failed], list(todo.values()), text)


def _batches(rolling: Rolling, hosts: Sequence[str], todo: Sequence[str]) -> list[list[str]]:
    """The batches of this run: of a new rollout, or what is left of those that it began with."""
    if not rolling.going_on:
        made = rollout.batches(todo, rolling.sizes)
        rolling.state = replace(rolling.state, hosts=tuple(hosts), batches=made)
    known = {name for batch in rolling.state.batches for name in batch}
    batches = [[name for name in batch if name in todo] for batch in rolling.state.batches]
    return [batch for batch in (*batches, [name for name in todo if name not in known]) if batch]


def _note(rolling: Rolling, work: Sequence[Work]) -> None:
    """The hosts that are done are noted as done."""
    names = [one.report.host.name for one in work if not one.report.bad and one.report.status != "not_attempted"]
    done = {**rolling.state.done, **{name: rolling.wanted[name] for name in names}}
    rolling.state = replace(rolling.state, done=done)
    rollout.save(rolling.state)


def _close(rolling: Rolling, failed: Sequence[str], todo: Sequence[Work], text: Any) -> None:
    """How the rollout stands at the end of the run, and what to type next."""
    state = rolling.state
    if not state.left:
        rollout.end(state)
        text.line(f"\n[bold green]Rollout done[/]: {count(len(state.hosts), 'host')}.")
        return
    for one in todo:
        one.report.status = "not_attempted" if one.report.status == "pending" else one.report.status
    left = [one.report.host.name for one in todo if one.report.host.name in {*state.left} - {*failed}]
    bad = f"{len(failed)} of {count(len(state.hosts), 'host')} failed ({patterns.folded(failed)})"
    if rolling.stopped:
        rolling.stopped = f"{bad}, {rolling.stopped}"
        rest = f"; not attempted: {patterns.folded(left)}" if left else ""
        text.line(f"\n[bold red]Stopped[/]: {escape(rolling.stopped + rest)}")
    else:
        text.line(f"\n[bold]Rollout[/]: {escape(bad)}, the others are done")
    text.line("  do:     mend what failed, then invoke provision --resume")


def _batch(
    members: list[Work], text: Any, wheels: str, short: bool, enough: Callable[[Work], bool] = lambda _one: False
) -> None:
    """What can be done of these hosts is done, and said; with `short` findings that pass are only counted."""
    over = False

    def seen(one: Work) -> bool:
        nonlocal over
        over = over or enough(one)
        return over

    for wave in _waves(members):
        if not over:
            fleet.run_hosts(wave, partial(fleet.make, wheels=wheels), doing="beginning", enough=seen)
            continue
        for one in wave:
            one.report.status = "not_attempted" if one.report.error is None else one.report.status
    for one in members:
        if one.report.error is None and one.report.status != "not_attempted":
            text.findings(one.report, only_bad=short)
            showing.peers(one, text)
            text.line(closing(one.report))
        elif one.report.error is not None and len(members) > 1:
            text.line(f"[bold]{escape(one.report.host.name)}[/]: [bold red]failed[/], {escape(one.report.error.found)}")


def _waves(members: list[Work]) -> list[list[Work]]:
    """The hosts in the order in which they are given out: all at once; but where workers elsewhere cannot see each other's
    reboots, only so many of those that will reboot at a time."""
    if not members or members[0].executor is None:
        return [members]
    rebooting = [one for one in members if any(map(_reboots, one.report.planned))]
    others = [one for one in members if one not in rebooting]
    size = members[0].run.options.reboots
    turns = [rebooting[at : at + size] for at in range(0, len(rebooting), size)] or [[]]
    return [[*others, *turns[0]], *turns[1:]]


def _reboots(planned: Planned) -> bool:
    return any(change.reboot or change.leads_to == "reboot" for change in planned.changes)


def closing(report: HostReport) -> str:
    """The last line of a host."""
    bad, good = report.wrong, report.passed
    changes = sum(len(changes) for changes in report.outcome.done.values()) if report.outcome else 0
    proved = f"proved by {count(good, 'check')}" if good else "proved"
    mark = f"[bold red]{bad} of {bad + good} checks failed[/]" if bad else f"[bold green]{proved}[/]"
    return f"[bold]{escape(report.host.name)}[/]: {count(changes, 'change')}, {mark}, {report.seconds:.1f} s"
