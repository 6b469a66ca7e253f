"""Limits of processes."""

from __future__ import annotations

from collections.abc import Iterator

from rigwright.core.change import Change, Note
from rigwright.core.command import command
from rigwright.core.desired import Ulimits
from rigwright.core.errors import HostError
from rigwright.core.templates.host_files import SHIPPED, Templates
from rigwright.facts import Facts, files, system
from rigwright.operations import file, operation

LOGIN, SERVICES = "/etc/security/limits.d/90-rigwright.conf", "/etc/systemd/system.conf.d/90-rigwright.conf"
_RELOAD = command("systemctl", "daemon-reload")


@operation()
def ulimits(facts: Facts, *, ulimits: Ulimits, templates: Templates = SHIPPED) -> Iterator[Change | Note]:
    """Logins and services that start from now on have the limits `ulimits`. Raises HostError for more open files than
    the kernel allows (fs.nr_open)."""
    now, _, _ = facts.all(system.login_limits, files.file(LOGIN), files.file(SERVICES))
    if ulimits.nofile is not None and ulimits.nofile > now.most_nofile:
        why = "the kernel refuses it, and pam_limits then refuses logins or leaves the old limit"
        problem = f"nofile {ulimits.nofile} is above fs.nr_open: {why}"
        raise HostError("ulimits", problem, f"{now.most_nofile} at most", f"ulimits: {{nofile: {now.most_nofile}}}")
    login: dict[str, str | int] = {}
    service: dict[str, str | int] = {}
    if ulimits.memlock is not None:
        login["memlock"] = ulimits.memlock
        service["DefaultLimitMEMLOCK"] = "infinity"
    if ulimits.nofile is not None:
        login["nofile"] = service["DefaultLimitNOFILE"] = ulimits.nofile
    yield from file.differing(facts, LOGIN, templates.render("limits/login.conf.j2", {"limits": login}).encode())
    services = templates.render("limits/services.conf.j2", {"limits": service})
    for change in file.differing(facts, SERVICES, services.encode()):
        yield Change(change.action, change.subject, change.before, change.after, (*change.commands, _RELOAD))
        yield Note("services that run keep their limits until they are started again")
