"""What the Invoke tasks do, each a function from the command line's words to an exit code."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rigwright import asking
from rigwright.errors import HostError, RigwrightError, Unreachable, UsageError
from rigwright.report.output import Output

ROOT = Path(__file__).parent.parent
PLAYBOOKS = ROOT / "playbooks"


def run(
    command: str,
    *,
    host: str | None = None,
    playbook: str = "",
    inventory: str = "",
    yes: bool = False,
    json: str = "",
    tags: str = "",
    disrupt: bool = False,
    show: bool = False,
    reset: bool = False,
    watch: bool = False,
    describe: Callable[[str, str], str] | None = None,
) -> int:
    """provision, plan, verify, facts or limits, on the hosts that a pattern names; returns the exit code.

    `describe` is offered a USER@ADDRESS that the inventory does not have; it returns the name it has then, or "".
    """
    from rigwright.fleet import HostReport
    from rigwright.report import document

    run_id = time.strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(2)
    reports: list[HostReport] = []
    stream = sys.stderr if json == "-" else sys.stdout
    error: RigwrightError | None = None
    output = Output(stream)
    try:
        if host and "@" in host:
            host = _named(host, inventory, describe)
        if watch and json:
            raise UsageError("--watch", "--json writes one document, and a watch has no end", "one of the two")
        code = _run(command, run_id, reports, output, host, playbook, inventory, yes, tags, disrupt, show, reset, watch)
    except RigwrightError as found:
        error, code = found, found.exit_code
        output.text.error(found)
    except KeyboardInterrupt:
        code = 130
        jobs = (
            "nothing was changed"
            if command in _READ_ONLY
            else "jobs that were started on a host go on there; the same command finds them"
        )
        output.text.line(f"\n[bold]interrupted[/]: {jobs if reports else 'nothing was connected to'}")
    if json:
        made = document.document(command, run_id, code, error, reports)
        if json == "-":
            print(document.dumps(made))
        else:
            try:
                document.write(made, json)
            except OSError as failed:
                output.text.error(
                    UsageError(
                        "--json", f"{json} cannot be written ({failed.strerror})", "a file in a directory that is there"
                    )
                )
                code = code or 1
    return code


_READ_ONLY = ("plan", "verify", "facts")


def _run(
    command: str, run_id: str, reports: list[Any], output: Output, host: str | None, playbook: str, inventory: str,
    yes: bool, tags: str, disrupt: bool, show: bool, reset: bool, watch: bool,
) -> int:  # fmt: skip
    from rigwright import fleet
    from rigwright import playbook as playbooks
    from rigwright import watch as watching
    from rigwright.apply import Options
    from rigwright.report.facts import show as show_facts

    found = read_inventory(inventory)
    hosts = [found.only()] if host is None else found.select(host)
    name = (
        "limits-reset"
        if reset
        else {"facts": "", "limits": "limits", "verify": "provision", "plan": "provision"}.get(command, command)
    )
    path = Path(playbook) if playbook else PLAYBOOKS / f"{name}.yml"
    wanted = frozenset(word.strip() for word in tags.split(",") if word.strip())
    if command == "facts":
        bound = [playbooks.Bound(one, (), ()) for one in hosts]
    else:
        if not path.is_file():
            raise UsageError("--playbook", f"{path} is not there", "a playbook file", f"ls {PLAYBOOKS.name}/")
        looks = command == "verify" and not playbook
        bound = [
            playbooks.bind(path, found, one, wanted, checks_only=watch or (looks and "driver" not in one.variables))
            for one in hosts
        ]
        _something(bound, path, wanted)
    output.inventory, output.many = _short(found.path), len(hosts) > 1
    ask = asking.password if asking.on_terminal() and sys.stderr.isatty() else None
    work = fleet.prepare(bound, Options(run_id, disrupt), lambda event: output.text.event(event), ask)
    reports.extend(one.report for one in work)
    try:
        fleet.on_all(work, fleet.connect, meanwhile=lambda: output.text)
        text = output.text
        act = {"facts": show_facts, "plan": _plan, "verify": _verify, "limits": _limits}.get(command, _provision)
        if watch:
            watching.watch(work, text, output.stream.isatty())
        act(work, text, yes, show)
    finally:
        fleet.close(work)
    for report in reports:
        if report.error is not None:
            output.text.error(_with_lab_hint(report.error, report.host.name, found.path), report.host.name)
    return _exit_code([report.exit_code for report in reports])


def _named(address: str, inventory: str, describe: Callable[[str, str], str] | None) -> str:
    """The name of the host at USER@ADDRESS. Raises UsageError that says how a new machine is described."""
    for name, one in read_inventory(inventory).hosts.items():
        if address == f"{one.variables.get('ansible_user', '')}@{one.address}":
            return str(name)
    name = describe(address, inventory) if describe and asking.on_terminal() else ""
    if not name:
        flag = f" --inventory {inventory}" if inventory else ""
        todo = f"invoke init --host NAME --address {address}{flag}"
        raise UsageError(f"--host {address}", "is not in the inventory", "a machine that it describes", todo)
    return name


def _something(bound: Sequence[Any], path: Path, tags: frozenset[str]) -> None:
    from rigwright.yamlfile import did_you_mean

    known = {tag for one in bound for tag in one.tags}
    for tag in sorted(tags - known):
        raise UsageError(
            "--tags",
            f"no step of {path} has the tag '{tag}'{did_you_mean(tag, known)}",
            ", ".join(sorted(known)) or "no tags",
        )
    if any(one.steps or one.checks for one in bound):
        return
    if tags:
        raise UsageError(
            "--tags", f"no step of {path} has the tag {', '.join(sorted(tags))}", "a tag that the playbook has"
        )
    names = ", ".join(one.host.name for one in bound)
    raise UsageError("--host", f"no play of {path} is for {names}", "a host that a play's `hosts:` names")


def _exit_code(codes: Sequence[int]) -> int:
    return next((code for code in (130, 1, 3, 2) if code in codes), 0)


def _provision(work: list[Any], text: Any, yes: bool, _show: bool) -> None:
    from rigwright import fleet

    fleet.on_all(work, fleet.plan)
    alive = [one for one in work if one.report.error is None]
    text.plans([one.report for one in alive])
    pending = [one for one in alive if one.report.status == "pending"]
    if pending:
        _consent(yes)
        fleet.on_all(pending, fleet.apply)
    fleet.on_all(alive, fleet.check)
    for one in alive:
        if one.report.error is None:
            text.findings(one.report)
            text.line(_closing(one.report))


def _closing(report: Any) -> str:
    bad = sum(finding.verdict in ("fail", "unknown") for finding in report.findings)
    good = sum(finding.verdict == "pass" for finding in report.findings)
    changes = sum(len(changes) for changes in report.outcome.done.values()) if report.outcome else 0
    mark = (
        f"[bold red]{bad} of {bad + good} checks failed[/]"
        if bad
        else f"[bold green]proved by {_count(good, 'check')}[/]"
    )
    return f"[bold]{report.host.name}[/]: {_count(changes, 'change')}, {mark}, {report.seconds:.1f} s"


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _consent(yes: bool) -> None:
    if yes:
        return
    asking.insist(
        "consent", "Make these changes?", "the same command with --yes", "the answer was no; nothing was changed"
    )


def _plan(work: list[Any], text: Any, _yes: bool, _show: bool) -> None:
    from rigwright import fleet

    fleet.on_all(work, fleet.plan)
    text.plans([one.report for one in work if one.report.error is None])


def _verify(work: list[Any], text: Any, _yes: bool, _show: bool) -> None:
    from rigwright import fleet

    fleet.on_all(work, fleet.look)
    fleet.on_all(work, fleet.check_all)
    for one in work:
        if one.report.error is None:
            text.findings(one.report)
            bad = sum(finding.verdict in ("fail", "unknown") for finding in one.report.findings)
            steps = sum(step.status == "ok" for step in one.report.planned)
            good = sum(finding.verdict == "pass" for finding in one.report.findings)
            mark = f"[bold red]{_count(bad, 'finding')}[/]" if bad else "[bold green]as wanted[/]"
            hold = f"{_count(steps, 'step')} and {_count(good, 'check')} hold"
            text.line(f"[bold]{one.report.host.name}[/]: {mark}; {hold}")


def _limits(work: list[Any], text: Any, yes: bool, show: bool) -> None:
    from rigwright import fleet
    from rigwright.report.limits import rows

    fleet.on_all(work, fleet.plan)
    if not show:
        changes = [change for one in work for step in one.report.planned for change in step.changes]
        if any(change.disruptive or change.leads_to or change.action != "change" for change in changes):
            text.plans([one.report for one in work if one.report.error is None])
            _consent(yes)  # a playbook of the user's own, that does more than limits
        fleet.on_all(work, fleet.apply)

    def table(one: Any) -> None:
        one.report.rows = rows(one.run, one.bound)

    fleet.on_all(work, table)
    for one in work:
        if isinstance(one.report.error, HostError):
            with contextlib.suppress(RigwrightError):
                table(one)  # one GPU that refuses is no reason not to show the others
        if one.report.rows:
            text.limits(one.report)
        if one.report.error is None:
            done = sum(len(changes) for changes in one.report.outcome.done.values()) if one.report.outcome else 0
            said = (
                "drift" if one.report.status == "pending" else _count(done, "change") if done else "nothing to change"
            )
            text.line(f"[bold]{one.report.host.name}[/]: {said}")


def read_inventory(given: str) -> Any:
    """The inventory that --inventory, RIGWRIGHT_INVENTORY or ./inventory names. Raises InputError."""
    from rigwright import inventory

    return inventory.read(Path(given or os.environ.get("RIGWRIGHT_INVENTORY") or "inventory"))


def _short(path: Path) -> str:
    full = path.resolve()
    return str(full.relative_to(Path.cwd())) if full.is_relative_to(Path.cwd()) else str(full)


def _with_lab_hint(error: RigwrightError, host: str, path: Path) -> RigwrightError:
    lab = ROOT / ".lab" / "inventory"
    if not isinstance(error, Unreachable) or path.resolve() == lab.resolve() or not (lab / "hosts.yml").is_file():
        return error
    from rigwright import inventory

    if host not in inventory.read(lab).hosts:
        return error
    hint = f"the lab has a host of that name: add --inventory {_short(lab)}"
    error.todo = f"{error.todo}; {hint}" if error.todo else hint
    return error
