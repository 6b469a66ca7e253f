"""rigwright's command line that stops at each place of a run and waits for its test (`python -m
tests.end_to_end.plugs.controller FD ...`).

The places are those of the engine: a step begins, its commands are about to be sent, their answers are here, the host
is back from its reboot; and those of a program that measures: it is about to start, it has ended, its files are
removed. At each of them a line of JSON is written to the socket FD, and the program waits for a byte. Nothing else
differs from `invoke`: what is proved about this program holds for that one.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from rigwright.core.command import Command
from rigwright.engine import events, host_run, jobs, leased_commands, onhost_program, run_record
from rigwright.engine.boot import trial
from rigwright.engine.boot.wait import BootWait, Look
from rigwright.engine.lease import Lease
from rigwright.engine.onhost_program import OnhostProgram
from rigwright.engine.p2p import required
from rigwright.features.recorder import recorder


class _Places:
    """Tells the places. `trip`: how often commands of the current step were sent, or how often its program was
    started."""

    def __init__(self, descriptor: int) -> None:
        self.socket = socket.socket(fileno=descriptor)
        self.step, self.trip = "", 0
        self.starts: Counter[str] = Counter()

    def stop(self, at: str, leads: bool = False) -> None:
        """Tells a place, and waits for the test. `leads`: the step that begins leads to a reboot."""
        told = {"at": at, "step": self.step, "trip": self.trip, "leads": leads}
        self.socket.sendall(json.dumps(told).encode() + b"\n")
        if not self.socket.recv(1):
            raise SystemExit("the test has ended")

    def event(self, event: events.Event) -> None:
        """Tells the beginning and the end of a step."""
        if isinstance(event, events.StepStarted):
            self.step, self.trip = event.step, 0
            self.stop("begun", any(change.leads_to == "reboot" for change in event.changes))
        elif isinstance(event, events.StepDone):
            self.stop(event.status)
            self.step = ""

    def start(self, program: str) -> None:
        """Tells that a program is about to be started; its name is the step."""
        self.starts[program] += 1
        self.step, self.trip = program, self.starts[program]
        if self.trip == 1:
            self.stop("begun")
        self.stop("sends")

    def program(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the function; its start and its end are places of a program."""

        def told(*args: Any, **named: Any) -> Any:
            self.start(name)
            done = function(*args, **named)
            self.stop("ended")
            return done

        return told

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with a stop before and after it."""

        def told(*args: Any, **named: Any) -> Any:
            self.trip += 1
            self.stop("sends")
            done = function(*args, **named)
            self.stop("answered")
            return done

        return told


def _patch(places: _Places) -> None:
    emit, batch, is_back = host_run.HostRun.emit, leased_commands.run_batch, BootWait._is_back
    before, record_changes = run_record.before, required.record_changes
    keep, run_program = trial.Trials.keep, onhost_program.run
    records: list[Command] = []  # what a run writes down before a change: not always in a script of its own

    def told_emit(run: host_run.HostRun, event: events.Event) -> None:
        emit(run, event)
        places.event(event)

    def told_batch(held: Lease, step: str, commands: list[Any], *more: Any) -> None:
        if commands and all(any(one is other for other in records) for one in commands):
            places.stop("records")
            batch(held, step, commands, *more)
            places.stop("recorded")
        elif commands:
            places.around(batch)(held, step, commands, *more)

    def told_before(*args: Any, **named: Any) -> tuple[Command, ...]:
        found = before(*args, **named)
        records.extend(found)
        return found

    def told_keep(*args: Any) -> tuple[Command, ...]:
        found = tuple(keep(*args))
        records.extend(found)
        return found

    def told_changes(*args: Any, **options: Any) -> Command:
        records.append(record_changes(*args, **options))
        return records[-1]

    def told_back(self: BootWait, seen: Look) -> bool:
        back = is_back(self, seen)
        if back:
            places.stop("back")
        return back

    @contextlib.contextmanager
    def told_program(*args: Any) -> Iterator[None]:
        places.start(next(one.name for one in args if isinstance(one, OnhostProgram)))
        with run_program(*args):
            places.stop("ended")
            yield
        places.stop("removed")

    for owner, name, told in (
        (host_run.HostRun, "emit", told_emit),
        (leased_commands, "run_batch", told_batch),
        (BootWait, "_is_back", told_back),
        (run_record, "before", told_before),
        (required, "record_changes", told_changes),
        (trial.Trials, "keep", told_keep),
        (jobs, "run", places.around(jobs.run)),
        (onhost_program, "run", told_program),
        (recorder, "start", places.program("recorder starts", recorder.start)),
        (recorder, "stop", places.program("recorder stops", recorder.stop)),
    ):
        assert callable(getattr(owner, name))
        setattr(owner, name, told)


if __name__ == "__main__":
    from rigwright.cli.program import main

    _patch(_Places(int(sys.argv.pop(1))))
    main()
