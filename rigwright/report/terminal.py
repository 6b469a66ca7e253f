"""A run as text: plan, events, findings and errors. Colours only on a terminal."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import IO, TYPE_CHECKING, Any

from msgspec.structs import replace

from rigwright.checks import Finding
from rigwright.core import host_ranges
from rigwright.core.change import Change
from rigwright.core.control_characters import one_line
from rigwright.core.errors import RigwrightError
from rigwright.core.numbers import count
from rigwright.core.process.program_name import as_typed
from rigwright.core.shortening import shortened
from rigwright.engine import events
from rigwright.engine.report import HostReport
from rigwright.report.causes import cause_of, listed, without_addresses
from rigwright.report.console import console_on
from rigwright.report.labels import FOLDED, SOURCES, as_is
from rigwright.report.wrapping import hanging

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


VERDICT_STYLE = {
    "pass": "bold green",
    "info": "cyan",
    "warn": "bold yellow",
    "fail": "bold red",
    "unknown": "bold yellow",
}


class Text:
    """Writes a run to a stream; thread-safe."""

    def __init__(self, stream: IO[str], inventory: str, many: bool) -> None:
        wide = None if stream.isatty() or "COLUMNS" in os.environ else 160  # a file or a pipe: no need to wrap tables
        soft_wrap = not stream.isatty()
        self.console = console_on(stream, highlight=False, soft_wrap=soft_wrap, emoji=False, width=wide)
        self.inventory = inventory
        self.many = many
        self._lock = threading.Lock()
        self._last_output = 0.0
        self._region: Region | None = None

    @contextlib.contextmanager
    def stage(self, hosts: Sequence[str]) -> Iterator[None]:
        """Shows the progress of several hosts while it is open, on a terminal; elsewhere it does nothing."""
        if len(hosts) < 2 or not self.console.is_terminal or self.console.is_dumb_terminal:
            yield
            return
        from rigwright.report.live import Region

        with Region(self.console, hosts) as self._region:
            try:
                yield
            finally:
                region, self._region = self._region, None
        if region.connected:  # one line in place of a heading for each host
            simulated = host_ranges.folded(event.host for event in region.connected if event.simulated)
            names = as_is(host_ranges.folded(event.host for event in region.connected))
            about = f"{len(region.connected)} hosts, inventory {as_is(self.inventory)}"
            self.line(f"[bold]{names}[/]  [dim]{about}[/]{simulated_mark(simulated)}")

    def paused(self) -> AbstractContextManager[None]:
        """Hides the progress lines while the terminal asks a question."""
        return self._region.paused() if self._region else contextlib.nullcontext()

    def line(self, text: str = "", indent: int | None = None) -> None:
        """One line, with markup; on a terminal its rest follows with an indentation of `indent` columns."""
        with self._lock:
            hanging(self.console, text, indent)

    def plain(self, text: str) -> None:
        """One line without markup."""
        self.line(as_is(text))

    def copied(self, text: str) -> None:
        """One line without markup for people to copy: the terminal breaks it, and no line end is added."""
        with self._lock:
            self.console.print(as_is(text), soft_wrap=True)

    def warn(self, text: str) -> None:
        """A warning that does not affect the result of the run."""
        self.line(f"{VERDICT['warn']} {as_is(text)}")

    def progress(self, event: events.Event) -> None:
        """Passes an event to the progress lines only."""
        if self._region:
            self._region.takes(event)

    def event(self, event: events.Event) -> None:
        """Shows an event in the progress lines, or as a line of its own."""
        if self._region and self._region.takes(event):
            return
        prefix = f"[dim]{as_is(event.host)}[/] " if self.many else ""
        if isinstance(event, events.Connected):
            about = f"{as_is(event.address)}  [dim]inventory {as_is(self.inventory)}[/]"
            self.line(f"[bold]{as_is(event.host)}[/]  {about}{simulated_mark(event.simulated)}")
        elif isinstance(event, events.StepStarted):
            self.line(f"{prefix}[bold]•[/] {as_is(event.step)}")
        elif isinstance(event, events.OutputLine):
            now = time.monotonic()
            if event.line.strip() and (now - self._last_output > 0.5 or "error" in event.line.lower()):
                self._last_output = now
                begin = len(event.host) + 1 if self.many else 0
                line, room = one_line(event.line.strip()), max(self.console.width - begin - 4, 16)
                cut = line if len(line) <= room else f"{line[: room - 1]}…"
                self.line(f"{prefix}    [dim]{as_is(cut)}[/]")
        elif isinstance(event, events.StepDone):
            changed = event.status == "changed"
            mark, proved = ("[green]✓[/]", "proved, ") if changed else ("[bold red]✗[/]", "")
            self.line(f"{prefix}  {mark} {as_is(event.step)}  [dim]{proved}{event.seconds:.1f} s[/]")
        elif isinstance(event, events.Note):
            self.line(f"{prefix}  [cyan]…[/] {as_is(event.text)}")

    def plans(self, reports: Sequence[HostReport]) -> None:
        """The changes of every host, equal plans once, and a line that counts them."""
        if not reports:
            return
        groups: dict[tuple[Any, ...], list[HostReport]] = {}
        for report in reports:
            if report.planned:
                key = tuple(
                    (planned.step.name, planned.status, planned.reason, planned.notes,
                     tuple((change.action, change.subject, change.before, change.after) for change in planned.changes))
                    for planned in report.planned
                )  # fmt: skip
                groups.setdefault(key, []).append(report)
        for same in groups.values():
            if self.many:
                self.line(f"\n[bold]{as_is(host_ranges.folded(report.host.name for report in same))}[/]")
            self._plan(same[0])
        self.line(_count(reports))
        required: dict[Finding, list[str]] = {}
        for report in reports:
            for finding in report.required_tests:
                required.setdefault(finding, []).append(report.host.name)
        for finding, names in required.items():
            prefix = f"[bold]{as_is(host_ranges.folded(names))}[/] " if self.many else ""
            self.line(f"{prefix}{VERDICT['warn']} {as_is(finding.subject)}: {as_is(finding.seen)}")
            self._hanging("fix:      ", as_typed(finding.fix))

    def _plan(self, report: HostReport) -> None:
        for planned in report.planned:
            name = f"  [bold]{as_is(planned.step.name)}[/]"
            if planned.notes or planned.status == "pending":
                self.line(name)
            for note in planned.notes:
                self.line(f"    {'[yellow]![/]' if note.warn else '[dim]·[/]'} {as_is(as_typed(note.text))}", 6)
            if planned.status == "pending":
                for change in planned.changes:
                    self.line(_change(change), 8)
            elif planned.status == "unknown":
                self.line(f"{name}\n    [magenta]?[/] known later [dim]({as_is(planned.reason)})[/]", 6)

    def findings(self, report: HostReport, only_bad: bool = False) -> None:
        """Every finding; for one that is not a pass also the expected value, the cause and the fix.

        Unknown findings that differ only in their subject are one entry. With `only_bad`, pass and info are left out.
        """
        shown = [finding for finding in report.findings if not only_bad or finding.verdict not in ("pass", "info")]
        if self.many and shown:
            self.line(f"\n[bold]{as_is(report.host.name)}[/]")
        subjects: dict[Finding, list[str]] = {}
        for finding in _folded(shown):
            same = replace(finding, check="", subject="") if finding.verdict == "unknown" else finding
            subjects.setdefault(same, []).append(finding.subject)
        for finding, names in subjects.items():
            subject = as_is(", ".join(dict.fromkeys(names)))
            self.line(f"  {VERDICT[finding.verdict]}  {subject}: {as_is(finding.seen)}", 8)
            if finding.verdict != "pass":
                by = f" ({SOURCES[finding.source]})" if finding.source else ""
                expected = finding.expected and finding.expected + by
                rows = (
                    ("accepted", finding.accepted), ("expected", expected), ("cause", finding.cause),
                    ("fix", as_typed(finding.fix)),
                )  # fmt: skip
                for label, text in rows:
                    if text:
                        self._hanging(f"{label + ':':10}", text)

    def verdict(self, report: HostReport) -> None:
        """The host's name and whether it can be used, in one sentence."""
        if report.verdict:
            style = VERDICT_STYLE[report.verdict.level]
            self.line(f"[bold]{as_is(report.host.name)}[/]: [{style}]{as_is(report.verdict.sentence)}[/]")

    def problems(self, report: HostReport) -> None:
        """Every problem: what is seen, the cause, and the steps of the fix with each command on a line of its own; and
        every warning that the owner has accepted."""
        for problem in report.problems:
            root = problem.findings[0]
            self.line(f"\n  {VERDICT[problem.verdict]}  [bold]{as_is(problem.title)}[/]", 8)
            seen = root.seen if problem.gpus and len(problem.gpus) == 1 else f"{root.subject}: {root.seen}"
            by = f" ({SOURCES[root.source]})" if root.source else ""
            differences = _by_step(problem.findings)
            rows = (
                *(("differ" if number == 0 else "", text) for number, text in enumerate(differences)),
                ("seen", "" if differences else seen),
                ("expected", "" if differences else root.expected and root.expected + by),
                ("cause", problem.cause),
                *(("accepted", text) for text in dict.fromkeys(each.accepted for each in problem.findings)),
            )
            for label, text in rows:
                if text and (label == "cause" or text not in problem.title):
                    self._hanging(f"{label and label + ':':10}", text)
            for number, step in enumerate(problem.steps, 1):
                label = f"{'fix:' if number == 1 else '':6}{number:>2}. "
                text = as_typed(step.text)
                if step.before:
                    self._hanging(label, as_typed(step.before))
                    label = " " * len(label)
                if step.command:
                    self._hanging(label, as_typed(step.command), copied=True)
                    if text:
                        self._hanging(" " * 10, text)
                else:
                    self._hanging(label, text)
            if differences:
                self._hanging(" " * 10, as_typed("invoke plan shows each difference"))
            elif len(problem.findings) > 1:
                others = len(problem.findings) - 1
                self._hanging(" " * 10, f"{count(others, 'more finding')} of the same cause; --findings shows all")
        for finding in report.findings:
            if finding.is_accepted:
                self.line(f"\n  {VERDICT['info']}  {as_is(finding.subject)}: {as_is(finding.seen)}", 8)
                self._hanging("accepted: ", finding.accepted)

    def _hanging(self, label: str, text: str, copied: bool = False) -> None:
        """A dim label and its text, on a terminal wrapped beside the label; a command to copy is not wrapped."""
        begin = " " * 8
        line = f"{begin}[dim]{label}[/]{as_is(text)}"
        with self._lock:
            if copied:
                self.console.print(line, soft_wrap=True)
            else:
                hanging(self.console, line, len(begin + label))

    def errors(self, errors: Sequence[tuple[str, RigwrightError]]) -> None:
        """The errors of hosts; one that three or more hosts share, but for addresses, is shown once."""
        groups: dict[str, list[tuple[str, RigwrightError]]] = {}
        for host, error in errors:
            groups.setdefault(f"{type(error)} {cause_of(str(error), host)}", []).append((host, error))
        for same in groups.values():
            if len(same) > 2:
                host, error = same[0]
                names = host_ranges.folded(name for name, _ in same)
                message = without_addresses(str(error).removeprefix(f"{host}: ").replace(host, "HOST"))
                self.error(f"{listed(names)}: {message}")
                continue
            for host, error in same:
                self.error(error if error.where.startswith(host) else f"{host}: {error}")

    def error(self, error: RigwrightError | str) -> None:
        """One error with its place, what was found, what was expected and the fix."""
        for number, line in enumerate(str(error).splitlines()):
            begin = "[bold red]error[/] " if number == 0 else ""
            self.line(begin + as_is(line), 12 if number else 6)


