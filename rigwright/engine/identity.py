"""Findings about the identity of a machine: a name has another machine, a machine has another name, or two machines
have the same identity."""

from __future__ import annotations

import datetime
from collections.abc import Iterator

from rigwright.checks import Finding
from rigwright.core.machine_identity import MachineIdentity
from rigwright.engine.host_run import HostRun
from rigwright.facts import system
from rigwright.history.machines import CHECK, Match


def findings(run: HostRun) -> tuple[Finding, ...]:
    """Warnings about what is new about the machine under its name; () while its identity is not known."""
    identity = run.store.known.get(system.identity)
    return tuple(of(run.match, run.host.name, identity)) if isinstance(identity, MachineIdentity) else ()


def of(match: Match, name: str, identity: MachineIdentity) -> Iterator[Finding]:
    """The warnings about a match in the history."""
    if match.shared:
        yield shared_with(match.shared, identity)
    former, old = match.former, match.predecessor
    if former:
        seen, past = f"the machine that was {former.name} until {_day(former.last_seen)}", "its past follows it"
    elif old:
        seen = f"another machine than the one that was {name} until {_day(match.until)}"
        past = "its past begins with this run"
    else:
        return
    before = f"; {name} was {old.identity}" if old else ""
    now = f", which is now {old.name}" if old and old.name != name else ""
    fix = "correct ansible_host in the inventory, unless that is so on purpose"
    yield Finding("identity", "warn", seen, "", f"{identity}{before}{now}; {past}", fix, "past", check=CHECK)


def shared_with(others: tuple[str, ...], identity: MachineIdentity) -> Finding:
    """The warning about a machine whose identity other machines have, too."""
    names = ", ".join(others[:8]) + (f" and {len(others) - 8} more" if len(others) > 8 else "")
    seen = f"{names} {'has' if len(others) == 1 else 'have'} the same"
    clone = "on a copied system, sudo rm /etc/machine-id && sudo systemd-machine-id-setup"
    fix = "one name for each machine in the inventory" + ("" if identity.has_hardware else f"; {clone}")
    cause = f"{identity}: two names of one machine, or a copied system or firmware; each name keeps a past of its own"
    return Finding("identity", "warn", seen, "an identity of its own", cause, fix, "past", check=CHECK)


def _day(epoch: float) -> str:
    return datetime.datetime.fromtimestamp(epoch).astimezone().date().isoformat()
