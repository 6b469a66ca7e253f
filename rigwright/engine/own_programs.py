"""Programs of rigwright that run on a host: how messages name them, and the wait for those whose command has ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from rigwright.core.errors import HostError
from rigwright.engine import run_owner
from rigwright.facts import own_programs
from rigwright.facts.own_programs import JOB, OwnProgram

if TYPE_CHECKING:
    from rigwright.engine.host_run import HostRun

LONGEST_WAIT_S = 900
"""The longest wait for a program whose command has ended; for a longer one the error says how to end it."""
SLACK_S = 60
"""Added to the limit of a program, for its end and for what runs after it."""
NOTE_EVERY_S, LOOK_EVERY_S = 15, 2


def in_words(program: OwnProgram) -> str:
    """`your sweep of 14:03 (run R), which ends by 14:19 and then puts 200 W back`, in the time zone of this machine;
    and how to end a program whose command has ended."""
    start, run = _clock(-program.age_s, "%H:%M"), program.run
    match = run_owner.OWNER.fullmatch(program.owner)
    mine = match is not None and run_owner.is_mine(program.owner)
    by = "" if mine or match is None else f" by {run_owner.person(match['user'])}"
    seconds = end_s(program)
    ends = (
        "ends when its work is done"
        if seconds is None
        else f"ends by {_clock(seconds, '%H:%M:%S' if seconds < 120 else '%H:%M')} ({seconds} s)"
    )
    then = f" and then {program.at_end}" if program.at_end else ""
    # No job of apt: its end leaves packages half done.
    stoppable = command_ended(program) and not program.unit.startswith(JOB)
    how = f"; at once with: sudo systemctl stop {program.unit}, on the host" if stoppable else ""
    return f"{'your' if mine else 'the'} {program.name} of {start} (run {run}{by}), which {ends}{then}{how}"


def _clock(seconds: float, form: str) -> str:
    return time.strftime(form, time.localtime(time.time() + seconds))


def command_ended(program: OwnProgram) -> bool:
    """Whether the command that follows the program was one of this machine and has ended."""
    return run_owner.has_ended(program.owner)


def end_s(program: OwnProgram) -> int | None:
    """The seconds until the program ends at the latest; None without a limit."""
    return program.alone_s if program.alone_s is not None and command_ended(program) else program.left_s


def known(run: HostRun) -> tuple[OwnProgram, ...]:
    """The programs at work as they were read; () if that is not known."""
    programs = run.store.known.get(own_programs.at_work)
    return programs if isinstance(programs, tuple) else ()


def read(run: HostRun) -> tuple[OwnProgram, ...]:
    """The programs at work, read now. Raises Unreachable."""
    run.read((own_programs.at_work,))
    return known(run)


def of_unit(run: HostRun, unit: str) -> OwnProgram | None:
    """The program at work in a unit, read now; None if there is none. Raises Unreachable."""
    return next((program for program in read(run) if program.unit == unit), None)


def countdown(run: HostRun, program: OwnProgram) -> Callable[[], None]:
    """A function to be called often: it notes every NOTE_EVERY_S seconds how long the program may still take, and
    raises Interrupted after Ctrl-C."""
    began, seconds = time.monotonic(), end_s(program)
    noted = began

    def note() -> None:
        nonlocal noted
        run.raise_if_stopped()
        now = time.monotonic()
        if now - noted >= NOTE_EVERY_S:
            noted = now
            rest = "it goes on" if seconds is None else f"{max(0, round(seconds - (now - began)))} s at the most"
            run.note(f"waits for the {program.name} of run {program.run}: {rest}")

    return note


def await_end(run: HostRun, program: OwnProgram) -> None:
    """Waits for the end of a program whose command has ended, and forgets the facts.

    Raises HostError if a command follows the program, if it takes too long or does not end in time; Interrupted,
    Unreachable.
    """
    seconds = end_s(program)
    if not command_ended(program) or seconds is None or seconds > LONGEST_WAIT_S:
        raise busy(run, program)
    run.note(f"waits for {in_words(program)}")
    count, deadline = countdown(run, program), time.monotonic() + seconds + SLACK_S
    while any(other.unit == program.unit for other in read(run)):
        if time.monotonic() > deadline:
            raise busy(run, program)
        count()
        time.sleep(LOOK_EVERY_S)
    run.store.forget()


def busy(run: HostRun, program: OwnProgram) -> HostError:
    """The error for a command that cannot begin beside the program."""
    fix = "wait until it has ended; then the same command again"
    return HostError(run.host.name, f"at work is {in_words(program)}", "one such program at a time", fix)


def await_left(run: HostRun, name: str) -> None:
    """Waits for each known program of that name whose command has ended. Raises what `await_end` raises."""
    for program in known(run):
        if program.name == name and command_ended(program):
            await_end(run, program)
