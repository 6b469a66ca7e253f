"""A run as text: the plan, what happens, the findings and the table of limits. Colours only on a terminal."""

from __future__ import annotations

import contextlib
import os
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import IO, TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from rigwright import events, patterns
from rigwright.change import Change
from rigwright.checks import Finding
from rigwright.errors import RigwrightError
from rigwright.fleet import HostReport
from rigwright.report.words import FOLDED, SOURCES

if TYPE_CHECKING:
    from rigwright.report.live import Region

SIGN = {"add": "[green]+[/]", "change": "[yellow]~[/]", "remove": "[red]-[/]", "run": "[cyan]>[/]"}
VERDICT = {
    "pass": "[green]pass[/]",
    "info": "[cyan]info[/]",
    "warn": "[yellow]warn[/]",
    "fail": "[bold red]FAIL[/]",
    "unknown": "[bold yellow]????[/]",
}


class Text:
    """Writes a run to a stream; safe for many workers."""

    def __init__(self, stream: IO[str], inventory: str, many: bool) -> None:
        wide = None if stream.isatty() or "COLUMNS" in os.environ else 160  # nobody's screen: tables need not wrap
        self.console = Console(file=stream, highlight=False, soft_wrap=not stream.isatty(), emoji=False, width=wide)
        self.inventory = inventory
        self.many = many
        self._lock = threading.Lock()
        self._last_line = 0.0
        self._region: Region | None = None

    @contextlib.contextmanager
    def stage(self, hosts: Sequence[str]) -> Iterator[None]:
        """As long as it is open a terminal shows what each of several hosts does; elsewhere nothing is different."""
        if len(hosts) < 2 or not self.console.is_terminal or self.console.is_dumb_terminal:
            yield
            return
        from rigwright.report.live import Region

        with Region(self.console, hosts) as self._region:
            try:
                yield
            finally:
                region, self._region = self._region, None
        if region.connected:
            self._headings(region.connected)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing is drawn: somebody is asked something."""
        with self._region.paused() if self._region else contextlib.nullcontext():
            yield

    def _headings(self, connected: Sequence[events.Connected]) -> None:
        """One line in place of as many headings."""
        simulated = [one.host for one in connected if one.simulated]
        mark = f"  [bold magenta]SIMULATED[/] [dim]({escape(patterns.folded(simulated))})[/]" if simulated else ""
        names = escape(patterns.folded(one.host for one in connected))
        self.line(f"[bold]{names}[/]  [dim]{len(connected)} hosts, inventory {escape(self.inventory)}[/]{mark}")

    def line(self, text: str = "") -> None:
        """One line, with markup."""
        with self._lock:
            self.console.print(text)

    def plain(self, text: str) -> None:
        """One line, as it is."""
        self.line(escape(text))

    def warn(self, text: str) -> None:
        """A warning, as it is: something is missing from the run, which is none the worse for it."""
        self.line(f"{VERDICT['warn']} {escape(text)}")

    def heading(self, host: str, address: str, simulated: str) -> None:
        """The first line of a run: host, address, inventory, and SIMULATED where the host itself says so."""
        mark = f"  [bold magenta]SIMULATED[/] [dim]({escape(simulated)})[/]" if simulated else ""
        self.line(f"[bold]{escape(host)}[/]  {escape(address)}  [dim]inventory {escape(self.inventory)}[/]{mark}")

    def unsaid(self, event: events.Event) -> None:
        """Something happened on a host, of which only who watches is told."""
        if self._region:
            self._region.takes(event)

    def event(self, event: events.Event) -> None:
        """Something happened on a host."""
        if self._region and self._region.takes(event):
            return
        before = f"[dim]{escape(event.host)}[/] " if self.many else ""
        if isinstance(event, events.Connected):
            self.heading(event.host, event.address, event.simulated)
        elif isinstance(event, events.StepStarted):
            self.line(f"{before}[bold]•[/] {escape(event.step)}")
        elif isinstance(event, events.OutputLine):
            now = time.monotonic()
            if event.line.strip() and (now - self._last_line > 0.5 or "error" in event.line.lower()):
                self._last_line = now
                self.line(f"{before}    [dim]{escape(event.line.strip()[: self.console.width - 6])}[/]")
        elif isinstance(event, events.StepDone):
            mark = "[green]✓[/]" if event.status == "changed" else "[bold red]✗[/]"
            self.line(
                f"{before}  {mark} {escape(event.step)}  [dim]proved, {event.seconds:.1f} s[/]"
                if event.status == "changed"
                else f"{before}  {mark} {escape(event.step)}  [dim]{event.seconds:.1f} s[/]"
            )
        elif isinstance(event, events.Note):
            self.line(f"{before}  [cyan]…[/] {escape(event.text)}")

    def plans(self, reports: Sequence[HostReport]) -> None:
        """The changes of every host, equal plans once, and a line that counts them."""
        if not reports:
            return
        groups: dict[tuple[Any, ...], list[HostReport]] = {}
        for report in reports:
            if report.planned:
                key = tuple(
                    (one.step.name, one.status, one.reason, tuple(map(_words, one.changes)), one.notes)
                    for one in report.planned
                )
                groups.setdefault(key, []).append(report)
        for same in groups.values():
            if self.many:
                self.line(f"\n[bold]{escape(patterns.folded(report.host.name for report in same))}[/]")
            self._plan(same[0])
        self.line(_count(reports))

    def _plan(self, report: HostReport) -> None:
        for one in report.planned:
            if one.notes and one.status != "pending":
                self.line(f"  [bold]{escape(one.step.name)}[/]")
            if one.status == "pending":
                self.line(f"  [bold]{escape(one.step.name)}[/]")
            for note in one.notes:
                self.line(f"    {'[yellow]![/]' if note.warn else '[dim]·[/]'} {escape(note.text)}")
            if one.status == "pending":
                for change in one.changes:
                    self.line(_shown(change))
            elif one.status == "unknown":
                self.line(
                    f"  [bold]{escape(one.step.name)}[/]\n    [magenta]?[/] known later [dim]({escape(one.reason)})[/]"
                )

    def findings(self, report: HostReport, only_bad: bool = False) -> None:
        """Every finding, root causes first; for one that is not a pass, what was wanted, why, and what to do.

        What several checks could not judge for the same reason is one entry. With `only_bad` what passes is left out.
        """
        shown = [one for one in report.findings if one.verdict not in ("pass", "info") or not only_bad]
        if self.many and shown:
            self.line(f"\n[bold]{escape(report.host.name)}[/]")
        subjects: dict[Finding, list[str]] = {}
        for one in _folded(shown):
            same = replace(one, check="", subject="") if one.verdict == "unknown" else one
            subjects.setdefault(same, []).append(one.subject)
        for one, named in subjects.items():
            self.line(f"  {VERDICT[one.verdict]}  {escape(', '.join(dict.fromkeys(named)))}: {escape(one.seen)}")
            if one.verdict not in ("pass",):
                by = f" ({SOURCES[one.source]})" if one.source else ""
                rest = [("wanted", one.wanted and one.wanted + by), ("cause", one.cause), ("do", one.fix)]
                for word, text in rest:
                    if text:
                        self._hanging(f"{word + ':':8}", text)

    def _hanging(self, label: str, text: str) -> None:
        """A dim label and its text; on a terminal wrapped beside it, but for what is to be typed: that is copied whole."""
        room = self.console.width - 8 - len(label)
        wrap = self.console.is_terminal and room > 30 and not label.startswith("do")
        with self._lock:
            for number, line in enumerate(textwrap.wrap(text, room) if wrap else [text]):
                shown = label if number == 0 else " " * len(label)
                self.console.print(f"        [dim]{shown}[/]{escape(line)}", soft_wrap=True)

    def limits(self, report: HostReport) -> None:
        """The table of limits."""
        from rigwright.report import limitstable

        with self._lock:
            limitstable.show(self.console, report.rows)

    def unrecorded(self, error: RigwrightError) -> None:
        """This run does not stand in the history, and why; it is a warning, for the run itself is none the worse."""
        self.warn(f"the history has not recorded this run: {error}")

    def errors(self, errors: Sequence[tuple[str, RigwrightError]]) -> None:
        """The errors of hosts; what is said of three or more in the same words is said once."""
        said: dict[str, list[tuple[str, RigwrightError]]] = {}
        for host, error in errors:
            said.setdefault(f"{type(error)} {error}".replace(host, "HOST"), []).append((host, error))
        for same in said.values():
            if len(same) > 2:
                where, one = patterns.folded(host for host, _ in same), same[0]
                words = str(one[1]).removeprefix(f"{one[0]}: ").replace(one[0], "HOST")
                self.line(f"[bold red]error[/] {escape(where)}: {escape(words)}")
                continue
            for host, error in same:
                self.error(error, host)

    def error(self, error: RigwrightError, host: str = "") -> None:
        """One message: where, what was found, what was wanted, what to do."""
        before = f"{host}: " if host and not error.where.startswith(host) else ""
        self.line("[bold red]error[/] " + escape(before + str(error)))


def _folded(findings: Sequence[Finding]) -> list[Finding]:
    """The findings, many steps of the plan that are not so as one, in the place of the first."""
    steps = [one for one in findings if one.check == "plan" and one.verdict == "fail"]
    if len(steps) <= FOLDED:
        return list(findings)
    seen = f"{len(steps)} steps are not so: {'; '.join(one.subject for one in steps[:FOLDED])}; ..."
    whole = Finding("plan", "plan", "fail", seen, fix="invoke plan shows all of them, invoke provision makes them so")
    return [whole if one is steps[0] else one for one in findings if one is steps[0] or one not in steps]


def _words(change: Change) -> tuple[str, ...]:
    return change.action, change.subject, change.before, change.after


def _shown(change: Change) -> str:
    before, after = (escape(" ".join(text.split())[:160]) for text in (change.before, change.after))
    arrow = f"{before} [dim]->[/] {after}" if before and after else before or after
    lead = f"  [bold red]! {escape(change.leads_to)}[/]" if change.leads_to else ""
    sign = "[bold red]![/]" if change.disruptive else SIGN[change.action]
    return f"    {sign} {escape(change.subject)}  {arrow}{lead}"


def _count(reports: Sequence[HostReport]) -> str:
    changes = [change for report in reports for one in report.planned for change in one.changes]
    unknown = sum(one.status == "unknown" for report in reports for one in report.planned)
    if not changes and not unknown:
        steps = sum(len(report.planned) for report in reports)
        return f"[green]Nothing to change[/]: {steps} steps, all as wanted."
    parts = [
        f"{number} to {word}"
        for word, number in (
            (word, sum(change.action == word for change in changes)) for word in ("add", "change", "remove", "run")
        )
        if number
    ]
    disruptive = sum(change.disruptive for change in changes)
    if disruptive:
        parts.append(f"[bold red]{disruptive} disruptive[/]")
    if unknown:
        parts.append(f"{unknown} known later")
    return f"\n[bold]Plan[/]: {', '.join(parts)}."
