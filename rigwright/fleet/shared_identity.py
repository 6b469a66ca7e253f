"""Hosts of one run that have the same identity."""

from __future__ import annotations

from collections.abc import Sequence

from rigwright.core.machine_identity import MachineIdentity
from rigwright.engine import identity as identities
from rigwright.facts import system
from rigwright.fleet.host_job import HostJob
from rigwright.history import machines


def identity_of(job: HostJob) -> MachineIdentity:
    """The identity that the host gave in this run; an empty one if it gave none."""
    identity = job.report.kept.get(system.identity.name)
    return identity if isinstance(identity, MachineIdentity) else MachineIdentity()


def name_shared(jobs: Sequence[HostJob]) -> list[str]:
    """Merges a warning into the report of each host whose identity another host of the run has; returns a message for
    each group.

    Other findings about the identity of these hosts are replaced, because their pasts are not merged.
    """
    known = {job.host.name: identity_of(job) for job in jobs}
    doubtful = machines.shared(known)
    for job in jobs:
        if others := doubtful.get(job.host.name):
            own = tuple(finding for finding in job.report.findings if finding.check != machines.CHECK)
            job.report = job.report.with_findings((identities.shared_with(others, known[job.host.name]), *own))
    groups = {tuple(sorted((name, *others))): known[name] for name, others in doubtful.items()}
    return [
        f"{', '.join(names)} have the same identity ({identity}): two names of one machine, or a copied system; "
        "nothing of their pasts is merged"
        for names, identity in groups.items()
    ]
