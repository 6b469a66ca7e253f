"""The rollout that the options of `provision` ask for: a new one in batches, or the one that stopped last."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from msgspec.structs import replace

from rigwright.cli import runner
from rigwright.cli.options import ProvisionOptions
from rigwright.core.errors import UsageError
from rigwright.core.numbers import whole
from rigwright.fleet import journal
from rigwright.fleet import rollout as rollouts
from rigwright.fleet.rollout import Rolling, Rollout


def rollout(options: ProvisionOptions, run_id: str) -> tuple[ProvisionOptions, Rolling | None]:
    """The options that count and the rollout that they ask for, None when only `--reboots` is given. Raises
    UsageError."""
    reboots = whole("--reboots", options.reboots, 1, "hosts") if options.reboots else 1
    most = whole("--max-fail", options.max_fail, 0, "hosts") if options.max_fail else None
    if options.resume:
        return _resumed(options, most, reboots, run_id)
    if not options.serial and most is None and not options.executor:
        return options, None
    inventory = str(runner.inventory_path(options.inventory).resolve())
    playbook = str(runner.playbook(options.playbook, "provision").resolve())
    if most is None and options.serial:
        most = 0
    state = Rollout(run_id, inventory, playbook, options.host or "", options.tags, most, reboots, (), runs=(run_id,))
    return options, Rolling(state, rollouts.sizes(options.serial or "100%"))


def _resumed(
    options: ProvisionOptions, most: int | None, reboots: int, run_id: str
) -> tuple[ProvisionOptions, Rolling]:
    """The options of the rollout that stopped last. Raises UsageError when other options contradict them."""
    if options.serial:
        raise UsageError("--resume", "keeps the batches of the rollout that stopped", "--resume without --serial")
    state = journal.stopped()
    given = {
        "--inventory": (options.inventory and str(Path(options.inventory).resolve()), state.inventory),
        "--playbook": (
            options.playbook and str(runner.playbook(options.playbook, "provision").resolve()),
            state.playbook,
        ),
        "--host": (options.host or "", state.host),
        "--tags": (options.tags, state.tags),
    }
    for option, (typed, old) in given.items():
        if typed and typed != old:
            found = f"the rollout that stopped (run {state.run}) was of {option} {old or 'without'}, not {typed}"
            todo = f"leave {option} out; or begin a new rollout: --serial in place of --resume"
            raise UsageError("--resume", found, "the options of the same rollout", todo)
    state = replace(state, runs=(*state.runs, run_id))
    if most is not None:
        state = replace(state, max_fail=most)
    if options.reboots:
        state = replace(state, reboots=reboots)
    hosts = ",".join(state.hosts)
    same = dataclasses.replace(options, inventory=state.inventory, playbook=state.playbook, host=hosts, tags=state.tags)
    return same, Rolling(state)
