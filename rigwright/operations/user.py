"""Users."""

from __future__ import annotations

from collections.abc import Iterator

from rigwright.core.change import Change
from rigwright.core.command import command
from rigwright.facts import Facts, system
from rigwright.operations import operation


@operation()
def present(
    facts: Facts, *, name: str, groups: list[str] | None = None, login_shell: str = "/bin/bash"
) -> Iterator[Change]:
    """The user exists with this login shell, and is in these groups. It stays in its other groups."""
    now = facts(system.user(name))
    wanted = groups or []
    if now is None:
        more = ("-G", ",".join(wanted)) if wanted else ()
        add = command("useradd", "-m", "-s", login_shell, *more, "--", name)
        yield Change("add", f"user {name}", "", login_shell, (add,))
        return
    missing = [group for group in wanted if group not in now.groups]
    if missing:
        add = command("usermod", "-a", "-G", ",".join(missing), "--", name)
        yield Change("change", f"user {name}", f"in {', '.join(now.groups)}", f"also in {', '.join(missing)}", (add,))
    if now.login_shell != login_shell:
        set_shell = command("usermod", "-s", login_shell, "--", name)
        yield Change("change", f"user {name}", now.login_shell, login_shell, (set_shell,))
