"""What the Invoke tasks do, each a function from the command line's words to an exit code."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rigwright import asking, binding, showing
from rigwright.errors import RigwrightError, UsageError
from rigwright.figures import count
from rigwright.report.output import Output
from rigwright.showing import Said

if TYPE_CHECKING:
    from concurrent.futures import Executor
    from contextlib import AbstractContextManager

Act = Callable[[list[Any], Any, Said], None]
"""What a command does with its hosts: the work of each, the writer of text, and the words of the command line."""

ROOT = Path(__file__).parent.parent
_READ_ONLY = ("plan", "verify", "facts", "accept", "fleet.check", "fleet.report")


def run(
    said: Said,
    describe: Callable[[str, str], str] | None = None,
    act: Act | None = None,
    before: Callable[[], object] = int,
) -> int:
    """provision, plan, verify, facts, limits or accept, on the hosts that a pattern names; returns the exit code.

    `describe` is offered a USER@ADDRESS that the inventory does not have; it returns the name it has then, or "".
    `act` is what another command does with the hosts, quietly; a host whose variables are wrong is one that failed.
    `before` raises UsageError for that command's own words.
    """
    from rigwright.fleet import HostReport
    from rigwright.report import document, ending

    run_id = time.strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(2)
    asked, rolled = document.Asked(), None
    files = ending.Files(said.json, said.html, said.prometheus, said.reload)
    reports: list[HostReport] = []
    error: RigwrightError | None = None
    output = Output(sys.stderr if said.json == "-" else sys.stdout)
    try:
        before()
        said, rolled = _rollout(said, run_id)
        path = binding.playbook(said.command, said.playbook, said.reset)
        asked = replace(
            asked, playbook=showing.short(path) if path else "", inventory=showing.short(inventory_path(said.inventory))
        )
        ending.insist(files)
        if said.watch and (said.json or said.html):
            raise UsageError("--watch", "a watch has no end, and --json and --html write what was found", "one of them")
        if said.watch and said.executor:
            raise UsageError("--watch", "looks at hosts from this machine, and --executor from others", "one of them")
        if said.host and "@" in said.host:
            said = replace(said, host=_named(said.host, said.inventory, describe))
        with _workers(said.executor) as executor:
            code = _run(said, run_id, reports, output, path, act, rolled, executor)
    except RigwrightError as found:
        error, code = found, found.exit_code
        output.text.error(found)
    except KeyboardInterrupt:
        code = 130
        _interrupted(said.command, reports, bool(rolled and rolled.state.batches), output.text)
    made = document.document(said.command, run_id, code, error, reports, asked)
    if rolled:
        made["rollout"] = rolled.told()
    if reports:
        ending.remember(made, output)
    failed = ending.write(made, files, output)
    return code or failed


def _interrupted(command: str, reports: Sequence[Any], rollout: bool, text: Any) -> None:
    """Says what became of the hosts of a run that somebody stopped."""
    from rigwright import patterns

    if command in _READ_ONLY or not reports:
        text.line(f"\n[bold]interrupted[/]: {'nothing was changed' if reports else 'nothing was connected to'}")
        return
    half = [(one.host.name, one.error) for one in reports if one.error is not None]
    for one in reports:
        one.status = "not_attempted" if one.status == "pending" else one.status
    kinds = {
        "done": [one.host.name for one in reports if one.error is None and one.status in ("ok", "changed", "failed")],
        "not done": [name for name, _ in half],
        "not attempted": [one.host.name for one in reports if one.error is None and one.status == "not_attempted"],
    }
    text.errors(half)
    told = [f"{kind}: {patterns.folded(names)}" for kind, names in kinds.items() if names]
    text.line("\n[bold]interrupted[/]")
    for words in told:
        text.plain(f"  {words}")
    text.line(f"  do: {'invoke provision --resume' if rollout else 'the same command goes on from there'}")


def _workers(address: str) -> AbstractContextManager[Executor | None]:
    """Who connects to the hosts: workers elsewhere, or None for threads of this process. Raises as workers.executor."""
    if not address:
        return nullcontext()
    from rigwright import workers

    return workers.executor(address)


def _password(output: Output, host: str) -> str:
    with output.text.paused():
        return asking.password(host)


def _rollout(said: Said, run_id: str) -> tuple[Said, Any]:
    """The words as they count, and the rollout that they ask for, None for none. Raises UsageError."""
    if said.command != "provision" or not (said.serial or said.max_fail or said.resume or said.reboots):
        return said, None
    from rigwright import rolling

    return rolling.asked(
        said, run_id, inventory_path(said.inventory), binding.playbook(said.command, said.playbook, False)
    )


def _only_looked_at(host: Any, said: Said) -> bool:
    """Whether a host's steps do not matter: of one that was never provisioned, and while it is watched."""
    never = not said.playbook and "driver" not in host.variables
    return said.watch or (said.command in ("verify", "fleet.report") and never)


def _refuse(said: Said) -> None:
    """Raises UsageError for options that do not go together."""
    if said.quick and "p2p" in said.tagged:
        raise UsageError("--quick", "leaves the peer-to-peer test out, and --tags asks for it", "one of them")
    if said.wheels not in ("", "fetch", "none") and not Path(said.wheels).expanduser().is_dir():
        raise UsageError("--wheels", f"{said.wheels} is no directory", "a directory with wheels, fetch, or none")
    if _programs(said) and "p2p" not in said.tagged:
        option = "--nccl-tests" if said.nccl_tests else "--python"
        raise UsageError(option, "belongs to the peer-to-peer test in full", f"--tags p2p {option}")
    if said.watch and _programs(said):
        raise UsageError("--watch", "only looks, again and again, and runs no programs", "one of them")


