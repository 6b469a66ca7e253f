"""Limits of processes."""

from __future__ import annotations

from collections.abc import Iterator

from rigwright.checks import Finding, check
from rigwright.core.desired import Ulimits
from rigwright.facts import Facts, system


@check()
def ulimits_in_force(facts: Facts, *, ulimits: Ulimits) -> Iterator[Finding]:
    """A new login of the user who logs in has the limits of the inventory, and so have services that set none of their
    own."""
    now = facts(system.login_limits)
    rows: list[tuple[str, int | None, int | None, str, bool]] = []
    if ulimits.memlock is not None:
        rows.append(("memlock of a login", now.memlock_kib, None, " KiB", False))
        rows.append(("memlock of services", now.service_memlock_kib, None, " KiB", True))
    if ulimits.nofile is not None:
        rows += [
            ("open files of a login", now.nofile, ulimits.nofile, "", False),
            ("open files of services", now.service_nofile, ulimits.nofile, "", True),
        ]
    for name, seen, wanted, unit, of_service in rows:
        shown, expected = ("unlimited" if value is None else f"{value}{unit}" for value in (seen, wanted))
        if seen == wanted:
            yield Finding(name, "pass", shown)
            continue
        fix = (
            "invoke provision; another file may say otherwise: grep -r DefaultLimit /etc/systemd/system.conf*"
            if of_service
            else "invoke provision; another file may say otherwise: grep -rn -e memlock -e nofile /etc/security/limits.conf /etc/security/limits.d"
        )
        yield Finding(name, "fail", shown, expected, "", fix, "inventory")
