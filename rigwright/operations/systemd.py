"""Units and services."""

from __future__ import annotations

from collections.abc import Iterator

from rigwright.core.change import Change
from rigwright.core.command import command
from rigwright.core.templates.variables import Template
from rigwright.facts import Facts, Unavailable, files, systemd as units
from rigwright.operations import file, operation

_RELOAD = command("systemctl", "daemon-reload")


@operation()
def unit(facts: Facts, *, name: str, template: Template) -> Iterator[Change]:
    """The unit file in /etc/systemd/system is the rendered template, and systemd has read it."""
    path = f"/etc/systemd/system/{name}"
    now, _ = facts.all(units.unit(name), files.file(path))
    changes = list(file.differing(facts, path, template.encode()))
    for change in changes:
        yield Change(change.action, change.subject, change.before, change.after, (*change.commands, _RELOAD))
    if not changes and now.needs_reload:
        yield Change("run", name, "older than its file", "read again", (_RELOAD,))


@operation()
def service(facts: Facts, *, name: str, enabled: bool = True, running: bool = True) -> Iterator[Change]:
    """The unit starts at boot (or not) and runs now (or not). A oneshot unit that ended and is still active (`exited`)
    counts as running. Raises Unavailable while the unit does not exist."""
    now = facts(units.unit(name))
    if now.load == "not-found" and not enabled and not running:
        return
    if now.load in ("not-found", "masked", "bad-setting"):
        raise Unavailable(f"the unit {name} is {now.load}")
    if enabled != (now.enabled == "enabled") and now.enabled not in ("static", "indirect", "generated", "alias"):
        verb, before = "enable" if enabled else "disable", now.at_boot if now.enabled else "disabled"
        commands = (command("systemctl", verb, name),)
        yield Change("change", name, before, f"{verb}d at boot", commands, units=(name,))
    if running != (now.active == "active"):
        verb = "start" if running else "stop"
        again = (command("systemctl", "reset-failed", name),) if now.active == "failed" else ()
        act = command("systemctl", verb, name, timeout_s=300)
        after = "running" if running else "stopped"
        yield Change("change", name, f"{now.active} ({now.sub})", after, (*again, act), units=(name,))


@operation()
def running_current(facts: Facts, *, name: str, files: list[str]) -> Iterator[Change]:
    """The running process is not older than its unit file and `files`; otherwise the unit is restarted."""
    now = facts(units.running(name, tuple(files)))
    if not now.current:
        seen = "its unit changed" if now.needs_reload else "older than its files"
        restart = (_RELOAD, command("systemctl", "try-restart", name, timeout_s=300))
        yield Change("run", name, seen, "restarted", restart, leads_to=f"restart {name}")
