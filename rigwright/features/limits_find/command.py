"""`invoke limits.find`: measures the GPUs at several limits and writes the chosen limit into the inventory."""

from __future__ import annotations

import dataclasses
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
from rigwright.engine.host_run import HostRun
from rigwright.engine.host_variables import HostVariables
from rigwright.engine.report import FactsResult
from rigwright.facts import system
from rigwright.features.limits_find import points as limit_points, run as limits_sweep, table
from rigwright.features.limits_find.options import LimitsFindOptions
from rigwright.features.limits_find.points import NAMES, Sweep, SweepPlan
from rigwright.fleet import pool
from rigwright.inventory.model import Inventory
from rigwright.report.labels import as_is


def limits_find(options: LimitsFindOptions) -> int:
    """Sweeps the limits of one host; returns the exit code."""

    def prepare(_run_id: str) -> runner.HostCommand:
        if options.executor:
            raise UsageError("--executor", "a sweep asks and decides on this machine", "limits.find without --executor")
        if options.write and options.choose in ("", "none") and not prompt.on_terminal():
            raise UsageError("--write", "nothing is chosen", "with it --choose fastest, per-watt or quiet")
        find = _Find(options)
        return runner.HostCommand(
            options,
            find.act,
            before_connecting=find.bind,
            exit_code=lambda report: report.exit_code if report.error is not None else 0,
        )

    return runner.run(options, prepare)


class _Find(Struct):
    """One sweep of one host. `variables`: None before the inventory was read; `planned`: None before the plan."""

    options: LimitsFindOptions
    variables: HostVariables | None = None
    planned: SweepPlan | None = None

    def bind(self, inventory: Inventory, bound: Sequence[Any]) -> None:
        """Reads the variables of the host. Raises UsageError for several hosts, InputError for a wrong value."""
        if len(bound) != 1:
            problem = f"{len(bound)} hosts are named, and a sweep is about one machine"
            raise UsageError("--host", problem, "one host", f"{program_name()} limits.find --host {bound[0].host.name}")
        self.variables = host_variables.of_host(bound[0].host, inventory.rigs)
        source = self.options.wheels or self.variables.desired.p2p_wheels or "fetch"
        self.options = dataclasses.replace(self.options, wheels="" if source == "none" else source)

    def act(self, runs: list[HostRun], text: Any) -> None:
        """Plans, asks for consent, measures, shows the points, and writes the chosen limits."""
        (run,) = runs
        pool.run_hosts(runs, self._plan, activity="planning")
        planned = self.planned
        if run.report.error is not None or planned is None:
            return
        table.announce(text.console, run.host.name, planned)
        runner.consent(self.options.yes, "Load the GPUs and measure?")
        pool.run_hosts(runs, partial(self._measure, planned=planned), activity="measuring")
        sweep = run.report.get(Sweep)
        if run.report.error is not None or sweep is None:
            return
        table.show(text.console, sweep)
        choice = self._choice(sweep, text)
        if choice != "none":
            self._write(run, planned, sweep, choice, text)

    def _plan(self, run: HostRun) -> Iterator[HostResult]:
        assert self.variables is not None
        self.planned = limits_sweep.plan(run, self.variables, self.options)
        yield FactsResult({system.simulated.name: run.value(system.simulated)})
        yield self.planned.sweep

    def _measure(self, run: HostRun, planned: SweepPlan) -> Iterator[Sweep]:
        run.tell(ActivityStarted(run.host.name, "measuring"))
        yield limits_sweep.measure(run, planned, self.options.wheels)

    def _choice(self, sweep: Sweep, text: Any) -> str:
        """A name of a point, or none: the value of --choose, or an answer. Raises HostError without such a point."""
        if self.options.choose or not prompt.on_terminal():
            choice = self.options.choose or "none"
            if choice != "none" and choice not in sweep.named:
                if limit_points.held_by_clocks(sweep.points):
                    problem = "all points are equally fast, because a limit of the clocks holds the GPUs"
                    raise HostError("--choose", problem, "points that differ in speed", "limits.find --clocks")
                problem, expected = f"no point is {NAMES[choice]}", "a GPU that reports its power"
                raise HostError("--choose", problem, expected, "--choose fastest")
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

    def _write(self, run: HostRun, planned: SweepPlan, sweep: Sweep, choice: str, text: Any) -> None:
        """Writes the chosen limits into the inventory, with --write or a yes, and shows the command that sets them."""
        assert self.variables is not None
        host = self.variables.host
        point = sweep.points[sweep.named[choice]]
        own = host.variables.get("limits")
        now: Mapping[str, Any] = self.variables.variables["limits"] if own == "auto" else own or {}
        value = limit_points.limits_with(now, planned.groups, point.limits, planned.all_gpus)
        path = inventory_path(self.options.inventory)
        line = inventory_line.of(host, path if path.is_dir() else path.parent, "limits", value)
        run.merge(replace(sweep, chosen=choice, write=line.text, write_to=line.place))
        flag = f" --inventory {shlex.quote(str(self.options.inventory))}" if self.options.inventory else ""
        command = f"{program_name()} limits --host {run.host.name}{flag}"
        if dict(value) == dict(now):
            message = f"the inventory says so already; in force with: {as_is(command)}"
            text.line(f"[bold]{as_is(run.host.name)}[/]: {message}")
            return
        proof = partial(read_inventory, self.options.inventory, self.options.vault_password_file)
        written = inventory_line.settle(line, self.options.write, proof, text, "To have it, write this into")
        text.plain(f"{'In force with' if written else 'Then'}: {command}")
