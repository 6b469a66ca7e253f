"""A run of a command that stops at each place (Run), and what one uninterrupted run tells about all places (Reference,
Place)."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from tests.end_to_end.plugs import state
from tests.end_to_end.plugs.commands import Command
from tests.end_to_end.plugs.machine import Machine, programs
from tests.end_to_end.plugs.state import State
from tests.paths import ROOT

NESTED = 0.8
"""A program that spends this part of its time in one other program is no place of its own: the other is."""
LONG_S = 0.12
"""Programs that run for a shorter time in the uninterrupted run are no places of their own: a cut would come too
late."""
LOOK_S = 0.04
"""The pause between two looks at the programs that a host runs; a look at all of them takes some ms of a processor
core."""
PARTS = (0.1, 0.4, 0.7)
"""Cuts while the host reboots: parts of the time from the order to the first answer. Cuts in a program that measures:
of its time."""


@dataclass(frozen=True)
class Stop:
    """A place that the controller tells, and when, in seconds of the monotonic clock."""

    at: str
    step: str
    trip: int
    leads: bool
    seconds: float


class Run:
    """A command with --yes whose controller stops at each place. `output`: what it printed."""

    def __init__(self, words: Sequence[str], log: Path) -> None:
        ours, theirs = socket.socketpair()
        argv = [sys.executable, "-m", "tests.end_to_end.plugs.controller", str(theirs.fileno())]
        self.log = log
        with log.open("w") as out:
            self.process = subprocess.Popen(
                [*argv, *words, "--yes"], cwd=ROOT, env={**os.environ, "COLUMNS": "160"},
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, pass_fds=[theirs.fileno()],
            )  # fmt: skip
        theirs.close()
        self._socket, self._waits = ours, False

    def stops(self) -> Iterator[Stop]:
        """Yields each place at which the controller waits; it goes on when the next one is asked for."""
        with self._socket, self._socket.makefile("rb") as lines:
            while line := _line(lines):
                self._waits = True
                yield Stop(**json.loads(line), seconds=time.monotonic())
                self.go_on()

    def go_on(self) -> None:
        """Lets the controller go on, if it waits."""
        if self._waits:
            self._waits = False
            with contextlib.suppress(OSError):  # it was killed
                self._socket.sendall(b"\n")

    def is_at_next_stop(self) -> bool:
        """Whether the controller has come to the next place, or has ended."""
        return not self._waits and bool(select.select([self._socket], [], [], 0)[0])

    def end(self, deadline_s: float) -> int:
        """Waits for the end of the run and returns its exit code. Raises TimeoutExpired."""
        try:
            return self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    @property
    def output(self) -> str:
        """What the run has printed."""
        return self.log.read_text(errors="replace")


def _line(lines: BinaryIO) -> bytes:
    """The next line; b"" when the controller has ended."""
    try:
        return lines.readline()
    except ConnectionResetError:
        return b""


@dataclass(frozen=True)
class Place:
    """Where a run is cut: at the controller's stop `at`, then once the host runs `program`, then after `after_s`
    seconds.

    `number`: of the place in the run.
    """

    step: str
    text: str
    at: str
    trip: int
    program: str = ""
    after_s: float = 0.0
    number: int = 0

    def __str__(self) -> str:
        return f"{self.step}: {self.text}"


@dataclass
class Reference:
    """An uninterrupted run of a command: its stops, the programs that ran on the host meanwhile, and the disks before
    its steps."""

    folder: Path
    command: Command
    state: State = field(default_factory=dict)
    booted: State = field(default_factory=dict)
    """The state after the run, and after one more boot: a power cut is one."""
    stops: list[Stop] = field(default_factory=list)
    programs: dict[tuple[str, int], dict[str, tuple[float, float]]] = field(default_factory=dict)
    """The programs that ran while the commands of a step's trip ran: when the longest of each name was seen first and
    last."""

    @property
    def steps(self) -> list[str]:
        """The steps of the playbook that changed the host, and the programs that measured it, in order."""
        return list(dict.fromkeys(stop.step for stop in self.stops if stop.at == "begun"))

    @property
    def reboot(self) -> str:
        """The step that rebooted the host; "" for none."""
        return next((stop.step for stop in self.stops if stop.at == "back"), "")

    def disk(self, step: str) -> Path:
        """The disk from which a cut at this step starts: as it was when the step, or the first one of the command,
        began.

        The boot of that disk would do what the reboot is for, so a cut there starts before the last step that leads to
        it.
        """
        if not self.command.from_steps:
            step = self.steps[0]
        elif step == self.reboot:
            leads = [stop.step for stop in self.stops if stop.leads and stop.step != step]
            step = leads[-1]
        return self.folder / step.replace("/", " ")

    def places(self, fraction: float) -> list[Place]:
        """All places of a run, in order. Cuts in a program or a batch come after this fraction of the time that it
        took."""
        found: list[Place] = []
        trips = {step: max(stop.trip for stop in self.stops if stop.step == step) for step in self.steps}
        for number, stop in enumerate(self.stops):
            step, trip = stop.step, stop.trip
            of = f" {trip} of {trips[step]}" if step in trips and trips[step] > 1 else ""
            if stop.at == "begun" and step == self.steps[0]:  # elsewhere the host is as after the step before
                found.append(Place(step, "before the first command of the run", "begun", trip))
            elif stop.at == "records":
                took = self.stops[number + 1].seconds - stop.seconds
                found.append(Place(step, "while it records what was there", "records", trip, "", took * fraction))
            elif stop.at == "recorded":
                found.append(Place(step, "between that record and the change", "recorded", trip))
            elif stop.at == "sends":
                measures = self.stops[number + 1].at == "ended"
                long = _long(self.programs.get((step, trip), {}))
                for name, seconds in long.items():
                    parts = {f", at {part:.0%} of its time": part for part in PARTS} if measures else {"": fraction}
                    found += [
                        Place(step, f"in {name}{of}{at}", "sends", trip, name, seconds * part)
                        for at, part in parts.items()
                    ]
                if not long and self.stops[number + 1].at in ("answered", "ended"):
                    took = self.stops[number + 1].seconds - stop.seconds
                    found.append(Place(step, f"while commands{of} run", "sends", trip, "", took * fraction))
            elif stop.at == "answered" and self.stops[number + 1].at == "back":
                took = self.stops[number + 1].seconds - stop.seconds
                found.append(Place(step, f"after the order{of}, before the host goes down", "answered", trip))
                found += [
                    Place(step, f"in the reboot{of}, at {part:.0%} of its time", "answered", trip, "", took * part)
                    for part in PARTS
                ]
            elif stop.at == "answered" and trip < trips[step]:
                found.append(Place(step, f"between commands {trip} and {trip + 1} of {trips[step]}", "answered", trip))
            elif stop.at == "answered":
                found.append(Place(step, "between the change and its proof", "answered", trip))
            elif stop.at == "ended":
                found.append(Place(step, f"when it has ended{of}", "ended", trip))
            elif stop.at == "removed":
                found.append(Place(step, f"when its files are removed{of}", "removed", trip))
            elif stop.at == "back":
                found.append(Place(step, f"after the boot{of}, before the proof", "back", trip))
            elif stop.at == "changed" and step == self.steps[-1]:
                found.append(Place(step, "after the last step, before the checks", "changed", trip))
        return [replace(place, number=number) for number, place in enumerate(dict.fromkeys(found))]


def _long(ran: dict[str, tuple[float, float]]) -> dict[str, float]:
    """The programs that are places, with their seconds."""
    seconds = {name: last - first for name, (first, last) in ran.items() if last - first >= LONG_S}

    def within(name: str, other: str) -> bool:
        return name != other and ran[name][0] <= ran[other][0] and ran[other][1] <= ran[name][1]

    return {
        name: took
        for name, took in seconds.items()
        if not any(within(name, other) and seconds[other] >= NESTED * took for other in seconds)
    }


def record(machine: Machine, command: Command, folder: Path, log: Path) -> Reference:
    """Runs a command uninterrupted, keeps the disks from which cuts start, and returns what was seen."""
    found = Reference(folder, command)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    run = Run(command.words, log)
    watch: _Watch | None = None
    for stop in run.stops():
        if watch:
            found.programs[watch.trip] = watch.end()
            watch = None
        found.stops.append(stop)
        if stop.at == "begun" and (command.from_steps or len(found.steps) == 1):
            machine.keep(folder / stop.step.replace("/", " "))
        elif stop.at == "sends":
            watch = _Watch(machine, (stop.step, stop.trip))
    code = run.end(120)
    assert code == command.exits, run.output
    found.state = state.read(machine.root)
    machine.cut_power()
    machine.power_on()
    machine.wait()
    found.booted = state.read(machine.root)
    return found


class _Watch:
    """Watches a host's programs in a thread until `end`, which returns when the longest of each name was seen first and
    last."""

    def __init__(self, machine: Machine, trip: tuple[str, int]) -> None:
        self.trip = trip
        self._machine, self._ignored = machine, frozenset(machine.programs())
        self._seen: dict[tuple[int, str], tuple[float, float]] = {}
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._ends.is_set():
            now = time.monotonic()
            for one in programs(self._machine, self._ignored).items():
                self._seen[one] = (self._seen.get(one, (now, now))[0], now)
            time.sleep(LOOK_S)

    def end(self) -> dict[str, tuple[float, float]]:
        self._ends.set()
        self._thread.join(5)
        longest: dict[str, tuple[float, float]] = {}
        for (_, name), (first, last) in self._seen.items():
            before = longest.get(name, (0.0, 0.0))
            longest[name] = max(before, (first, last), key=lambda times: times[1] - times[0])
        return longest
