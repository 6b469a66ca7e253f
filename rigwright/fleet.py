"""Many hosts at once: what a command does with each, and `run_hosts`, which does it with all side by side (docs/rollouts.md)."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING

from rigwright.checks import Finding, ranked
from rigwright.crew import Act, Work, active, close, guarded, keep, prepare, unseen
from rigwright.events import Begun, Ended, Note
from rigwright.facts import os as system
from rigwright.hostreport import HostReport, HostStatus
from rigwright.orders import done, order, settle

if TYPE_CHECKING:
    from rigwright.p2p import Asked
    from rigwright.programs import Programs

WORKERS = 32

__all__ = ["Act", "HostReport", "HostStatus", "Work", "active", "close", "keep", "prepare", "run_hosts", "unseen"]


def run_hosts(
    work: Sequence[Work],
    act: Act,
    executor: Executor | None = None,
    *,
    doing: str = "asking",
    meanwhile: Callable[[], object] = int,
    enough: Callable[[Work], bool] = lambda _one: False,
) -> None:
    """`act` has run once for every host that is not in error, side by side; a host's own failure stands in its report.

    `executor` (default: the work's own, else a pool of threads) is not shut down. `doing` says to who watches what is done,
    `meanwhile` runs in this thread while the first hosts answer. `enough` is asked as each host ends, one at a time; once it
    says so no other host is begun, and those that were not are not attempted. Ctrl-C: nothing more is begun, what must not be
    cut is waited for, and KeyboardInterrupt goes on; a second one waits for nothing.
    """
    alive = [one for one in work if one.report.error is None]
    elsewhere = executor or next((one.executor for one in alive), None)
    if not alive:
        meanwhile()
        return
    with alive[0].stage([one.report.host.name for one in alive]):
        if elsewhere is not None:
            _GivenOut(alive, lambda one: elsewhere.submit(done, order(one, act)), enough).all(meanwhile)
            return
        with ThreadPoolExecutor(max_workers=min(WORKERS, len(alive))) as pool:
            _GivenOut(alive, lambda one: pool.submit(guarded, one, act, doing), enough).all(meanwhile)


class _GivenOut:
    """Hosts that were given to workers, and which of them have not ended."""

    def __init__(
        self, work: Sequence[Work], begin: Callable[[Work], Future[HostReport]], enough: Callable[[Work], bool]
    ) -> None:
        self.work, self.begin, self.enough = work, begin, enough
        self.futures: list[Future[HostReport]] = []
        self.open: set[str] = set()
        self.over = False
        self.turn = threading.RLock()
        self.told: SimpleQueue[str] = SimpleQueue()
        """The name of each host that has ended, and _CTRL_C; only this may be touched while a signal is handled."""

    def all(self, meanwhile: Callable[[], object]) -> None:
        """All have ended, or were not begun. Raises KeyboardInterrupt, once all have ended that must not be cut."""
        with _heard(lambda: self.told.put(_CTRL_C)):
            for one in self.work:
                if self.over:
                    self._leave_out(one)
                    continue
                self.open.add(one.report.host.name)
                self.futures.append(self.begin(one))
                self.futures[-1].add_done_callback(partial(self._ended, one))
            meanwhile()
            self._follow()

    def _follow(self) -> None:
        stops = 0
        while self.open or not self.told.empty():
            told = self.told.get()
            self.open.discard(told)
            stops += told == _CTRL_C
            if told == _CTRL_C and stops == 1:
                self._stop()
            elif told == _CTRL_C:
                self._leave()
                break
        if stops:
            raise KeyboardInterrupt

    def _ended(self, one: Work, future: Future[HostReport]) -> None:
        """In the worker's thread, before it takes another host."""
        try:
            if future.cancelled():
                self._leave_out(one)
                return
            with self.turn:
                settle(one, future)
                one.tell(Ended(one.report.host.name, "failed" if one.report.bad else "done"))
                if not self.over and self.enough(one):
                    self._no_more()
        finally:
            self.told.put(one.report.host.name)

    def _no_more(self) -> None:
        self.over = True
        for each in self.futures:
            each.cancel()

    def _leave_out(self, one: Work) -> None:
        one.report.status = "not_attempted"
        one.tell(Ended(one.report.host.name, "not attempted"))

    def _stop(self) -> None:
        """Nothing more is begun; what only reads or waits ends soon, and who watches is told what is waited for."""
        self._no_more()
        self.work[0].run.shared.stopping.set()
        busy = [one for one in self.work if one.report.host.name in self.open and not one.run.stop()]
        for one in busy:
            what = f"{one.run.doing}, which is not to be cut" if one.run.doing else "what is under way"
            one.tell(Note(one.report.host.name, f"finishing {what}; Ctrl-C again leaves it to the host"))

    def _leave(self) -> None:
        """Nothing is waited for any more."""
        for one in self.work:
            one.left = one.run.doing if one.report.host.name in self.open else ""
            one.run.transport.abandon()


_CTRL_C = "\x03"


@contextmanager
def _heard(act: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C calls `act`, in place of ending whatever this thread is at; but in a thread that hears no signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda *_: act())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def connect(one: Work) -> None:
    """The host is connected to and has said whether it is simulated."""
    began = time.monotonic()
    one.run.transport.connect()
    one.report.connecting_s += time.monotonic() - began


def look(one: Work) -> None:
    """The report holds the plan, steps that failed among it."""
    one.report.planned = one.run.planned(one.bound.steps)
    one.report.simulated = str(one.run.value(system.simulated))


def plan(one: Work) -> None:
    """The report holds the plan; its status is ok or pending. Raises the first step's error."""
    look(one)
    failed = next((step for step in one.report.planned if step.error is not None), None)
    if failed is not None and failed.error is not None:
        raise failed.error
    wanting = any(step.status in ("pending", "unknown") for step in one.report.planned)
    one.report.status = "pending" if wanting else "ok"


def apply(one: Work) -> None:
    """What the plan wanted is so and proved. Raises what stopped it."""
    if one.report.status != "pending":
        return
    from rigwright import apply as applying

    outcome = applying.apply(one.run, one.bound.steps, one.report.planned)
    one.report.outcome = outcome
    if outcome.error is not None:
        raise outcome.error
    one.report.status = "changed"


def make(one: Work, wheels: str) -> None:
    """What the plan wanted is so and proved, tested where the driver changed, and checked. Raises what stopped it.

    `wheels` as in `test_after`.
    """
    apply(one)
    test_after(one, wheels)
    one.tell(Begun(one.report.host.name, "checking"))
    check(one)


def check(one: Work) -> None:
    """The report holds the findings of the checks; one that fails or is unknown makes the status failed."""
    if not one.checks and not one.report.not_tested:
        return
    from rigwright import verify

    one.report.findings = ranked(_found(one))
    if one.report.wrong:
        one.report.status = "failed"
    verify.remember(one.run, one.report.findings, accept=True)


def check_all(one: Work) -> None:
    """As `check`, and every step that is not so is a finding that fails: what `verify` means."""
    from rigwright import verify

    pending = verify.drift(one.report.planned)
    one.report.findings = ranked((*_found(one), *pending))
    one.report.status = "failed" if one.report.wrong else "ok"
    verify.remember(one.run, one.report.findings, accept=False)


def prove(one: Work, asked: Asked | None, others: Programs | None) -> None:
    """As `check_all`, after the peer-to-peer test and the programs beside it, where they are asked for."""
    name = one.report.host.name
    if asked is None and others is None:
        from rigwright import verify

        one.run.along(verify.wanted(one.run, one.checks))
    look(one)
    if asked is not None:
        from rigwright import p2p

        one.tell(Begun(name, p2p.NAME))
        test(one, asked)
    if others is not None:
        one.tell(Begun(name, "tests with programs of the host's"))
        test_programs(one, others)
    one.tell(Begun(name, "checking"))
    check_all(one)


def _found(one: Work) -> tuple[Finding, ...]:
    from rigwright import verify

    return (*verify.findings(one.run, one.checks), *one.report.not_tested)


def test(one: Work, asked: Asked) -> None:
    """The peer-to-peer test has run, where the playbook has a check of it; else the findings say why not."""
    if not any(active(check) for check in one.bound.checks):
        return
    from rigwright import p2p
    from rigwright.facts import p2p as peers

    wheels = _wheels(one, asked.wheels)
    asked = replace(asked, wheels="" if wheels == "none" else wheels)
    refused = p2p.test(one.run, asked)
    one.report.not_tested = (refused,) if refused else ()
    one.report.p2p = None if refused else one.run.store(peers.tested)


def test_programs(one: Work, asked: Programs) -> None:
    """The programs that were asked for have run; else the findings say why not."""
    from rigwright import programs

    checks = frozenset(check.check for check in one.bound.checks)
    one.report.not_tested += programs.test(one.run, asked, checks)


DRIVING = ("driver.", "fabric.", "reboot.", "kernel.", "grub.")
"""Operations after which the GPUs may reach each other in another way than before."""


def test_after(one: Work, wheels: str) -> None:
    """As `test`, where this run changed the driver or what it stands on; a run that changed nothing tests nothing.

    `wheels`: where its libraries come from, "" for what the inventory says. Nor does one that is to bring no libraries.
    """
    done = one.report.outcome.done if one.report.outcome else {}
    changed = {step.operation for step in one.bound.steps if step.key in done}
    if not any(operation.startswith(DRIVING) for operation in changed):
        return
    from rigwright import p2p

    wheels = wheels or p2p.AS_THE_INVENTORY_SAYS
    if _wheels(one, wheels) != "none":
        one.tell(Begun(one.report.host.name, p2p.NAME))
        test(one, p2p.Asked(False, False, wheels))


def _wheels(one: Work, asked: str) -> str:
    from rigwright import p2p

    said = one.bound.host.variables.get("p2p_wheels") or "fetch"
    return str(said) if asked == p2p.AS_THE_INVENTORY_SAYS else asked
