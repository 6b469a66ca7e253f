"""Hosts of one run that have the same identity."""

from __future__ import annotations

from collections.abc import Sequence

from rigwright.core.machine_identity import MachineIdentity
from rigwright.engine import identity as identities
from rigwright.engine.host_run import HostRun
from rigwright.facts import system
from rigwright.history import machines


def identity_of(run: HostRun) -> MachineIdentity:
    """The identity that the host gave in this run; an empty one if it gave none."""
    identity = run.report.kept.get(system.identity.name)
    return identity if isinstance(identity, MachineIdentity) else MachineIdentity()


def name_shared(runs: Sequence[HostRun]) -> list[str]:
    """Merges a warning into the report of each host whose identity another host of the run has; returns a message for
    each group.

    Other findings about the identity of these hosts are replaced, because their pasts are not merged.
    """
    known = {run.host.name: identity_of(run) for run in runs}
    doubtful = machines.names_sharing(known)
    for run in runs:
        if others := doubtful.get(run.host.name):
            own = tuple(finding for finding in run.report.findings if finding.check != machines.CHECK)
            run.report = run.report.with_findings((identities.shared_with(others, known[run.host.name]), *own))
    groups = {tuple(sorted((name, *others))): known[name] for name, others in doubtful.items()}
    return [
        f"{', '.join(names)} have the same identity ({identity}): two names of one machine, or a copied system; "
        "nothing of their pasts is merged"
        for names, identity in groups.items()
    ]
