"""`invoke fleet.check` and `fleet.report` as text: the differences of each host, or of many hosts by cause."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence

from msgspec import Struct
from rich.console import Console

from rigwright.catalogue.summary import counted_ids
from rigwright.checks import Finding
from rigwright.checks.problems import Problem
from rigwright.core import numbers
from rigwright.core.host_ranges import folded
from rigwright.core.process.program_name import as_typed
from rigwright.core.shortening import cut
from rigwright.engine.report import BAD, HostReport
from rigwright.facts.plain import plain
from rigwright.report.causes import LONGEST_NAMES, cause_of, common, listed, without_addresses, without_places
from rigwright.report.labels import FOLDED, as_is
from rigwright.report.wrapping import hanging

SHOWN = 8
"""The number of findings shown for each kind and host; plan, verify and --json have all."""

MANY = 40
"""With more hosts than this, their problems are shown by cause in place of a line for each host."""
CAUSES = 20
"""The number of causes shown; the page and --json have all."""

_KINDS = {
    "plan": ("playbook", "from its playbook", "invoke plan --host {host}"),
    "fleet.past": ("past", "from its past", "invoke history.diff {host}"),
    "fleet.gpus": ("GPUs", "of its GPUs", "invoke fleet.check --host {host} --json -"),
    "fleet.peers": ("peers", "from its peers", "invoke fleet.check --host {host} --json -"),
    "checks": ("checks", "in its checks", "invoke verify --host {host}"),
}
"""By check: a title, a phrase for the count, and the command that shows all."""

_HANG = 17
"""Columns before the text of a difference."""

_OF_THE_PAST = ("fleet.past", "fleet.gpus")


def check(console: Console, reports: Sequence[HostReport]) -> None:
    """Writes a line for each host: its hardware, or the number of differences and each of them; then a line that counts
    the hosts.

    Of more than MANY hosts it writes their problems by cause, with the hosts that have them."""
    if len(reports) > MANY:
        _causes(console, reports)
    else:
        wide = min(max((len(report.host.name) for report in reports), default=0), console.width // 3)
        for report in reports:
            _host(console, report, wide)
    states = Counter(_state(report) for report in reports)
    words = [f"[{colour}]{states[word]} {text}[/]" for word, (_, colour, text) in _STATES.items() if states[word]]
    hanging(console, f"\n[bold]{numbers.count(len(reports), 'host')}[/]: {', '.join(words)}")
    changed = [report.host.name for report in reports if any(each.check in _OF_THE_PAST for each in report.findings)]
    if changed:
        names = folded(changed).replace(", ", ",")
        hosts = as_is(shlex.quote(names)) if len(names) <= LONGEST_NAMES else "NAMES"
        hint = f"to accept these differences as the new state: invoke verify --host {hosts}"
        hanging(console, as_typed(hint))


class _Cause(Struct, frozen=True):
    """A problem of a host. `rank`: how bad its kind is, 0 the worst; `key`: equal for problems of one cause."""

    rank: int
    kind: str
    title: str
    key: str


_MARKS = (
    ("[bold yellow]away[/]", 4),
    ("[bold red]error[/]", 5),
    ("[red]fail[/]", 4),
    ("[yellow]unknown[/]", 7),
    ("[yellow]warn[/]", 4),
    ("[cyan]info[/]", 4),
)
"""By the rank of a cause: its mark and the width of it."""


def _causes(console: Console, reports: Sequence[HostReport]) -> None:
    """Writes the problems of many hosts by cause: the worst kind first, of each the one of most hosts first."""
    found: dict[tuple[int, str, str], dict[str, list[str]]] = {}
    for report in reports:
        for cause in dict.fromkeys(_causes_of(report)):
            by_host = found.setdefault((cause.rank, cause.kind, cause.key), {})
            by_host.setdefault(report.host.name, []).append(cause.title)
    ordered = sorted(found.items(), key=lambda item: (item[0][0], -len(item[1])))
    for (rank, kind, _), titles in ordered[:CAUSES]:
        mark, width = _MARKS[rank]
        title = common([title for of_host in titles.values() for title in of_host])
        number = numbers.count(len(titles), "host")
        hanging(
            console,
            f"{mark}{' ' * (8 - width)}[bold]{number}[/]: {_short(title)}{f'  [dim]{kind}[/]' if kind else ''}",
            8,
        )
        hanging(console, f"        [dim]{as_is(listed(folded(titles)))}[/]", 8)
    if len(ordered) > CAUSES:
        console.print(f"[dim]and {len(ordered) - CAUSES} more causes: the page and --json have them[/]", soft_wrap=True)


def _causes_of(report: HostReport) -> Iterator[_Cause]:
    """The problems of a host: its error, or its differences and the problems that its checks found."""
    name = report.host.name
    if report.error is not None:
        rank, text = (0 if report.status == "unreachable" else 1), without_addresses(report.error.found)
        yield _Cause(rank, "", text, cause_of(text, name))
        return
    bad = [finding for finding in report.findings if finding.verdict in BAD]
    plan = [finding for finding in bad if finding.check == "plan"]
    if len(plan) > FOLDED:
        yield _Cause(2, _KINDS["plan"][0], f"{len(plan)} differences from the playbook", "many")
    for finding in bad:
        kind = _kind(finding)
        if kind != "checks" and not (kind == "plan" and len(plan) > FOLDED):
            title = without_places(finding.subject)
            expected = f", not {finding.expected}" if finding.expected and kind != "fleet.gpus" else ""
            key = f"{cause_of(title, name)} {cause_of(finding.expected)}"
            yield _Cause(2, _KINDS[kind][0], f"{title}: {finding.seen}{expected}", key)
    for problem in report.problems:
        if not problem.drift:
            short = problem.short_alone
            yield _Cause(2 + BAD.index(problem.verdict), "", short, cause_of(short, name))
    for finding in report.findings:
        if finding.is_accepted:
            title = f"{without_places(finding.subject)}: {finding.seen}, accepted {finding.accepted}"
            yield _Cause(5, "", title, cause_of(title, name))


_STATES = {
    "ok": ("ok   ", "green", "as expected"),
    "drift": ("DRIFT", "bold red", "drifting"),
    "unproved": ("?    ", "bold yellow", "not proved"),
    "unreachable": ("away ", "bold yellow", "unreachable"),
    "error": ("error", "bold red", "with an error"),
}


def _state(report: HostReport) -> str:
    if report.error is not None:
        return "unreachable" if report.status == "unreachable" else "error"
    if report.unanswered and not report.failed:
        return "unproved"
    return "drift" if report.status == "failed" else "ok"


def _host(console: Console, report: HostReport, wide: int) -> None:
    mark, colour, _ = _STATES[_state(report)]
    from rigwright.history.machines import CHECK

    bad = [finding for finding in report.findings if finding.verdict in BAD]
    who = [finding for finding in bad if finding.check == CHECK]
    problems = [problem for problem in report.problems if not problem.drift]
    count = Counter(_kind(finding) for finding in bad if _kind(finding) != "checks") + Counter(checks=len(problems))
    if report.error is not None:
        text = report.error.found
    elif count:
        text = ", ".join(f"{count[kind]} {_KINDS[kind][1]}" for kind in _KINDS if count[kind])
    else:
        text = _summary(report)
    line = f"[{colour}]{mark}[/]  [bold]{as_is(report.host.name):{wide}}[/]  {as_is(text)}"
    hanging(console, line + ("  [magenta]SIMULATED[/]" if report.simulated else ""), 7)
    for finding in who:  # all else may be of another machine
        hanging(console, _finding("machine", finding), _HANG)
        hanging(console, f"       [dim]{'fix':8}[/]  {as_is(as_typed(finding.fix))}", _HANG)
    problems = [problem for problem in problems if problem.findings[0] not in who]
    for kind, (title, _, command) in _KINDS.items():
        if kind == "checks":
            lines = [_problem(title, problem) for problem in problems]
        else:
            lines = [_finding(title, finding) for finding in bad if _kind(finding) == kind]
        for shown in lines[:SHOWN]:
            hanging(console, shown, _HANG)
        if len(lines) > SHOWN:
            more = as_typed(command.format(host=report.host.name))
            hanging(console, f"       [dim]{title:8}  and {len(lines) - SHOWN} more: {as_is(more)}[/]", _HANG)
    for finding in report.findings:
        if finding.is_accepted:
            hanging(console, f"{_finding('accepted', finding)}, {as_is(finding.accepted)}", _HANG)


def _kind(finding: Finding) -> str:
    return finding.check if finding.check in _KINDS else "checks"


def _finding(title: str, finding: Finding) -> str:
    compared = finding.expected and finding.check in ("plan", "fleet.peers", "fleet.past")
    expected = f", not {_short(finding.expected)}" if compared else ""
    cause = f"  [dim]({as_is(finding.cause)})[/]" if finding.cause else ""
    seen = f"{as_is(finding.subject)}: {_short(finding.seen)}"
    return f"       [dim]{title:8}[/]  {seen}{expected}{cause}"


def _problem(title: str, problem: Problem) -> str:
    cause = f"  [dim]({as_is(problem.cause)})[/]" if problem.cause else ""
    return f"       [dim]{title:8}[/]  {as_is(problem.title)}{cause}"


def _summary(report: HostReport) -> str:
    gpus = counted_ids(gpu["device_id"] for gpu in plain(report.kept.get("pci.gpus", ())))
    driver, kernel = (report.kept.get(name) for name in ("driver.loaded_version", "system.running_kernel"))
    return ", ".join(text for text in (gpus, driver and f"driver {driver}", kernel and f"kernel {kernel}") if text)


def _short(text: str) -> str:
    return as_is(cut(text, 100))
