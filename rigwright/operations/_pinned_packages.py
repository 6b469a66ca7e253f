"""Packages that apt's preferences hold at one version: the pin, and their installation at it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rigwright.core.change import Change
from rigwright.core.schema import FileName, Word
from rigwright.core.templates.host_files import Templates
from rigwright.facts import Facts
from rigwright.facts.apt.dpkg import Package
from rigwright.operations import apt


def pin(facts: Facts, name: str, packages: Sequence[str], version: str, templates: Templates) -> Iterator[Change]:
    """The change that pins the packages at the version, in rigwright's preferences `name`."""
    words, after = [Word(package) for package in packages], f"{version}, {len(packages)} packages"
    for change in apt.pin(facts, name=FileName(name), packages=words, version=Word(version), templates=templates):
        yield Change(change.action, change.subject, "", after, change.commands)


def not_at(version: str, packages: Sequence[str], now: Mapping[str, Package]) -> list[str]:
    """The packages that are not installed at the version."""
    return [name for name in packages if name not in now or not now[name].installed or now[name].version != version]


def install(subject: str, packages: Sequence[str], version: str, now: Mapping[str, Package]) -> Change:
    """The change that installs all packages at the version."""
    wrong = not_at(version, packages, now)
    before = ", ".join(sorted({now[name].version for name in wrong if name in now and now[name].version}))
    job = apt.install([f"{name}={version}" for name in packages])
    return Change("change" if before else "add", subject, before, version, (job,))
