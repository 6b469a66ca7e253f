"""Runs a command on the hosts of the inventory, and writes its JSON document and its report."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from rigwright.cli import slice_command
from rigwright.cli.given_inventory import inventory_path, read_inventory
from rigwright.cli.options import HostsOptions
from rigwright.core import exit_codes, host_ranges, run_ids
from rigwright.core.errors import Interrupted, RigwrightError, Unreachable, UsageError, unexpected
from rigwright.core.files import shipped_files
from rigwright.core.process import interruption, prompt
from rigwright.core.process.program_name import program_name
from rigwright.engine.report import NcclTestResult
from rigwright.report.lazy_terminal import Output

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from rigwright.cli.on_workers import Slices
    from rigwright.engine.host_run import HostRun
    from rigwright.engine.playbook import BoundPlaybook
    from rigwright.engine.report import HostReport
    from rigwright.fleet.dask_workers import Workers
    from rigwright.fleet.rollout import Rolling
    from rigwright.inventory.model import Host, Inventory
    from rigwright.report.output_files import Files
    from rigwright.ssh.transport import Transport

SWITCH_S = 0.001
"""The threads take turns this often while they connect and this one imports: a login needs many short turns."""

Act = Callable[[list[Any], Any], None]
"""What a command does with its connected hosts; it writes to the text output."""


def _by_workers(runs: list[Any], _text: Any, slices: Slices) -> None:
    """Lets workers run the command: first without --yes, so that it ends with its question where it would change
    something.

    After a yes here they run it with --yes.
    """
    slices.give_out(runs, yes=False)
    if slices.question:
        consent(slices.yes, slices.question)
    slices.give_out([run for run in runs if run.host.name not in slices.finished])


class HostCommand(Struct, frozen=True):
    """How a command uses the hosts. `options` are those that count: of the rollout when one is resumed.

    `tolerant`: a mistake in the variables of one host does not stop the others. `quiet`: no event is shown.
    `checks_only`: whether the steps of the playbook are left out for a host. `before_connecting` gets the inventory and
    the bound playbooks, and may raise an error. `afterwards` is called with all hosts after `act`, on this machine.
    `by_workers` is called with --executor in place of `act`. `looked_up`: the facts whose earlier values `act` reads.
    `exit_code`: the exit code for the report of a host.
    """

    options: HostsOptions
    act: Act
    playbook: Path | None = None
    tags: frozenset[str] = frozenset()
    disrupt: bool = False
    reboots: int = 1
    root: bool = True
    restart: tuple[str, ...] = ()
    tolerant: bool = False
    quiet: bool = False
    watch: bool = False
    checks_only: Callable[[Any], bool] = lambda _host: False
    rollout: Rolling | None = None
    before_connecting: Callable[[Any, Sequence[Any]], object] = lambda _inventory, _bound: None
    afterwards: Act = lambda _jobs, _text: None
    by_workers: Callable[[list[Any], Any, Slices], None] = _by_workers
    looked_up: tuple[str, ...] = ()
    exit_code: Callable[[HostReport], int] = attrgetter("exit_code")


def run(
    options: HostsOptions, prepare: Callable[[str], HostCommand], files: Files | None = None, *, to_stderr: bool = False
) -> int:
    """Runs a command on the hosts that --host names; returns the exit code. However it ends, its end is recorded.

    `prepare` gets the id of the run, checks the options of the command and says what to do. It may raise UsageError.
    `to_stderr`: what is said to a person goes to stderr, because stdout is for a program.
    """
    started = datetime.datetime.now(datetime.timezone.utc)
    run_id = slice_command.here.order["runs"][-1] if slice_command.here else run_ids.new()
    command: HostCommand | None = None
    runs: list[HostRun] = []
    error: RigwrightError | None = None
    interrupted = False
    apart = (to_stderr or (files.json if files else options.json) == "-") and not slice_command.here
    output = Output(sys.stderr if apart else sys.stdout)
    try:
        command = prepare(run_id)
        code = _run(command, run_id, runs, output, files)
    except RigwrightError as stopped:
        error, code = stopped, stopped.exit_code
    except KeyboardInterrupt:
        interrupted, code = True, exit_codes.INTERRUPTED
    except BaseException as other:  # also SystemExit of a library, and no memory
        error, code = unexpected(options.command, other), exit_codes.ERROR
    with interruption.held():
        from rigwright.report import json_document, output_files

        if error and not slice_command.here:
            output.text.error(error)
        elif interrupted and not slice_command.here:
            _show_interruption(options.changes_hosts, runs, command.rollout if command else None, output.text)
        reports = [run.report for run in runs]
        playbook = short(command.playbook) if command and command.playbook else ""
        inventory = short(inventory_path(command.options.inventory)) if command else ""
        metadata = json_document.RunMetadata(started, playbook, inventory)
        document = json_document.document(options.command, run_id, code, error, reports, metadata)
        if slice_command.here:
            slice_command.here.end(document, runs)
            return code
        if command and command.rollout:
            document["rollout"] = command.rollout.as_json()
        if reports:
            output_files.record(document, output)
        failed = output_files.write(document, files or output_files.Files.of(options), output)
    return code or failed


def _show_interruption(changes_hosts: bool, runs: Sequence[Any], rollout: Rolling | None, text: Any) -> None:
    """Shows which hosts are done, not done and not attempted, and how the run is continued."""
    from rigwright.fleet import pool

    if not changes_hosts or not runs:
        text.line(f"\n[bold]interrupted[/]: {'nothing was changed' if runs else 'nothing was connected to'}")
        return
    pool.leave_out([run for run in runs if run.report.status == "pending"])
    kinds: dict[str, list[str]] = {"done": [], "not done": [], "not attempted": []}
    for run in runs:
        not_attempted = "not attempted" if run.report.status == "not_attempted" else "done"
        kinds["not done" if run.report.error else not_attempted].append(run.host.name)
    errors = [(run.host.name, run.report.error) for run in runs if run.report.error]
    # An interruption without an expected value has the fix of the whole run, which is shown once.
    same = [(name, isinstance(error, Interrupted) and not error.expected, error) for name, error in errors]
    text.errors([(name, Interrupted(error.where, error.found) if of_run else error) for name, of_run, error in same])
    text.line("\n[bold]interrupted[/]")
    for kind, names in kinds.items():
        if names:
            text.plain(f"  {kind}: {host_ranges.folded(names)}")
    resume = f"{program_name()} provision --resume" if rollout is not None and rollout.state.batches else ""
    if names := [run.host.name for run in runs if run.report.requires_test]:
        runs_it = resume or "the same command"
        text.plain(f"  required: the peer-to-peer test of {host_ranges.folded(names)}; {runs_it} runs it")
    text.line(f"  fix: {resume or 'run the same command again; it continues from there'}")


def _workers(options: HostsOptions) -> AbstractContextManager[Workers | None]:
    """The workers of --executor; None when this process connects to the hosts. Raises UsageError, Unreachable."""
    for option, words in (("--slice", f"--slice {options.slice}"), ("--insecure", "--insecure")):
        if getattr(options, option[2:]) and not options.executor:
            scheme = "tcp" if option == "--insecure" else "tls"
            fix = f"--executor {scheme}://SCHEDULER:8786 {words}; to connect from this machine, leave {option} out"
            raise UsageError(option, "is for --executor, which is not given", f"{option} with --executor", fix)
    if not options.executor:
        return nullcontext()
    from rigwright.fleet import dask_workers

    return dask_workers.connect(options.executor, options.insecure)


def _run(command: HostCommand, run_id: str, runs: list[HostRun], output: Output, files: Files | None) -> int:
    """Connects to the hosts and lets the command act; `runs` has one for each host, also after an error."""
    inventory, hosts = _hosts(command)
    begun = _begun(command, run_id, hosts)
    try:
        # These modules are imported while the hosts connect.
        from rigwright.engine import playbook as playbooks
        from rigwright.fleet import actions, pool, shared_identity
        from rigwright.report import output_files

        output_files.require_writable(files or output_files.Files.of(command.options))
        with _workers(command.options) as workers:
            checks_only = frozenset(each.name for each in hosts if command.checks_only(each))
            bound, refused = playbooks.bind_all(
                command.playbook, inventory, hosts, command.tags, command.tolerant, checks_only
            )
            bound = command.rollout.to_do(bound) if command.rollout else bound
            refused |= slice_command.here.refused(bound) if slice_command.here else {}
            command.before_connecting(inventory, bound)
            output.inventory, output.many = short(inventory.path), len(bound) > 1 or bool(slice_command.here)
            runs.extend(_jobs(command, run_id, bound, output, begun))
            pool.refuse(runs, refused)
            try:
                if workers is not None:
                    from rigwright.cli.on_workers import Slices

                    slices = Slices(command.options, command.playbook, command.looked_up, inventory, workers, output)
                    command.by_workers(runs, output.text, slices)
                else:
                    if len(runs) <= pool.MOST_OPEN:
                        load = partial(_load, runs, output)
                        pool.run_hosts(runs, actions.connect_host, activity="connecting", meanwhile=load, reads=True)
                    else:  # the first action connects
                        _load(runs, output)
                        for run in runs:
                            run.to_connect = True
                    command.act(runs, output.text)
                if slice_command.here is None:
                    _record_commands_of_reads(runs, command)
                    command.afterwards(runs, output.text)
                    for message in shared_identity.name_shared(runs):
                        output.text.warn(message)
            finally:
                pool.close(runs)
    finally:
        for transport in begun.values() if not runs else ():
            transport.abandon()
    if not slice_command.here:
        lab = shipped_files.CHECKOUT / ".lab" / "inventory"
        failed = [(run.host, run.report.error) for run in runs if run.report.error is not None]
        output.text.errors([(host.name, with_hint(error, host, lab)) for host, error in failed])
    return exit_codes.of_hosts({command.exit_code(run.report) for run in runs})


def _jobs(
    command: HostCommand,
    run_id: str,
    bound: Sequence[BoundPlaybook],
    output: Output,
    begun: Mapping[str, Transport],
) -> list[HostRun]:
    """The runs of these hosts. `begun`: the transports that have begun to connect."""
    from rigwright.engine.host_run import Options
    from rigwright.fleet import host_runs

    def password(host_name: str) -> str:
        with output.text.paused():
            return prompt.password(host_name)

    here = slice_command.here
    order = here.order if here else None
    options = Options(
        run_id,
        command.disrupt,
        reboots=order["reboots"] if order else command.reboots,
        root=command.root,
        restart=command.restart,
        restart_title=command.options.command,
        earlier_runs=tuple(order["runs"]) if order else command.rollout.state.runs[:-1] if command.rollout else (),
        announced=order["announced"] if order else None,
    )
    ask_password = password if prompt.on_terminal() and sys.stderr.isatty() else None
    sink = output.progress if command.quiet else output.event
    runs = host_runs.prepare(bound, options, sink, ask_password, nullcontext if command.watch else output.stage, begun)
    if order:
        runs[0].state.lost, runs[0].state.most_failed = order["lost"], order["most_failed"]
    return runs


def _load(runs: Sequence[HostRun], output: Output) -> None:
    """Loads what is needed after the hosts have answered: their baselines from the history, and rich."""
    from rigwright.fleet import host_runs

    host_runs.load_recorded(runs)
    output.text  # noqa: B018


def _hosts(command: HostCommand) -> tuple[Inventory, Sequence[Host]]:
    """The inventory, and the hosts of it that the command is for. Raises InputError, UsageError."""
    host = command.options.host
    inventory = read_inventory(command.options.inventory, command.options.vault_password_file)
    if host and "@" in host:
        host = _name_of_address(host, command.options.inventory)
        inventory = read_inventory(command.options.inventory, command.options.vault_password_file)
    if command.rollout:
        command.rollout.insist(inventory.hosts)
    hosts = [inventory.only()] if host is None else inventory.select(host)
    if command.playbook:
        _require_alone(hosts, command.options)
    return inventory, hosts


def _begun(command: HostCommand, run_id: str, hosts: Sequence[Host]) -> dict[str, Transport]:
    """By host a transport that has begun to connect, for few hosts that the same command has read before."""
    from rigwright.engine import read_ahead

    if command.options.executor or slice_command.here or len(hosts) > read_ahead.MOST_HOSTS:
        return {}
    known = {host.name: read_ahead.recorded_commands(host.name, _same_again(command)) for host in hosts}
    begun: dict[str, Transport] = {}
    for host in hosts:
        if commands := known[host.name]:
            from rigwright.engine import run_owner
            from rigwright.ssh import open_transport

            environment = run_owner.environment(run_id)
            begun[host.name] = open_transport.open_transport(host, environment, None, command.root)
            begun[host.name].begin(commands)
    if begun:
        sys.setswitchinterval(SWITCH_S)
    return begun


def _record_commands_of_reads(runs: Sequence[HostRun], command: HostCommand) -> None:
    """Records with which commands each host was read, where the run read it to its end."""
    from rigwright.engine import read_ahead

    for run in runs if len(runs) <= read_ahead.MOST_HOSTS else ():
        if run.report.error is None and run.asked:
            read_ahead.record(run.host.name, _same_again(command), tuple(run.asked))


def _same_again(command: HostCommand) -> str:
    """A key for runs that read a host with the same commands: the command, its playbook, tags and inventory."""
    paths = [str(path.resolve()) for path in (command.playbook, inventory_path(command.options.inventory)) if path]
    return " ".join([command.options.command, *paths, *sorted(command.tags)])


def _require_alone(hosts: Sequence[Host], options: HostsOptions) -> None:
    """Raises UsageError if this machine has several names, is changed beside other hosts, or is given to workers."""
    local = [each for each in hosts if each.is_this_machine]
    if not local:
        return
    name = local[0].name
    if len(local) > 1:
        problem = f"{' and '.join(each.name for each in local[:4])} are this machine (ansible_connection: local)"
        raise UsageError("--host", problem, "one name for this machine", f"--host {name}")
    if options.changes_hosts and len(hosts) > 1:
        problem = f"{name} is this machine, whose reboot would end the run of the other {len(hosts) - 1}"
        fix = f"--host '{options.host or 'all'}:!{name}', then --host {name}"
        raise UsageError("--host", problem, f"{name} alone, or the others", fix)
    if options.executor:
        problem, expected = f"{name} is this machine, and workers are others", f"--host {name} without --executor"
        raise UsageError("--executor", problem, expected, "leave --executor out")


def _name_of_address(address: str, inventory: str) -> str:
    """The name of the host at USER@ADDRESS; on a terminal a new one can be described. Raises UsageError."""
    for name, host in read_inventory(inventory).hosts.items():
        if address == host.login:
            return str(name)
    name = ""
    if prompt.on_terminal():
        from rigwright.cli import init

        name = init.offer(address, inventory)
    if not name:
        flag = f" --inventory {inventory}" if inventory else ""
        todo = f"invoke init --host NAME --address {address}{flag}"
        raise UsageError(f"--host {address}", "is not in the inventory", "a host of the inventory", todo)
    return name


_EXAMPLES = ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32")
"""Address ranges for documentation: RFC 5737 and RFC 3849."""


def with_hint(error: RigwrightError, host: Host, lab: Path) -> RigwrightError:
    """The error of a host; an unreachable one gets a hint when its address is an example, or when the lab has its name.

    `lab` is where the inventory of the lab would be.
    """
    if not isinstance(error, Unreachable):
        return error
    import ipaddress

    from rigwright import inventory

    with suppress(ValueError):  # the address is a name
        if any(ipaddress.ip_address(host.address) in ipaddress.ip_network(net) for net in _EXAMPLES):
            example = f"{host.address} is an address for examples ({host.where})"
            error.fix = f"{example}; invoke init describes a machine of yours; delete the example from the inventory"
    in_lab = inventory.read(lab).hosts.get(host.name) if (lab / "hosts.yml").is_file() else None
    if in_lab is not None and in_lab.address != host.address:
        hint = f"the lab has a host of that name: add --inventory {short(lab)}"
        error.fix = f"{error.fix}; {hint}" if error.fix else hint
    return error


def consent(yes: bool, question: str) -> None:
    """Asks the question, unless --yes was typed; returns after a yes. Raises ConsentError."""
    if slice_command.here:
        slice_command.here.consent(yes, question)
    elif not yes:
        prompt.insist("consent", question, "the same command with --yes", "the answer was no; nothing was changed")


def short(path: Path) -> str:
    """A path relative to the current folder when it is inside it, else absolute."""
    full = path.resolve()
    return str(full.relative_to(Path.cwd())) if full.is_relative_to(Path.cwd()) else str(full)


def show_result(report: HostReport, text: Any, findings: bool, only_bad: bool = False) -> None:
    """Shows the verdict on a host and its problems, with `findings` every finding instead of the problems.

    The matrices and the scaling table follow if the peer-to-peer test has run. `only_bad`: without findings that
    pass."""
    text.verdict(report)
    if findings:
        text.findings(report, only_bad)
    else:
        text.problems(report)
    if (tested := report.last(NcclTestResult).document) is not None:
        from rigwright.report.tables import nccl

        for line in nccl.lines(tested, text.console.width):
            text.line(line)


def warn_of_age(text: Any) -> None:
    """Shows a warning if the catalogue is older than 90 days."""
    from rigwright import catalogue

    if warning := catalogue.stale(datetime.date.today()):
        text.warn(warning)


def playbook(named: str, default: str) -> Path:
    """The playbook of --playbook, a file or the name of a shipped playbook; otherwise the default one."""
    if not named:
        return shipped_files.folder("playbooks") / f"{default}.yml"
    shipped = {path.stem: path for path in shipped_files.folder("playbooks").glob("*.yml")}
    return Path(named) if named not in shipped or Path(named).is_file() else shipped[named]
