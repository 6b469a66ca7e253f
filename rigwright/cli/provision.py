"""`invoke provision`: plans all hosts, asks, and provisions them at once or in batches."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from rigwright.cli import runner
from rigwright.cli.given_inventory import inventory_path
from rigwright.cli.options import ProvisionOptions
from rigwright.core.errors import UsageError

if TYPE_CHECKING:
    from rigwright.engine.report import HostReport
    from rigwright.fleet.host_job import HostJob
    from rigwright.fleet.rollout import Rolling


def provision(options: ProvisionOptions) -> int:
    """Provisions the hosts, at once or in batches; returns the exit code."""

    def prepare(run_id: str) -> runner.HostCommand:
        counted, rolling = _rollout(options, run_id)

        def act(jobs: list[Any], text: Any) -> None:
            from rigwright.cli import provision_hosts

            provision_hosts.provision(jobs, text, counted, rolling)

        def by_workers(jobs: list[Any], text: Any, slices: Any) -> None:
            from rigwright.cli import provision_hosts

            assert rolling
            provision_hosts.by_workers(jobs, text, slices, rolling)

        return runner.HostCommand(
            counted,
            act,
            runner.playbook(counted.playbook, "provision"),
            counted.tag_names,
            options.disrupt,
            rolling.state.reboots if rolling else options.reboots or 1,
            restart=restart_words(options.command, options.yes),
            rollout=rolling,
            by_workers=by_workers,
            afterwards=lambda jobs, text: _hint_at_training(jobs, text, counted.playbook),
            exit_code=exit_code,
        )

    return runner.run(options, prepare)


def _hint_at_training(jobs: list[HostJob], text: Any, playbook: str) -> None:
    """Says what `train` would add to hosts that this run has proved with its own playbook."""
    if not playbook:
        from rigwright.cli import train_hint

        proved = (job.host for job in jobs if not job.report.bad and job.report.status != "not_attempted")
        train_hint.say(proved, text, "provision")


def _rollout(options: ProvisionOptions, run_id: str) -> tuple[ProvisionOptions, Rolling | None]:
    """The options that count and the rollout that they ask for, None when the hosts are provisioned at once. Raises
    UsageError."""
    if options.resume:
        return _resumed(options, run_id)
    if not options.serial and options.max_fail is None and not options.executor:
        return options, None
    from rigwright.fleet.rollout import Rolling, Rollout

    inventory = str(inventory_path(options.inventory).resolve())
    playbook = str(runner.playbook(options.playbook, "provision").resolve())
    most = 0 if options.max_fail is None and options.serial else options.max_fail
    subject = (inventory, playbook, options.host or "", options.tags)
    state = Rollout(run_id, *subject, most, options.reboots or 1, (), runs=(run_id,))
    return options, Rolling(state, options.serial or ("100%",))


def _resumed(options: ProvisionOptions, run_id: str) -> tuple[ProvisionOptions, Rolling]:
    """The options of the rollout that stopped last. Raises UsageError when other options contradict them."""
    from rigwright.fleet import journal
    from rigwright.fleet.rollout import Rolling

    if options.serial:
        found, expected = "keeps the batches of the rollout that stopped", "--resume without --serial"
        raise UsageError(
            "--resume", found, expected, "leave --serial out; or leave --resume out to begin a new rollout"
        )
    state = journal.stopped()
    playbook = options.playbook and str(runner.playbook(options.playbook, "provision").resolve())
    for option, typed, old in (
        ("--inventory", options.inventory and str(Path(options.inventory).resolve()), state.inventory),
        ("--playbook", playbook, state.playbook),
        ("--host", options.host, state.host),
        ("--tags", options.tags, state.tags),
    ):
        if typed and typed != old:
            found = f"the rollout that stopped (run {state.run}) was of {option} {old or 'without'}, not {typed}"
            todo = f"leave {option} out; or begin a new rollout: --serial in place of --resume"
            raise UsageError("--resume", found, "the options of the same rollout", todo)
    state = replace(
        state,
        runs=(*state.runs, run_id),
        max_fail=state.max_fail if options.max_fail is None else options.max_fail,
        reboots=options.reboots or state.reboots,
    )
    hosts = ",".join(state.hosts)
    same = dataclasses.replace(options, inventory=state.inventory, playbook=state.playbook, host=hosts, tags=state.tags)
    return same, Rolling(state)


def restart_words(command: str, yes: bool) -> tuple[str, ...]:
    """The words that start this process again: those that were typed, with --yes, because nobody answers after the
    reboot.

    () where the process was not started with the command.
    """
    words = list(sys.orig_argv)
    if command not in words:
        return ()
    words[0] = sys.executable
    if not yes:
        words.insert(words.index(command) + 1, "--yes")
    return tuple(words)


def exit_code(report: HostReport) -> int:
    """What a host makes the exit code: 2 also when it still needs a test, because it is not proved then.

    If the inventory itself says `p2p_wheels: none`, or splits GPUs with `mig`, its owner has decided against the test:
    the report says that it is required, and the code is 0.
    """
    mig = report.host.variables.get("mig")
    decided = report.host.variables.get("p2p_wheels") == "none" or (isinstance(mig, Mapping) and any(mig.values()))
    return report.exit_code or (2 if report.required_tests and not decided else 0)
