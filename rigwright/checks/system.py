"""Limits of processes."""

from __future__ import annotations

from collections.abc import Iterator

from rigwright.checks import Finding, check
from rigwright.core.desired import Ulimits
from rigwright.facts import Facts, system


@check()
def ulimits_in_force(facts: Facts, *, ulimits: Ulimits) -> Iterator[Finding]:
    """A new login of the connecting user has the limits of the inventory, and so have services that set no limits of
    their own."""
    now = facts(system.login_limits)
    rows: list[tuple[str, int | None, int | None, str, str]] = []
    of_login = "grep -rn -e memlock -e nofile /etc/security/limits.conf /etc/security/limits.d"
    of_services = "grep -r DefaultLimit /etc/systemd/system.conf*"
    if ulimits.memlock is not None:
        rows.append(("memlock of a login", now.memlock_kib, None, " KiB", of_login))
        rows.append(("memlock of services", now.service_memlock_kib, None, " KiB", of_services))
    if ulimits.nofile is not None:
        rows.append(("open files of a login", now.nofile, ulimits.nofile, "", of_login))
        rows.append(("open files of services", now.service_nofile, ulimits.nofile, "", of_services))
    for name, seen, wanted, unit, others in rows:
        shown, expected = ("unlimited" if value is None else f"{value}{unit}" for value in (seen, wanted))
        if seen == wanted:
            yield Finding(name, "pass", shown)
        else:
            fix = f"invoke provision; another file may say otherwise: {others}"
            yield Finding(name, "fail", shown, expected, "", fix, "inventory")
