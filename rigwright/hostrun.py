"""One host in one run: its connection, what is known of it, and what must not be cut when somebody stops the run."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rigwright import events, plan
from rigwright.change import Change
from rigwright.errors import ConsentError, HostError, Interrupted, RigwrightError
from rigwright.facts import Fact, FactStore, Unavailable, Unreadable
from rigwright.facts import os as system
from rigwright.hosts import Host
from rigwright.playbook import Step
from rigwright.transport import Transport

Emit = Callable[[events.Event], None]


@dataclass(frozen=True)
class Options:
    """How a run behaves. `disrupt`: what was not announced, and what interrupts running GPU work, may happen.

    `reboots`: so many hosts may be rebooting at a time. `root`: commands run as root, else as who logs in.
    """

    run_id: str
    disrupt: bool = False
    reboot_timeout_s: float = 900.0
    reboots: int = 1
    root: bool = True


@dataclass
class Shared:
    """What the hosts of a run share: so many reboot at a time, none any more after one that did not come back (`lost`); and
    whether somebody has stopped the run."""

    turn: threading.Semaphore
    lost: str = ""
    stopping: threading.Event = field(default_factory=threading.Event)


@dataclass
class Outcome:
    """What became of a host: every step with its status, the changes with whether they were made, and the error."""

    steps: list[plan.Planned] = field(default_factory=list)
    done: dict[str, tuple[Change, ...]] = field(default_factory=dict)
    error: RigwrightError | None = None
    rebooted: bool = False


class HostRun:
    """One host in one run: its connection, what is known of it, and the plan so far."""

    def __init__(self, host: Host, transport: Transport, options: Options, emit: Emit, shared: Shared) -> None:
        self.name = host.name
        self.address = host.address
        self.transport = transport
        self.options = options
        self.emit = emit
        self.store = FactStore()
        self.also: tuple[Fact[Any], ...] = (system.boot_id, system.simulated)
        self.shared = shared
        self.asking_s = 0.0
        self.announced = False
        self.doing = ""
        self.rebooting = False
        self._uncut = threading.Lock()

    def go_on(self) -> None:
        """Raises Interrupted once somebody has stopped the run."""
        if self.shared.stopping.is_set():
            raise Interrupted(self.name, "stopped", "", "the same command goes on from there")

    @contextlib.contextmanager
    def uncut(self, doing: str) -> Iterator[None]:
        """What stands within is not cut by the first Ctrl-C; and is not begun after it."""
        with self._uncut:
            self.go_on()
            self.doing = doing
            try:
                yield
            finally:
                self.doing = ""

    def stop(self) -> bool:
        """What only reads or waits has ended, or ends soon; False when something is under way that must not be cut."""
        if not self._uncut.acquire(blocking=False):
            return False
        try:
            self.transport.abandon()
        finally:
            self._uncut.release()
        return True

    def along(self, facts: Iterable[Fact[Any]]) -> None:
        """These are read in the next round trip, whatever it is for."""
        self.also = tuple(dict.fromkeys((*self.also, *facts)))

    def read(self, facts: Sequence[Fact[Any]]) -> None:
        """The facts are known, in one round trip; those of `also` with them."""
        asked = [*facts, *(fact for fact in self.also if fact not in self.store.known and fact not in facts)]
        began = time.monotonic()
        answers = self.transport.run([fact.command for fact in asked], together=True)
        self.asking_s += time.monotonic() - began
        self.store.learn(zip(asked, answers, strict=True))
        if not self.announced:
            self.announced = True
            said = self.store.known[system.simulated]
            self.emit(events.Connected(self.name, self.address, said if isinstance(said, str) else ""))

    def planned(self, steps: Sequence[Step]) -> tuple[plan.Planned, ...]:
        """The plan of the steps, from facts."""
        return plan.make(steps, self.store, self.read)

    def value(self, fact: Fact[Any]) -> Any:
        """A fact's value, read if need be."""
        if fact not in self.store.known:
            self.read((fact,))
        try:
            return self.store(fact)
        except (Unavailable, Unreadable) as reason:
            raise HostError(self.name, str(reason), "an answer") from None

    def busy(self) -> str:
        """Who works on a GPU, the driver's own programs apart: `python3 (4711)`, or "". Raises ConsentError when the host cannot tell."""
        from rigwright.facts import gpu

        found: dict[int, gpu.Process] = {}
        for fact in (gpu.processes, gpu.holders):
            if fact not in self.store.known:
                self.read((gpu.processes, gpu.holders))
            value = self.store.known[fact]
            if fact is gpu.holders and isinstance(value, Unreadable):
                raise ConsentError(
                    self.name, f"who uses the GPUs cannot be told ({value})", "idle GPUs", "add --disrupt"
                )
            found.update({one.pid: one for one in (value if isinstance(value, tuple) else ())})
        return ", ".join(f"{one.name} ({one.pid})" for one in found.values() if one.works)