def simulated_mark(text: str) -> str:
    """The mark of a simulated host with its description; "" without one."""
    return f"  [bold magenta]SIMULATED[/] [dim]({as_is(text)})[/]" if text else ""


def _folded(findings: Sequence[Finding]) -> list[Finding]:
    """The findings; more than FOLDED failed steps of the plan are one finding, at the place of the first step."""
    steps = [finding for finding in findings if finding.check == "plan" and finding.verdict == "fail"]
    if len(steps) <= FOLDED:
        return list(findings)
    seen = f"{len(steps)} steps are not as expected: {'; '.join(step.subject for step in steps[:FOLDED])}; ..."
    fix = "invoke plan shows all of them, invoke provision makes the changes"
    folded = Finding("plan", "fail", seen, fix=fix, check="plan")
    return [folded if finding is steps[0] else finding for finding in findings if finding not in steps[1:]]


def _by_step(findings: Sequence[Finding]) -> list[str]:
    """For several differences from the playbook a line for each step with its subjects; [] for other findings."""
    from rigwright.checks.problems import differs, listed

    steps: dict[str, list[str]] = {}
    for finding in findings if len(findings) > 1 and differs(findings[0]) else ():
        if differs(finding):
            step, _, subject = finding.subject.partition(": ")
            steps.setdefault(step, []).append(f"{subject} (not there)" if finding.seen == "not there" else subject)
    return [f"{step}: {listed(subjects)}" for step, subjects in steps.items()]


