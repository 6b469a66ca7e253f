"""A cut: a place of the run and what is pulled there; then the same command again, and a comparison with the
uninterrupted run."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from tests.end_to_end.plugs import state
from tests.end_to_end.plugs.commands import Command
from tests.end_to_end.plugs.machine import Machine, programs
from tests.end_to_end.plugs.run import LOOK_S, Place, Reference, Run
from tests.end_to_end.rw import invoke

Kind = Literal["connection", "controller", "power"]
T = TypeVar("T")
KINDS: tuple[Kind, ...] = ("connection", "controller", "power")
FIRST_S, SECOND_S = 300.0, 400.0
"""Deadlines: for the end of the run that was cut, and for the same command after it."""


@dataclass(frozen=True)
class Cut:
    """A place and what is cut there."""

    place: Place
    kind: Kind

    def __str__(self) -> str:
        return f"{self.place}: {self.kind}"


@dataclass(frozen=True)
class Outcome:
    """What a cut led to.

    `number`: of the place in the run. `first`: the exit code of the run that was cut, and `said`, the error in its own
    words. `second`: that of the same command after it, None when the first one reached the end in spite of the cut;
    `error` of it. `exits`: the usual exit code. `differs`: from the uninterrupted run. `reached`: whether the run came
    to the place at all. `seconds`: of the same command. `refused_s`: so long before that it was refused, because a
    program of the first run was at work. `settled_s`: so long after its end the state was the same.
    """

    command: str
    host: str
    number: int
    step: str
    place: str
    kind: str
    reached: bool
    first: int
    said: str
    exits: int
    second: int | None
    refused_s: float
    seconds: float
    settled_s: float
    changes: int
    error: str
    differs: tuple[str, ...]

    @property
    def ends(self) -> str:
        """`same`, `not reached` for a run that nothing ended because the place did not come, or what went wrong."""
        if not self.reached and self.second is None:
            return "not reached"
        if (self.first if self.second is None else self.second) != self.exits:
            return f"stops: {self.error}"
        return "differs" if self.differs else "same"


def carry_out(machine: Machine, cut: Cut, reference: Reference, folder: Path) -> Outcome:
    """Cuts a run there, runs the same command again where the cut ended it, and compares the host with the
    uninterrupted run.

    Raises AssertionError when the run that was cut hangs or prints a traceback.
    """
    command = reference.command
    machine.put_back(reference.disk(cut.place.step))
    first, made, said = _cut(machine, [cut], command, folder / "first.log")
    second: int | None = None
    refused_s, seconds, changes, error = 0.0, 0.0, 0, said
    if first != command.exits:
        second, refused_s, seconds, changes, error = _again(command, folder)
    ended = second if second is not None else first
    settled_s, differs = _compared(machine, reference, [cut]) if ended == command.exits else (0.0, [])
    return Outcome(
        command.name, machine.kind, cut.place.number, cut.place.step, cut.place.text, cut.kind, bool(made), first, said,
        command.exits, second,
        round(refused_s, 1), round(seconds, 1), round(settled_s, 1), changes, error, tuple(differs),
    )  # fmt: skip


def carry_out_all(machine: Machine, cuts: Sequence[Cut], reference: Reference, folder: Path) -> tuple[list[Cut], str]:
    """Cuts one run at several places, in their order: the same command is typed again after each cut that ends it.

    Returns the cuts that were made, and "" when the last command ended in the state of the uninterrupted run, else what
    is wrong. A place that does not come, because its step was done before an earlier cut, is left out. Raises
    AssertionError when a run hangs or prints a traceback.
    """
    command = reference.command
    todo, made = sorted(cuts, key=lambda cut: cut.place.number), list[Cut]()
    machine.put_back(reference.disk(todo[0].place.step))
    code, error = -1, ""
    while todo and code != command.exits:
        code, now, error = _cut(machine, todo, command, folder / f"{todo[0].place.number}.log")
        made += now
        todo = [
            cut
            for cut in todo
            if cut.place.number > max([one.place.number for one in now], default=len(reference.stops))
        ]
    if code != command.exits:
        code, _, _, _, error = _again(command, folder)
    if code != command.exits:
        return made, f"stops: {error}"
    return made, "; ".join(_compared(machine, reference, made)[1])


def _compared(machine: Machine, reference: Reference, cuts: Sequence[Cut]) -> tuple[float, list[str]]:
    """The seconds until the host was as after the uninterrupted run, at most those of the command, and what differs
    then."""
    began, powerless = time.monotonic(), any(cut.kind == "power" for cut in cuts)
    while True:
        waited_s = time.monotonic() - began
        differs = state.differences(state.read(machine.root), reference.state, reference.booted if powerless else None)
        left = [str(one) for one in differs if not (powerless and state.is_kept_for_the_next_run(one))]
        if not left or waited_s > reference.command.left_s:
            return waited_s, left
        time.sleep(5)


def _cut(machine: Machine, cuts: Sequence[Cut], command: Command, log: Path) -> tuple[int, list[Cut], str]:
    """Runs until a cut has ended the run, or to its end; returns its exit code, the cuts that were made, and the error
    that it printed."""

    def run_once() -> tuple[int, list[Cut], str]:
        run = Run(command.words, log)
        made = _interrupt(machine, run, cuts)
        code = run.end(FIRST_S)
        assert "Traceback" not in run.output, run.output
        if any(cut.kind == "power" for cut in made):
            machine.wait()
        return code, made, _error(run.output)

    return _admitted(command, run_once, lambda ran: not ran[1] and command.is_refused(ran[0], ran[2]))[1]


def _again(command: Command, folder: Path) -> tuple[int, float, float, int, str]:
    """Runs the same command; returns its exit code, how long it was refused and how long it took in seconds, the number
    of changes, and its error."""

    def run_once() -> tuple[int, float, int, str]:
        began = time.monotonic()
        words = (*command.words[1:], "--yes", "--json", str(folder / "second.json"))
        done = invoke(command.words[0], *words, deadline=SECOND_S)
        seconds = time.monotonic() - began
        assert "Traceback" not in done.stdout + done.stderr, done.stdout + done.stderr
        document = json.loads((folder / "second.json").read_text())
        assert document["hosts"], done.stderr
        (host,) = document["hosts"].values()
        return done.returncode, seconds, sum(bool(change["done"]) for change in host["changes"]), _told(host["error"])

    refused_s, ran = _admitted(command, run_once, lambda ran: command.is_refused(ran[0], ran[3]))
    code, seconds, changes, error = ran
    return code, refused_s, seconds, changes, error


def _admitted(command: Command, run_once: Callable[[], T], is_refused: Callable[[T], bool]) -> tuple[float, T]:
    """What the first run returns that is not refused, or the last one after the seconds of the command; and how long it
    was refused."""
    began = time.monotonic()
    while True:
        waited_s = time.monotonic() - began
        ran = run_once()
        if not is_refused(ran) or waited_s > command.left_s:
            return waited_s, ran
        time.sleep(2)


def _interrupt(machine: Machine, run: Run, cuts: Sequence[Cut]) -> list[Cut]:
    """Runs until the place of each cut, cuts, and lets go on what can; returns the cuts that came to their place in
    time.

    A program of a place that has ended already, or does not run this time, is cut at the controller's next stop.
    """
    todo, made = list(cuts), list[Cut]()
    for stop in run.stops():
        here = [
            cut for cut in todo if (stop.step, stop.at, stop.trip) == (cut.place.step, cut.place.at, cut.place.trip)
        ]
        if not here:
            continue
        cut, in_time = here[0], True
        todo = todo[todo.index(cut) + 1 :]
        if cut.place.program or cut.place.after_s:
            ignored = frozenset(machine.programs())
            run.go_on()
            in_time = _until(machine, cut.place, ignored, run)
        if cut.kind == "controller":
            run.process.kill()
        elif cut.kind == "connection":
            machine.cut_connections()
        else:
            machine.cut_power()
            machine.power_on()
        made += [cut] if in_time else []
    return made


def _until(machine: Machine, place: Place, ignored: frozenset[int], run: Run) -> bool:
    """Waits until the host runs the place's program, then for its time; returns whether the program ran."""
    ends = time.monotonic() + 120
    while place.program and place.program not in programs(machine, ignored).values():
        if time.monotonic() > ends or run.process.poll() is not None or run.is_at_next_stop():
            return False
        time.sleep(LOOK_S)
    time.sleep(place.after_s)
    return True


def _error(output: str) -> str:
    """The error that a run printed, in one line."""
    lines = output.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("error ")]
    return " ".join(line.strip() for line in lines[starts[0] : starts[0] + 3]) if starts else ""


def _told(error: dict[str, Any] | None) -> str:
    return f"{error['found']}; {error['fix']}" if error else ""


def sample(cuts: Sequence[Cut], number: int, seed: int) -> list[Cut]:
    """So many of the cuts, spread over the steps and kinds; the same for the same seed, also where a place more or less
    was seen."""
    order = sorted(cuts, key=lambda cut: hashlib.sha256(f"{seed} {cut}".encode()).digest())
    chosen, kinds = dict[Cut, None](), len({cut.kind for cut in cuts})
    for most in range(len(order)):
        for cut in order:
            same_step = sum(one.place.step == cut.place.step for one in chosen)
            same_kind = sum(one.kind == cut.kind for one in chosen)
            if cut not in chosen and same_step <= most and same_kind * kinds <= len(chosen):
                chosen[cut] = None
            if len(chosen) == min(number, len(order)):
                return list(chosen)
    return list(chosen)
