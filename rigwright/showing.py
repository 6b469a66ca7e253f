"""Commands that show: what a host says of itself, and the limits of its GPUs; and what all commands ask and count alike."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rigwright import asking
from rigwright.figures import count


@dataclass(frozen=True)
class Said:
    """The words of a command line. `tags` is as it was typed (a,b); `json`, `html` and `prometheus` name files, "" for none;
    `reload` is after how many seconds a browser reads the page again."""

    command: str
    host: str | None = None
    playbook: str = ""
    inventory: str = ""
    yes: bool = False
    json: str = ""
    html: str = ""
    tags: str = ""
    disrupt: bool = False
    show: bool = False
    reset: bool = False
    quick: bool = False
    busy: bool = False
    wheels: str = ""
    watch: bool = False
    serial: str = ""
    max_fail: str = ""
    reboots: str = ""
    resume: bool = False
    as_user: bool = False
    executor: str = ""
    prometheus: str = ""
    reload: str = ""
    nccl_tests: str = ""
    python: str = ""
    since: str = ""

    @property
    def tagged(self) -> frozenset[str]:
        """The tags, each."""
        return frozenset(word.strip() for word in self.tags.split(",") if word.strip())


def consent(yes: bool) -> None:
    """Somebody said yes, on the command line or on the terminal. Raises ConsentError."""
    if yes:
        return
    asking.insist(
        "consent", "Make these changes?", "the same command with --yes", "the answer was no; nothing was changed"
    )


def short(path: Path) -> str:
    """A path as a person would type it here."""
    full = path.resolve()
    return str(full.relative_to(Path.cwd())) if full.is_relative_to(Path.cwd()) else str(full)


def peers(one: Any, text: Any) -> None:
    """The matrices and the scaling table are shown, where the peer-to-peer test has run."""
    if one.report.p2p is not None:
        from rigwright.report import p2p

        for line in p2p.lines(one.report.p2p):
            text.line(line)


def facts(work: list[Any], text: Any, _said: Said) -> None:
    """Every host's own words are shown."""
    from rich.pretty import Pretty

    from rigwright import fleet
    from rigwright.report.words import as_is

    fleet.run_hosts(work, _read)
    for one in work:
        for name, value in one.report.facts.items():
            why = f"[yellow]unavailable: {as_is(str(value))}[/]"
            text.console.print(f"  [bold]{name}[/]", end=" ")
            text.console.print(why if isinstance(value, Exception) else Pretty(value))


def _read(one: Any) -> None:
    from rigwright.report.facts import SHOWN

    one.run.read(SHOWN)
    one.report.facts = {fact.name: one.run.store.known[fact] for fact in SHOWN}
    one.report.simulated = str(one.report.facts.get("os.simulated", ""))
    one.report.status = "ok"


def limits(work: list[Any], text: Any, said: Said) -> None:
    """The limits are in force (or only shown), and stand in a table."""
    from rigwright import fleet
    from rigwright.crew import despite_errors

    fleet.run_hosts(work, fleet.plan, doing="planning")
    if not said.show:
        changes = [change for one in work for step in one.report.planned for change in step.changes]
        if any(change.disruptive or change.leads_to or change.action != "change" for change in changes):
            text.plans([one.report for one in work if one.report.error is None])
            consent(said.yes)  # a playbook of the user's own, that does more than limits
        fleet.run_hosts(work, fleet.apply, doing="applying")

    with despite_errors(work):  # one GPU that refuses is no reason not to show the others
        fleet.run_hosts(work, _table)
    for one in work:
        if one.report.rows:
            text.limits(one.report)
        if one.report.error is None:
            done = sum(len(changes) for changes in one.report.outcome.done.values()) if one.report.outcome else 0
            told = "drift" if one.report.status == "pending" else count(done, "change") if done else "nothing to change"
            text.line(f"[bold]{one.report.host.name}[/]: {told}")


def _table(one: Any) -> None:
    from rigwright.report.limits import rows

    one.report.rows = rows(one.run, one.bound)


def accept(work: list[Any], text: Any, said: Said) -> None:
    """The findings of the hardware are shown, then the sheet of its cards.

    Peer-to-peer is tested in full, unless that is to be left out; nothing is brought to a host but what was asked for.
    """
    from rigwright import fleet
    from rigwright.p2p import Asked
    from rigwright.report import accepting, machine

    asked = None if said.quick else Asked(False, said.busy, said.wheels)
    fleet.run_hosts(work, partial(fleet.prove, asked=asked, others=None), doing="looking at the steps")
    machine.describe(work)
    for one in work:
        if one.report.error is None:
            text.findings(one.report)
    accepting.show(text.console, [one.report for one in work])
