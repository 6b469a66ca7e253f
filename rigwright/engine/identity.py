"""Findings about the identity of a machine: another machine under a name, another name of a machine, and an identity of two machines."""

from __future__ import annotations

import datetime
from collections.abc import Iterator

from rigwright.checks import Finding
from rigwright.core.machine_identity import MachineIdentity
from rigwright.engine.host_run import HostRun
from rigwright.facts import system
from rigwright.history.machines import CHECK, Match


def findings(run: HostRun) -> tuple[Finding, ...]:
    """Warnings about what no run has told yet of the machine under its name. None while its identity is not known."""
    identity = run.store.known.get(system.identity)
    return tuple(of(run.match, run.host.name, identity)) if isinstance(identity, MachineIdentity) else ()


def of(match: Match, name: str, identity: MachineIdentity) -> Iterator[Finding]:
    """The warnings that a match gives rise to."""
    if match.shared:
        yield shared_with(match.shared, identity)
    if match.predecessor:
        old = match.predecessor
        now = f", and is now {old.name}" if old.name != name else ""
        own = "follows it" if match.former else "begins with this run"
        seen = f"{identity}: this is another machine than the one that was {name} until {_day(match.until)} ({old.identity}{now}); its past {own}"
        fix = "nothing if the machine was replaced; else correct ansible_host"
        yield Finding("machine", "warn", seen, "", "", fix, "past", check=CHECK)
    if match.former:
        until = _day(match.former.last_seen)
        seen = f"{identity}: this is the machine that was {match.former.name} until {until}; its past follows it"
        fix = "nothing if the machine was renamed; else correct ansible_host"
        yield Finding("machine", "warn", seen, "", "", fix, "past", check=CHECK)


def shared_with(others: tuple[str, ...], identity: MachineIdentity) -> Finding:
    """The warning about a machine whose identity other machines have, too."""
    names = ", ".join(others[:8]) + (f" and {len(others) - 8} more" if len(others) > 8 else "")
    seen = (
        f"{identity}: {names} has it too; each name keeps a past of its own"
        if len(others) == 1
        else (f"{identity}: {names} have it too; each name keeps a past of its own")
    )
    clone = "on a copied system, sudo rm /etc/machine-id && sudo systemd-machine-id-setup"
    fix = "one name for each machine in the inventory" + ("" if identity.has_hardware else f"; {clone}")
    cause = "two names of one machine in the inventory, or a copied system or firmware"
    return Finding("machine", "warn", seen, "an identity of its own", cause, fix, "past", check=CHECK)


def _day(epoch: float) -> str:
    return datetime.datetime.fromtimestamp(epoch).astimezone().date().isoformat()