def _run(
    said: Said,
    run_id: str,
    reports: list[Any],
    output: Output,
    path: Path | None,
    other: Act | None,
    rolled: Any,
    executor: Executor | None,
) -> int:
    from rigwright import fleet
    from rigwright.hostrun import Options

    _refuse(said)
    found = read_inventory(said.inventory)
    if rolled:
        rolled.insist(found.hosts)
    hosts = [found.only()] if said.host is None else found.select(said.host)
    looked_at = frozenset(one.name for one in hosts if _only_looked_at(one, said))
    bound, refused = binding.bind(path, found, hosts, said.tagged, bool(other), looked_at)
    bound = rolled.to_do(bound) if rolled else bound
    output.inventory, output.many = showing.short(found.path), len(bound) > 1
    ask = partial(_password, output) if asking.on_terminal() and sys.stderr.isatty() else None
    emit = output.unsaid if other else output.event
    reboots = rolled.state.reboots if rolled else int(said.reboots or 1)
    options = Options(run_id, said.disrupt, reboots=reboots, root=not said.as_user)
    stage = fleet.unseen if said.watch else output.stage
    work = fleet.prepare(bound, options, emit, ask, executor, stage)
    reports.extend(one.report for one in work)
    for one in reports:
        one.error = refused.get(one.host.name)
        one.status = "failed" if one.error else one.status
    try:
        if executor is None:  # workers elsewhere connect for themselves
            fleet.run_hosts(work, fleet.connect, doing="connecting", meanwhile=lambda: _loaded(output))
        text = output.text
        if said.watch:
            from rigwright import watch

            watch.watch(work, text, output.stream.isatty())
        (other or _ACTS.get(said.command) or partial(_provision, rolled=rolled))(work, text, said)
        if said.command in ("provision", "verify") and (said.json or said.html):
            from rigwright.report import machine

            machine.describe([one for one in work if one.report.status != "not_attempted"])
    finally:
        fleet.close(work)
    if wrong := [(one.host, one.error) for one in reports if one.error is not None]:
        from rigwright import hints

        lab = ROOT / ".lab" / "inventory"
        output.text.errors([(host.name, hints.hinted(error, host, found.path, lab)) for host, error in wrong])
    return _exit_code([report.exit_code for report in reports])


def _loaded(output: Output) -> None:
    """What comes after the hosts' answers is loaded while they are waited for: rich, SQLite."""
    from rigwright import history  # noqa: F401

    output.text  # noqa: B018


def _named(address: str, inventory: str, describe: Callable[[str, str], str] | None) -> str:
    """The name of the host at USER@ADDRESS. Raises UsageError that says how a new machine is described."""
    for name, one in read_inventory(inventory).hosts.items():
        if address == one.login:
            return str(name)
    name = describe(address, inventory) if describe and asking.on_terminal() else ""
    if not name:
        flag = f" --inventory {inventory}" if inventory else ""
        todo = f"invoke init --host NAME --address {address}{flag}"
        raise UsageError(f"--host {address}", "is not in the inventory", "a machine that it describes", todo)
    return name


def _exit_code(codes: Sequence[int]) -> int:
    return next((code for code in (130, 1, 3, 2) if code in codes), 0)


def _provision(work: list[Any], text: Any, said: Said, rolled: Any) -> None:
    from rigwright import rolling

    rolling.provision(work, text, said, rolled)


def _plan(work: list[Any], text: Any, _said: Said) -> None:
    from rigwright import fleet

    fleet.run_hosts(work, fleet.plan, doing="planning")
    text.plans([one.report for one in work if one.report.error is None])


def _verify(work: list[Any], text: Any, said: Said) -> None:
    from rigwright import fleet

    asked, others = None, _programs(said) or None
    if not said.quick:
        from rigwright.p2p import AS_THE_INVENTORY_SAYS, Asked

        named = "p2p" in said.tagged
        usual = AS_THE_INVENTORY_SAYS if named and not others else ""
        asked = Asked(not named, said.busy, said.wheels or usual, bool(others))
    fleet.run_hosts(work, partial(fleet.prove, asked=asked, others=others), doing="looking at the steps")
    for one in work:
        if one.report.error is None:
            text.findings(one.report)
            showing.peers(one, text)
            bad, good = one.report.wrong, one.report.passed
            steps = sum(step.status == "ok" for step in one.report.planned)
            mark = f"[bold red]{count(bad, 'finding')}[/]" if bad else "[bold green]as wanted[/]"
            hold = f"{count(steps, 'step')} and {count(good, 'check')} hold"
            text.line(f"[bold]{one.report.host.name}[/]: {mark}; {hold}")


def _programs(said: Said) -> Any:
    """The programs that are not ours and that were asked for; false where none is. Raises UsageError."""
    if not (said.nccl_tests or said.python):
        return ()
    from rigwright.programs import Programs

    return Programs(said.nccl_tests, said.python, said.busy)


_ACTS: dict[str, Act] = {
    "facts": showing.facts,
    "plan": _plan,
    "verify": _verify,
    "limits": showing.limits,
    "accept": showing.accept,
}


def read_inventory(given: str) -> Any:
    """The inventory that --inventory, RIGWRIGHT_INVENTORY or ./inventory names. Raises InputError."""
    from rigwright import inventory

    return inventory.read(inventory_path(given))


def inventory_path(given: str) -> Path:
    """What --inventory, RIGWRIGHT_INVENTORY or ./inventory names."""
    return Path(given or os.environ.get("RIGWRIGHT_INVENTORY") or "inventory")
