"""A reboot that a run ordered, recorded on this machine: the next command waits for the host.

The record is written before the order and removed when the host is back, so a run that was killed in between leaves it.
It counts until the host should be back.
"""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from urllib.parse import quote

from msgspec import Struct

from rigwright.core.command import Command, script
from rigwright.core.errors import HostError, RigwrightError, Unreachable, UsageError
from rigwright.core.files import state_dir
from rigwright.core.numbers import count
from rigwright.engine.boot.wait import SETTLES_S, UP_S, Sightings, systemd_up
from rigwright.engine.events import Note
from rigwright.engine.host_run import HostRun
from rigwright.facts.kernel import command_line
from rigwright.inventory.model import Host

DELAY_S = 1
LONGEST_S = 3600
"""A record with a longer time does not count: this machine's clock was changed."""
_UNIT = "rigwright-reboot"
ORDER_S = 10.0
"""The commands of a killed run continue on the host and may give the order so long after the record. Assumed; on lab
hosts it takes less than a second."""
_ROOT = script(":", reads=True)
_GOES_DOWN = script(
    f"""cat /proc/sys/kernel/random/boot_id
[ "$(systemctl is-system-running)" = stopping ] || [ -n "$(systemctl list-units --plain --no-legend '{_UNIT}-*')" ]""",
    timeout_s=20,
)
"""Prints the boot id; succeeds when the host has a rigwright order to reboot, or shuts down."""


def order(run_id: str, delay_s: int = DELAY_S) -> Command:
    """A command that reboots the host after `delay_s` seconds, so that the connection can be closed before."""
    delay = (f"--on-active={delay_s}s", "--timer-property=AccuracySec=100ms")
    return Command(("systemd-run", "--quiet", "--collect", f"--unit={_UNIT}-{run_id}", *delay, "systemctl", "reboot"))


class _Record(Struct, frozen=True):
    """A run that orders a reboot, the boot id of the host before it, and two times in seconds since 1970: when the
    record was written, and until when the host may be away."""

    run: str
    boot: str
    at: float
    until: float


def record(host: Host, run_id: str, boot: str, limit_s: float) -> None:
    """Records that the run orders a reboot of the host with that boot id, which should answer within `limit_s` seconds.

    Without a state directory nothing is recorded, and the next command calls the host unreachable.
    """
    at = time.time()
    text = json.dumps({"address": host.address, "run": run_id, "boot": boot, "at": at, "until": at + limit_s})
    with contextlib.suppress(OSError, UsageError):
        state_dir.write(_path(host), text, lasting=False)


def forget(host: Host) -> None:
    """Removes the record of the host."""
    with contextlib.suppress(OSError, UsageError):
        _path(host).unlink(missing_ok=True)


def connect(run: HostRun) -> None:
    """Connects to the host; waits for a host that a run has rebooted, and notes what it sees. Raises Unreachable,
    HostError, Interrupted."""
    recorded = _read_record(run.host)
    if recorded is None:
        run.transport.connect()
        return
    name, sightings = run.host.name, Sightings(lambda text: run.tell(Note(run.host.name, text)))
    announced, refused_at, late = False, 0.0, False
    while (away := _why_away(run, recorded)) is not None:
        refused_at = (refused_at or time.time()) if away.is_settled else 0.0
        if away.error and (late or (refused_at and time.time() - refused_at >= SETTLES_S)):
            raise away.error
        if late:
            break
        if not announced:
            announced = True
            minutes = count(max(1, round((recorded.until - time.time()) / 60)), "minute")
            run.tell(Note(name, f"run {recorded.run} reboots it; waiting up to {minutes} until it is back"))
        sightings.add(away.text, lambda: f"; waiting up to {max(0.0, recorded.until - time.time()):.0f} s more")
        run.transport.close()
        run.raise_if_stopped()
        time.sleep(1 if away.error is None or isinstance(away.error, Unreachable) else 5)
        late = time.time() >= recorded.until
    if announced:
        with run.transport.looking(as_user=True):
            run.transport.run([systemd_up(UP_S)])
    forget(run.host)


class _Away(Struct, frozen=True):
    """Why a host is not back yet. `error`: of the look. `is_settled`: the host is up, in a boot that stays."""

    text: str
    error: RigwrightError | None = None
    is_settled: bool = False


def _why_away(run: HostRun, recorded: _Record) -> _Away | None:
    """Why the host is not back; None if it is: a boot that stays runs, and gives root if nobody can type a password."""
    transport, in_trial = run.transport, False
    try:
        with transport.looking(as_user=True):
            transport.connect()
            answer, line = transport.run([_GOES_DOWN, command_line.command], together=True)
        if answer.code == 0 or (answer.text.strip() == recorded.boot and 0 <= time.time() - recorded.at < ORDER_S):
            return _Away("it has not gone down yet")
        in_trial = f" rigwright.trial={recorded.run} " in line.text
        if run.options.root and transport.ask_password is None:
            transport.run([_ROOT], together=True)
    except Unreachable as error:
        return _Away(error.brief, error)
    except HostError as error:
        return _Away(error.brief, error, is_settled=not in_trial)
    return None


def _read_record(host: Host) -> _Record | None:
    """The record of the host; None if it has none that counts."""
    try:
        row = json.loads(_path(host).read_text(encoding="utf-8"))
        address = str(row["address"])
        recorded = _Record(str(row["run"]), str(row["boot"]), float(row["at"]), float(row["until"]))
    except (OSError, UsageError, ValueError, KeyError, TypeError):
        return None
    return recorded if address == host.address and 0 < recorded.until - time.time() < LONGEST_S else None


def _path(host: Host) -> Path:
    return state_dir.place("reboots", f"{quote(host.name, safe='')[:200]}.json")
