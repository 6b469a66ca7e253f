"""Which playbook a command means, and its steps for each host."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rigwright.errors import InputError, RigwrightError, UsageError

PLAYBOOKS = Path(__file__).parent.parent / "playbooks"


def playbook(command: str, given: str, reset: bool) -> Path | None:
    """The playbook of a command: the one that was named, else its own; None for facts and fleet.run, which need none."""
    if command in ("facts", "fleet.run"):
        return None
    name = {
        "verify": "provision",
        "plan": "provision",
        "fleet.check": "provision",
        "fleet.report": "provision",
        "limits": "limits-reset" if reset else "limits",
    }
    return Path(given) if given else PLAYBOOKS / f"{name.get(command, command)}.yml"


def bind(
    path: Path | None,
    found: Any,
    hosts: Sequence[Any],
    tags: frozenset[str],
    tolerant: bool,
    checks_only: frozenset[str],
) -> tuple[list[Any], dict[str, RigwrightError]]:
    """The hosts with their steps. Raises InputError for a mistake; where that is tolerated, it is the host's own.

    Of the hosts that `checks_only` names the steps are left out.
    """
    from rigwright import playbook as playbooks

    bound = [playbooks.Bound(one, (), ()) for one in hosts]
    refused: dict[str, RigwrightError] = {}
    if path is None:
        return bound, refused
    if not path.is_file():
        raise UsageError("--playbook", f"{path} is not there", "a playbook file", f"ls {PLAYBOOKS.name}/")
    for number, host in enumerate(hosts):
        try:
            bound[number] = playbooks.bind(path, found, host, tags, checks_only=host.name in checks_only)
        except InputError as error:
            if not tolerant:
                raise
            refused[host.name] = error
    if tags or not tolerant:
        _something(bound, path, tags)
    return bound, refused


def _something(bound: Sequence[Any], path: Path, tags: frozenset[str]) -> None:
    from rigwright.yamlfile import did_you_mean

    known = {tag for one in bound for tag in one.tags}
    for tag in sorted(tags - known):
        raise UsageError(
            "--tags",
            f"no step of {path} has the tag '{tag}'{did_you_mean(tag, known)}",
            ", ".join(sorted(known)) or "no tags",
        )
    if any(one.steps or one.checks for one in bound):
        return
    if tags:
        raise UsageError(
            "--tags", f"no step of {path} has the tag {', '.join(sorted(tags))}", "a tag that the playbook has"
        )
    names = ", ".join(one.host.name for one in bound)
    raise UsageError("--host", f"no play of {path} is for {names}", "a host that a play's `hosts:` names")
