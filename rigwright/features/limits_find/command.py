"""`invoke limits.find`: measures the GPUs at several limits, names three of them, and writes the chosen one into the
inventory."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from rigwright.cli import inventory_line, runner
from rigwright.cli.given_inventory import inventory_path, read_inventory
from rigwright.core.errors import HostError, UsageError
from rigwright.core.host_result import HostResult
from rigwright.core.process import prompt
from rigwright.core.process.program_name import program_name
from rigwright.engine import host_variables
from rigwright.engine.events import ActivityStarted
from rigwright.engine.host_variables import HostVariables
from rigwright.engine.report import FactsResult, HostReport
from rigwright.facts import system
from rigwright.features.limits_find import points as limit_points
from rigwright.features.limits_find import table
from rigwright.features.limits_find.options import LimitsFindOptions
from rigwright.features.limits_find.points import NAMES, Sweep, SweepPlan
from rigwright.features.limits_find.run import SweepOptions
from rigwright.fleet import pool
from rigwright.fleet.host_job import HostJob
from rigwright.inventory.model import Inventory
from rigwright.report.labels import as_is


def limits_find(options: LimitsFindOptions) -> int:
    """Sweeps the limits of one host; returns the exit code."""

    def prepare(_run_id: str) -> runner.HostCommand:
        if options.executor:
            raise UsageError("--executor", "a sweep asks and decides on this machine", "limits.find without --executor")
        if options.write and options.choose in ("", "none") and not prompt.on_terminal():
            raise UsageError("--write", "nothing is chosen", "with it --choose fastest, per-watt or quiet")
        sweep = SweepOptions(
            options.clocks, options.points, options.lowest, options.highest, options.beyond_supplies, options.wheels
        )
        find = _Find(options, sweep)
        return runner.HostCommand(options, find.act, before_connecting=find.bind, exit_code=exit_code)

    return runner.run(options, prepare)


class _Find(Struct):
    """One sweep of one host. `variables`: of the host, once the inventory is read; `planned`: once the host was
    asked."""

    options: LimitsFindOptions
    sweep: SweepOptions
    variables: HostVariables | None = None
    planned: SweepPlan | None = None

    def bind(self, inventory: Inventory, bound: Sequence[Any]) -> None:
        """Reads the variables of the host. Raises UsageError for several hosts, InputError for a value that does not
        fit."""
        if len(bound) != 1:
            found = f"{len(bound)} hosts are named, and a sweep is about one machine"
            raise UsageError("--host", found, "one host", f"{program_name()} limits.find --host {bound[0].host.name}")
        self.variables = host_variables.of_host(bound[0].host, inventory.rigs)
        source = self.options.wheels or self.variables.desired.p2p_wheels or "fetch"
        self.sweep = replace(self.sweep, wheels="" if source == "none" else source)

    def act(self, jobs: list[HostJob], text: Any) -> None:
        """Plans, asks, measures, shows, and writes what is chosen."""
        (job,) = jobs
        pool.run_hosts(jobs, self._plan, activity="planning")
        planned = self.planned
        if job.report.error is not None or planned is None:
            return
        table.announce(text.console, job.host.name, planned)
        runner.consent(self.options.yes, "Load the GPUs and measure?")
        pool.run_hosts(jobs, partial(self._measure, planned=planned), activity="measuring")
        sweep = job.report.get(Sweep)
        if job.report.error is not None or sweep is None:
            return
        table.show(text.console, sweep)
        chosen = self._chosen(sweep, text)
        if chosen != "none":
            self._settle(job, planned, sweep, chosen, text)

    def _plan(self, job: HostJob) -> Iterator[HostResult]:
        from rigwright.features.limits_find import run as limits_sweep

        assert self.variables is not None
        self.planned = limits_sweep.plan(job.run, self.variables, self.sweep)
        yield FactsResult({system.simulated.name: job.run.value(system.simulated)})
        yield self.planned.sweep

    def _measure(self, job: HostJob, planned: SweepPlan) -> Iterator[Sweep]:
        from rigwright.features.limits_find import run as limits_sweep

        job.tell(ActivityStarted(job.host.name, "measuring"))
        yield limits_sweep.measure(job.run, planned, self.sweep)

    def _chosen(self, sweep: Sweep, text: Any) -> str:
        """One of CHOICES: that of --choose, else the answer on a terminal. Raises HostError when the named point was
        not found."""
        if self.options.choose or not prompt.on_terminal():
            choice = self.options.choose or "none"
            if choice != "none" and choice not in sweep.named:
                raise HostError(
                    "--choose", f"no point is {NAMES[choice]}", "a GPU that reports its power", "--choose fastest"
                )
            return choice
        known = [*(name for name in NAMES if name in sweep.named), "none"]
        if known == ["none"]:
            return "none"
        with text.paused():
            while True:
                answer = prompt.answer(f"Which one? {', '.join(known)} [none] ").lower() or "none"
                if answer in known:
                    return answer
                print(f"'{answer}' is not in the list")

    def _settle(self, job: HostJob, planned: SweepPlan, sweep: Sweep, chosen: str, text: Any) -> None:
        """Writes the chosen limits into the inventory with --write or a yes, and says which command sets them."""
        assert self.variables is not None
        host = self.variables.host
        point = sweep.points[sweep.named[chosen]]
        given = host.variables.get("limits")
        now: Mapping[str, Any] = self.variables.variables["limits"] if given == "auto" else given or {}
        value = limit_points.limits_with(now, planned.groups, point.limits, planned.all_gpus)
        path = inventory_path(self.options.inventory)
        line = inventory_line.of(host, path if path.is_dir() else path.parent, "limits", value)
        job.merge(replace(sweep, chosen=chosen, write=line.text, write_to=line.place))
        flag = f" --inventory {shlex.quote(str(self.options.inventory))}" if self.options.inventory else ""
        command = f"{program_name()} limits --host {job.host.name}{flag}"
        if dict(value) == dict(now):
            text.line(
                f"[bold]{as_is(job.host.name)}[/]: the inventory says so already; in force with: {as_is(command)}"
            )
            return
        proof = partial(read_inventory, self.options.inventory, self.options.vault_password_file)
        written = inventory_line.settle(line, self.options.write, proof, text, "To have it, write this into")
        text.plain(f"{'In force with' if written else 'Then'}: {command}")


def exit_code(report: HostReport) -> int:
    """0 when it was measured; the code of the error else."""
    return report.exit_code if report.error is not None else 0
