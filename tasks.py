"""rigwright's commands. `invoke TASK --help` explains each; `invoke --list` names them all."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

# Invoke keeps Python from keeping what it compiled, and a third of a command's time went into compiling it again.
sys.dont_write_bytecode = bool(sys.flags.dont_write_bytecode)
gc.set_threshold(100_000)  # what is loaded stays: looking through it for garbage again and again is 4 % of a command

from invoke import Collection  # noqa: E402

from lab import tasks as lab  # noqa: E402
from rigwright.cli import fleet, history, hosts, machines, mistakes  # noqa: E402

ns = Collection(
    hosts.provision,
    hosts.plan,
    hosts.verify,
    hosts.accept,
    hosts.facts,
    hosts.limits,
    machines.init,
    machines.trust,
    machines.explain,
    Collection("inventory", machines.inventory_list),
    Collection("fleet", fleet.check, fleet.run, fleet.report),
    Collection("history", history.list_, history.show, history.diff, history.set_aside),
    Collection("catalogue", machines.catalogue_check),
    Collection("power", machines.power_plan),
    Collection("lab", lab.up, lab.down, lab.status, lab.fault, lab.heal, lab.ssh_config),
)

if Path(sys.argv[0]).name in ("invoke", "inv", "__main__.py"):
    mistakes.expect(sys.argv[1:], ns.task_names)
