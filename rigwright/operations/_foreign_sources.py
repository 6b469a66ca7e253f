"""Sources of a repository of NVIDIA's that somebody else wrote."""

from __future__ import annotations

from collections.abc import Iterator

from rigwright.core.change import Note
from rigwright.core.errors import HostError
from rigwright.facts import Facts
from rigwright.facts.apt import sources as apt_sources


def judged(facts: Facts, sources: list[apt_sources.Source], fingerprint: str) -> Iterator[Note]:
    """Warnings about sources of NVIDIA's repository that somebody else wrote. A second source of the same URL would
    stop apt.

    Raises HostError for a source whose packages need no signature, and for one whose keyring lacks NVIDIA's key.
    """
    keyrings = sorted({path for source in sources for path in source.signed_by if path.startswith("/")})
    known = dict(zip(keyrings, facts.all(*map(apt_sources.keyring, keyrings)), strict=True)) if keyrings else {}
    for source in sources:
        take_out = (
            f"delete the source there, then run the same command again: it adds one with the key {fingerprint} only"
        )
        if source.trusted:
            found = "the source of NVIDIA's repository has trusted=yes: apt installs its packages without a signature"
            raise HostError(source.where, found, f"a source that is signed by {fingerprint}", take_out)
        if not source.signed_by:
            yield Note(f"{source.where}: every key that apt trusts may sign these packages; {take_out}", warn=True)
        for path in source.signed_by:
            keys = known.get(path, (path,))
            if fingerprint not in (keys or ()) and path in known:
                found = f"{path} has {'no key' if not keys else ', '.join(keys)}"
                raise HostError(source.where, found, f"NVIDIA's key {fingerprint}", take_out)
            if others := [key for key in keys or () if key != fingerprint and path in known]:
                yield Note(f"{source.where}: {path} also trusts the key {', '.join(others)}; {take_out}", warn=True)
