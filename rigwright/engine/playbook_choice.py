"""The steps of a playbook for each host."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rigwright.core.errors import InputError, RigwrightError, UsageError


def bind(
    path: Path | None,
    found: Any,
    hosts: Sequence[Any],
    tags: frozenset[str],
    tolerant: bool,
    checks_only: frozenset[str],
) -> tuple[list[Any], dict[str, RigwrightError]]:
    """Binds a playbook to each host; returns the bound playbooks, and the errors by host name.

    Raises InputError for a mistake of any host, with `tolerant` it is that host's error. `checks_only`: hosts without steps.
    """
    from rigwright.engine import playbook as playbooks

    bound = [playbooks.BoundPlaybook(one, (), ()) for one in hosts]
    refused: dict[str, RigwrightError] = {}
    if path is None:
        return bound, refused
    if not path.is_file():
        raise UsageError(
            "--playbook",
            f"{path} is not there",
            "a playbook file",
            "--playbook FILE, or leave it out for the one that rigwright brings",
        )
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
    from rigwright.core.yaml_source import did_you_mean

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
