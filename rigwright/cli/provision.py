"""`invoke provision`: plans all hosts, asks, and provisions them at once or in batches."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rigwright.cli import runner
from rigwright.cli.options import ProvisionOptions

if TYPE_CHECKING:
    from rigwright.engine.report import HostReport
    from rigwright.fleet.host_job import HostJob
    from rigwright.fleet.rollout import Rolling


def provision(options: ProvisionOptions) -> int:
    """Provisions the hosts, at once or in batches; returns the exit code."""

    def prepare(run_id: str) -> runner.HostCommand:
        counted, rolling = _rollout(options, run_id)
        options.check_wheels()

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
            rolling.state.reboots if rolling else int(options.reboots or 1),
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
    if not any((options.reboots, options.max_fail, options.resume, options.serial, options.executor)):
        return options, None
    from rigwright.cli import rollout_options

    return rollout_options.rollout(options, run_id)


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
