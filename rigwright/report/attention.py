"""What a person who runs a fleet wants to read first: what is wrong where, what became different, what ends. Equal things once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from rigwright.hostreport import BAD
from rigwright.report.page import VERDICTS, HostView
from rigwright.report.words import FOLDED

DRIFT = {"plan": "playbook", "fleet.past": "its past", "fleet.peers": "its peers", "fleet.gpus": "GPUs"}
"""By check of what is compared: with what."""

_PLACE = re.compile(
    r"\b[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]\b|\bGPU-[0-9a-f]{8}[0-9a-f-]*(?: \(serial [^)]*\))?"
)
_UNITS = {"w": "W", "mib": "MiB", "mhz": "MHz", "c": "°C"}
_UNIT = re.compile(f" ({'|'.join(_UNITS)})$")
_YEAR = 365.25


@dataclass(frozen=True)
class Where:
    """A host, and what of it: bus ids, positions, UUIDs; "" for all of it."""

    name: str
    anchor: str
    places: str


@dataclass(frozen=True)
class Entry:
    """Something that is wrong, on all of the hosts that have it so."""

    verdict: str
    of: str
    title: str
    seen: str
    wanted: str
    source: str
    cause: str
    fix: str
    hosts: tuple[Where, ...] = ()


@dataclass(frozen=True)
class Turn:
    """Something that is no longer so, on all of the hosts where it is: `kind` worse, better or other."""

    kind: str
    title: str
    before: str = ""
    after: str = ""
    by: str = ""
    hosts: tuple[Where, ...] = ()


@dataclass(frozen=True)
class Ending:
    """Something that ends; `verdict` as a finding's, `left` how long that is from now."""

    verdict: str
    name: str
    date: str
    left: str
    words: str
    source: str
    hosts: tuple[Where, ...] = ()


Told = TypeVar("Told", Entry, Turn, Ending)


def entries(hosts: Sequence[HostView]) -> list[Entry]:
    """The worst first, and of those what most hosts have."""
    found = _together(hosts, _wrong)
    return sorted(found, key=lambda one: (VERDICTS.index(one.verdict), one.of in DRIFT.values(), -len(one.hosts)))


def _together(hosts: Sequence[HostView], told: Callable[[HostView], Iterable[tuple[Told, str]]]) -> list[Told]:
    """What each host tells (of no host yet, and in which places of it), equal things once with all of their hosts."""
    found: dict[Told, dict[tuple[str, str], list[str]]] = {}
    for host in hosts:
        for one, place in told(host):
            found.setdefault(one, {}).setdefault((host.name, host.anchor), []).append(place)
    return [
        replace(
            one, hosts=tuple(Where(*host, ", ".join(dict.fromkeys(filter(None, all_)))) for host, all_ in at.items())
        )
        for one, at in found.items()
    ]


def _wrong(host: HostView) -> Iterator[tuple[Entry, str]]:
    away = host.said["status"] == "unreachable"
    if (error := host.said["error"]) or away:
        said = {"where": "", "found": "", "wanted": "", "todo": "", **(error or {})}
        what = ("unknown", "unreachable", "Does not answer") if away else ("fail", "error", "Could not be looked at")
        where = f"{said['where']}: " if said["where"] not in ("", host.name) and not away else ""
        yield Entry(*what, where + said["found"], said["wanted"], "", "", said["todo"]), ""
    plan = [one for one in host.findings if one["check"] == "plan" and one["verdict"] in BAD]
    if len(plan) > FOLDED:
        seen = ", ".join(dict.fromkeys(one["subject"].partition(":")[0] for one in plan))
        title = f"{len(plan)} things are not as the playbook has them"
        yield Entry("fail", DRIFT["plan"], title, seen, "", "", "", "invoke plan, then invoke provision"), ""
    for one in host.findings:
        if one["verdict"] in BAD and not (one["check"] == "plan" and len(plan) > FOLDED):
            title, place = split(one["subject"], positions(host))
            words = (one[key] for key in ("seen", "wanted", "source", "cause", "fix"))
            yield Entry(one["verdict"], DRIFT.get(one["check"], one["check"]), title, *words), place


def positions(host: HostView) -> set[str]:
    """What its GPUs' places are called."""
    return {gpu["position"] for gpu in host.said["machine"]["gpus"]} - {""}


def split(subject: str, names: set[str]) -> tuple[str, str]:
    """What a subject is about, and the places in it: `0000:06:00.0 GPU-531aad71 vbios` is `vbios` at `0000:06:00.0 GPU-531aad71`."""
    places = _PLACE.findall(subject)
    rest = [word for word in _PLACE.sub(" ", subject).split() if word not in names]
    found = [word for word in subject.split() if word in names]
    title = _UNIT.sub(lambda unit: f", {_UNITS[unit[1]]}", " ".join(rest) or "GPU")
    return (title, " ".join((*found, *places))) if places or found else (subject, "")


def turns(hosts: Sequence[HostView]) -> list[Turn]:
    """What became different since the report before: what is worse first, then what is only other, then what is better."""
    found = _together(hosts, _turned)
    return sorted(found, key=lambda one: (("worse", "other", "better").index(one.kind), -len(one.hosts)))


def _turned(host: HostView) -> Iterator[tuple[Turn, str]]:
    past, names = host.said["fleet"], positions(host)
    away, was_away = host.said["status"] == "unreachable", past["was"] == "unreachable"
    if past["since"] and away != was_away:
        yield (Turn("worse", "no longer answers") if away else Turn("better", "answers again")), ""
    for one in past["new"]:
        title, place = split(one["subject"], names)
        yield Turn("worse", title, "", one["seen"]), place
    for one in past["became"]:
        title, place = split(one["subject"], names)
        yield Turn("other", title, one["before"], one["after"], "by rigwright" if one.get("run") else ""), place
    for one in past["gone"]:
        title, place = split(one["subject"], names)
        yield Turn("better", title, one["seen"], ""), place


def endings(hosts: Sequence[HostView]) -> list[Ending]:
    """What ends on which hosts, the nearest first; what has no date last."""
    return sorted(_together(hosts, _ends), key=lambda one: (one.date or "9999", one.name))


def _ends(host: HostView) -> Iterator[tuple[Ending, str]]:
    for end in host.said["fleet"]["ends"]:
        verdict = {"ended": "fail", "soon": "warn"}.get(end["state"], "info")
        yield Ending(verdict, end["name"], end["date"] or "", left(end["days"]), end["words"], end["source"]), ""


def left(days: int | None) -> str:
    """`today`, `in 35 days`, `in 1.7 years`, `144 days ago`; nothing without a date."""
    if days is None:
        return ""
    if days == 0:
        return "today"
    far = abs(days)
    span = f"{far} day{'s' if far != 1 else ''}" if far < 2 * _YEAR else f"{far / _YEAR:.1f} years"
    return f"{span} ago" if days < 0 else f"in {span}"