def _change(change: Change) -> str:
    leads_to = f"  [bold red]! {as_is(change.leads_to)}[/]" if change.leads_to else ""
    sign = "[bold red]![/]" if change.disruptive else SIGN[change.action]
    return f"    {sign} {as_is(change.subject)}  {before_after(change.before, change.after)}{leads_to}"


def before_after(before: str, after: str) -> str:
    """`before -> after` on one line, long lists shortened; rich markup."""
    old, new = (as_is(shortened(one_line(text))) for text in (before, after))
    return f"{old} [dim]->[/] {new}" if old and new else old or new


def _count(reports: Sequence[HostReport]) -> str:
    planned = [step for report in reports for step in report.planned]
    changes = [change for step in planned for change in step.changes]
    unknown = sum(step.status == "unknown" for step in planned)
    if not changes and not unknown:
        return f"[green]Nothing to change[/]: {len(planned)} steps, all as expected."
    counts: Counter[str] = Counter(change.action for change in changes)
    parts = [f"{counts[action]} to {action}" for action in SIGN if counts[action]]
    disruptive = sum(change.disruptive for change in changes)
    if disruptive:
        parts.append(f"[bold red]{disruptive} disruptive[/]")
    if unknown:
        parts.append(f"{unknown} known later")
    return f"\n[bold]Plan[/]: {', '.join(parts)}."
