"""Ends of support of a machine's distribution, driver branch, GPUs and CUDA, from its facts and the catalogue."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from msgspec import Struct

from rigwright import catalogue
from rigwright.catalogue import Model
from rigwright.catalogue.compatibility import fit
from rigwright.core.errors import HostError

SOON_DAYS = 180
"""Ends of life within this time are reported as soon."""

Kind = Literal["system", "driver", "gpu", "cuda"]
State = Literal["ended", "soon", "later", "last"]


class End(Struct, frozen=True):
    """An end of support: its date (None: unknown), the days until then (negative: already ended), and an explanation.

    `state` last: no newer version will be released, and no date is known.
    """

    kind: Kind
    name: str
    date: datetime.date | None
    days: int | None
    state: State
    words: str
    source: str


def ends(facts: Mapping[str, Any], today: datetime.date) -> tuple[End, ...]:
    """The ends of support of a machine, the nearest first; unknown ones are omitted.

    `facts`: system.os_release, driver.loaded_version and pci.gpus as JSON types. Each of them can be missing.
    """
    models = {
        model.label: model
        for entry in facts.get("pci.gpus") or ()
        if (model := catalogue.model_of(str(entry.get("device_id") or "")))
    }
    release, driver = facts.get("system.os_release") or {}, str(facts.get("driver.loaded_version") or "")
    all_ends = [
        *_system(release, today),
        *_driver(driver, models, today),
        *_gpus(models, today),
        *_cuda(models, driver),
    ]
    return tuple(sorted(all_ends, key=lambda entry: (entry.date is None, entry.date or today, entry.name)))


def _end(kind: Kind, name: str, on: datetime.date, words: str, source: str, today: datetime.date) -> End:
    days = (on - today).days
    state: State = "ended" if days < 0 else "soon" if days <= SOON_DAYS else "later"
    return End(kind, name, on, days, state, words, source)


def _system(release: Mapping[str, Any], today: datetime.date) -> Iterator[End]:
    known = catalogue.all_distributions().get(f"{release.get('id')} {release.get('version_id')}")
    if known:
        more = f"; with {known.by} until {known.further}" if known.further else ""
        words = f"security updates for everybody until {known.until}{more}"
        yield _end("system", known.title, known.until, words, catalogue.distribution_table().sources["until"], today)


def _driver(version: str, models: Mapping[str, Model], today: datetime.date) -> Iterator[End]:
    branch = catalogue.branches().get(version.partition(".")[0])
    if branch and branch.eol:
        convention = "; NVIDIA published no date, this is a convention" if branch.kind == "new feature" else ""
        words = f"{branch.kind} branch{convention}{_better(branch.name, models, today)}"
        yield _end("driver", f"driver {branch.name}", branch.eol, words, catalogue.driver_table().sources["eol"], today)


def _better(name: str, models: Mapping[str, Model], today: datetime.date) -> str:
    """The next branch that supports all GPUs of the machine; empty if none is supported longer."""
    try:
        best = catalogue.branches()[fit(models).recommended] if models else None
    except HostError:
        return ""  # no branch supports all of them; the plan reports it
    now = catalogue.branches()[name].eol
    if best is None or best.eol is None or best.eol < today or (now and best.eol <= now):
        return ""
    return f"; these GPUs also run {best.name} ({best.kind}), until {best.eol}"


def _gpus(models: Mapping[str, Model], today: datetime.date) -> Iterator[End]:
    for label, model in models.items():
        branch = catalogue.branches().get(str(model.last_branch))
        if branch and branch.eol:
            words = f"{branch.name} is the last driver branch for {model.architecture}"
            yield _end("gpu", label, branch.eol, words, catalogue.driver_table().sources["eol"], today)


def _cuda(models: Mapping[str, Model], driver: str) -> Iterator[End]:
    branch = catalogue.branches().get(driver.partition(".")[0])
    spoken = f"; driver {branch.name} speaks CUDA up to {branch.cuda}" if branch and branch.cuda else ""
    for label, model in models.items():
        if model.last_cuda:
            words = f"the last toolkit with code for {model.architecture} ({label}){spoken}"
            source = catalogue.cuda_table().sources["dropped"]
            yield End("cuda", f"CUDA {model.last_cuda}", None, None, "last", words, source)
