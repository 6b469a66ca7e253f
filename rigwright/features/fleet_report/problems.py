"""The lists at the top of the fleet page: problems, changes since the last report, and ends of life; equal items once,
with all of their hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from rigwright.checks import VERDICTS
from rigwright.core import lazy_re
from rigwright.core.fix_steps import Step
from rigwright.core.numbers import count
from rigwright.core.process.program_name import as_typed
from rigwright.engine.report import BAD
from rigwright.report.causes import cause_of, common, variants, without_addresses
from rigwright.report.html.host_page import HostView
from rigwright.report.labels import FOLDED, WORDS

DRIFT = {"plan": "playbook", "fleet.past": "its past", "fleet.peers": "its peers", "fleet.gpus": "GPUs"}
"""By check that compares: what it compares a host with."""

NEVER = "never provisioned"
_FIRST = ("unreachable", "hardware", "error", "failed")
"""Kinds of problems that come first."""
_REASONS = ("unreachable", "error")
"""Kinds of problems whose value is the reason, so that hosts with different ones have different problems."""

_PLACE = lazy_re.compile(
    r"\b[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]\b|\bGPU-[0-9a-f]{8}[0-9a-f-]*(?: \(serial [^)]*\))?"
)
_UNITS = {"w": "W", "mib": "MiB", "mhz": "MHz", "c": "°C"}
_UNIT = lazy_re.compile(f" ({'|'.join(_UNITS)})$")
_YEAR_DAYS = 365.25


class Where(Struct, frozen=True):
    """A host, and the places in it: bus ids, positions, UUIDs; "" for the whole host."""

    name: str
    anchor: str
    places: str


class Problem(Struct, frozen=True):
    """A bad finding or an error, with all hosts that have it. `steps`: of the fix if it has several."""

    verdict: str
    check: str
    title: str
    seen: str
    expected: str
    source: str
    cause: str
    fix: str
    steps: tuple[Step, ...] = ()
    hosts: tuple[Where, ...] = ()


class Changed(Struct, frozen=True):
    """A difference from the last report, with all hosts that have it. `kind`: worse, better or other."""

    kind: str
    title: str
    before: str = ""
    after: str = ""
    by: str = ""
    hosts: tuple[Where, ...] = ()


class Ending(Struct, frozen=True):
    """An end of life, with all its hosts. `verdict` as of a finding; `left`: the time from now, in words."""

    verdict: str
    name: str
    date: str
    left: str
    words: str
    source: str
    hosts: tuple[Where, ...] = ()


Item = TypeVar("Item", Problem, Changed, Ending)


def problems(hosts: Sequence[HostView]) -> list[Problem]:
    """The problems of all hosts: no answer, lost hardware, failures, drift, warnings; those of most hosts first."""

    def rank(problem: Problem) -> tuple[int, int, int]:
        order = _FIRST.index(problem.check) if problem.check in _FIRST else len(_FIRST)
        drifts = problem.check in DRIFT.values()
        return order, VERDICTS.index(problem.verdict) + drifts, -len(problem.hosts)

    return sorted(by_cause(_group(hosts, _problems)), key=rank)


def accepted(hosts: Sequence[HostView]) -> list[Problem]:
    """The warnings that owners have accepted; the decision is their cause."""

    def of_host(host: HostView) -> Iterator[tuple[Problem, str]]:
        for finding in host.findings:
            if finding["verdict"] == "info" and finding["accepted"]:
                title, place = split(finding["subject"], positions(host))
                yield Problem("info", "accepted", title, finding["seen"], "", "", finding["accepted"], ""), place

    return by_cause(_group(hosts, of_host))


def by_cause(every: Sequence[Problem]) -> list[Problem]:
    """The problems, those of one cause once, with all their hosts: equal title and fix but for quantities, places and
    the values seen. Without a fix the explanations are equal too."""
    alike: dict[tuple[str, ...], list[Problem]] = {}
    for problem in every:
        name = problem.hosts[0].name if len(problem.hosts) == 1 else ""
        why = "" if problem.fix or problem.steps else problem.cause
        seen = problem.seen if problem.check in _REASONS else ""
        texts = (problem.title, why, problem.fix, *map(str, problem.steps), seen)
        key = (problem.verdict, problem.check, problem.source, *(cause_of(text, name) for text in texts))
        alike.setdefault(key, []).append(problem)
    return [_merge(same) if len(same) > 1 else same[0] for same in alike.values()]


def _merge(same: Sequence[Problem]) -> Problem:
    """One problem in place of several of the same cause."""
    of_hosts = [problem for problem in same for _ in problem.hosts]
    first = max(same, key=lambda problem: len(problem.hosts))
    fixes = {problem.fix for problem in same}
    seen = [without_addresses(problem.seen) if problem.check in _REASONS else problem.seen for problem in of_hosts]
    hosts: dict[tuple[str, str], list[str]] = {}
    for where in (where for problem in same for where in problem.hosts):
        hosts.setdefault((where.name, where.anchor), []).append(where.places)
    return replace(
        first,
        title=common([problem.title for problem in of_hosts]),
        seen=variants(seen),
        expected=variants(problem.expected for problem in of_hosts),
        cause=common([problem.cause for problem in of_hosts]),
        fix=first.fix if len(fixes) == 1 else cause_fix(first),
        hosts=_wheres(hosts),
    )


def cause_fix(problem: Problem) -> str:
    """The fix of a problem of several hosts, with HOST and ADDRESS in place of those of one."""
    host = problem.hosts[0].name if len(problem.hosts) == 1 else "HOST"
    return without_addresses(problem.fix.replace(host, "HOST"))


def changes(hosts: Sequence[HostView]) -> list[Changed]:
    """The differences from the last report: the worse ones first, the better ones last."""
    known = any(host.data["fleet"]["since"] for host in hosts)

    def of_host(host: HostView) -> Iterator[tuple[Changed, str]]:
        if known and not host.data["fleet"]["since"]:
            yield Changed("other", "for the first time in a report"), ""
        yield from _changes(host)

    items = _group(hosts, of_host)
    return sorted(items, key=lambda item: (("worse", "other", "better").index(item.kind), -len(item.hosts)))


def endings(hosts: Sequence[HostView]) -> list[Ending]:
    """The ends of life by date; those without a date last."""
    return sorted(_group(hosts, _endings), key=lambda item: (item.date or "9999", item.name))


def _group(hosts: Sequence[HostView], items_of: Callable[[HostView], Iterable[tuple[Item, str]]]) -> list[Item]:
    """The items of all hosts, equal ones once. `items_of` yields an item without hosts, and the place on the host."""
    places: dict[Item, dict[tuple[str, str], list[str]]] = {}
    for host in hosts:
        for item, place in items_of(host):
            places.setdefault(item, {}).setdefault((host.name, host.anchor), []).append(place)
    return [replace(item, hosts=_wheres(by_host)) for item, by_host in places.items()]


def _wheres(by_host: Mapping[tuple[str, str], list[str]]) -> tuple[Where, ...]:
    return tuple(Where(*host, ", ".join(dict.fromkeys(filter(None, places)))) for host, places in by_host.items())


def _problems(host: HostView) -> Iterator[tuple[Problem, str]]:
    unreachable = host.data["status"] == "unreachable"
    if host.data["error"] or unreachable:
        error = {"where": "", "found": "", "expected": "", "fix": "", **(host.data["error"] or {})}
        kind = ("unknown", "unreachable", "Does not answer") if unreachable else ("fail", "error", "Run failed")
        where = f"{error['where']}: " if error["where"] not in ("", host.name) and not unreachable else ""
        yield Problem(*kind, where + error["found"], error["expected"], "", "", error["fix"]), ""
    bad = [finding for finding in host.findings if finding["verdict"] in BAD]
    plan = [finding for finding in bad if finding["check"] == "plan"]
    folds = len(plan) > FOLDED
    if never_provisioned(host):
        yield Problem("unknown", NEVER, "No driver is loaded", "", "", "", "", as_typed("invoke provision")), ""
    elif folds:
        seen = ", ".join(dict.fromkeys(finding["subject"].partition(":")[0] for finding in plan))
        title, fix = f"{len(plan)} differences from the playbook", as_typed("invoke plan, then invoke provision")
        yield Problem("fail", DRIFT["plan"], title, seen, "", "", "", fix), ""
    for finding in bad:
        if finding["check"] in DRIFT and not (folds and finding["check"] == "plan") and not _follows(host, finding):
            title, place = split(finding["subject"], positions(host))
            title = f"GPU {finding['seen']}" if title == "GPU" else title
            said = (finding[key] for key in ("seen", "expected", "source", "cause", "fix"))
            yield Problem(finding["verdict"], DRIFT[finding["check"]], title, *said), place
    for problem in host.problems:
        root = problem.findings[0]
        if not problem.drift:
            named = "hardware" if problem.hardware and problem.verdict == "fail" else WORDS[problem.verdict]
            place = ", ".join(problem.gpus)
            texts = (root.seen, root.expected, root.source, root.cause, root.fix)
            steps = problem.steps if len(problem.steps) > 1 else ()
            yield Problem(problem.verdict, named, problem.short_alone, *texts, steps), place


def _follows(host: HostView, finding: Mapping[str, Any]) -> bool:
    """Whether a difference has the same cause as a problem of the host, or misses a lost GPU."""
    causes = {root.cause for problem in host.problems if not problem.drift for root in problem.findings} - {""}
    lost = [gpu["bus_id"] for gpu in host.data["machine"]["gpus"] if gpu["lost"]]
    missed = finding["check"] == "fleet.gpus" and finding["seen"] == "missing"
    same_gpu = missed and bool(causes) and any(bus_id in finding["subject"] for bus_id in lost)
    return finding["cause"] in causes or same_gpu


def never_provisioned(host: HostView) -> bool:
    """Whether a host that answers has no driver and differs from its playbook in many steps."""
    steps = sum(finding["check"] == "plan" for finding in host.findings)
    return not host.data["error"] and not host.data["machine"]["driver"] and steps > FOLDED


def _changes(host: HostView) -> Iterator[tuple[Changed, str]]:
    past, names = host.data["fleet"], positions(host)
    unreachable, was_unreachable = host.data["status"] == "unreachable", past["was"] == "unreachable"
    if past["since"] and unreachable != was_unreachable:
        yield (Changed("worse", "no longer answers") if unreachable else Changed("better", "answers again")), ""
    for finding in past["new"]:
        title, place = split(finding["subject"], names)
        yield Changed("worse", title, "", finding["seen"]), place
    for change in past["became"]:
        title, place = split(change["subject"], names)
        by = "by rigwright" if change.get("run") else ""
        yield Changed("other", title, change["before"], change["after"], by), place
    for finding in past["gone"]:
        title, place = split(finding["subject"], names)
        yield Changed("better", title, finding["seen"], ""), place


def _endings(host: HostView) -> Iterator[tuple[Ending, str]]:
    for end in host.data["fleet"]["ends"]:
        verdict = {"ended": "fail", "soon": "warn"}.get(end["state"], "info")
        yield Ending(verdict, end["name"], end["date"] or "", time_left(end["days"]), end["words"], end["source"]), ""


def positions(host: HostView) -> set[str]:
    """The names of the positions of its GPUs."""
    return {gpu["position"] for gpu in host.data["machine"]["gpus"]} - {""}


def split(subject: str, names: set[str]) -> tuple[str, str]:
    """A subject as title and places: `0000:06:00.0 GPU-531aad71 vbios` is `vbios` at `0000:06:00.0 GPU-531aad71`."""
    places = [*(word for word in subject.split() if word in names), *_PLACE.findall(subject)]
    if not places:
        return subject, ""
    rest = [word for word in _PLACE.sub(" ", subject).split() if word not in names]
    title = _UNIT.sub(lambda unit: f", {_UNITS[unit[1]]}", " ".join(rest) or "GPU")
    return title.rstrip(":"), " ".join(places)


def time_left(days: int | None) -> str:
    """`today`, `in 35 days`, `in 1.7 years`, `144 days ago`; "" without a date."""
    if days is None:
        return ""
    if days == 0:
        return "today"
    far = abs(days)
    span = count(far, "day") if far < 2 * _YEAR_DAYS else f"{far / _YEAR_DAYS:.1f} years"
    return f"{span} ago" if days < 0 else f"in {span}"
