"""`invoke try`: changes one thing on a host, measures before and after, and keeps the change or goes back."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from rigwright.cli import inventory_line, runner
from rigwright.cli.given_inventory import inventory_path, read_inventory
from rigwright.core.desired import Limits
from rigwright.core.errors import InputError, UsageError
from rigwright.core.process import prompt
from rigwright.core.process.program_name import program_name
from rigwright.core.typed_json import typed
from rigwright.core.yaml_source import Mapping as YamlMapping, loads, only_keys
from rigwright.engine import host_variables, playbook, rollback
from rigwright.engine.host_run import HostRun
from rigwright.engine.playbook import BoundPlaybook
from rigwright.engine.report import HostReport
from rigwright.facts import past_runs, run_record
from rigwright.facts.run_record import Run
from rigwright.features.try_ import attempt, run as attempts, table
from rigwright.features.try_.attempt import Attempt, Measurement
from rigwright.features.try_.measurement import MeasurementOptions
from rigwright.features.try_.options import TryOptions
from rigwright.fleet import actions, pool
from rigwright.inventory.model import Inventory
from rigwright.report.labels import as_is


def try_(options: TryOptions) -> int:
    """Runs one try on one host; returns the exit code."""

    def prepare(run_id: str) -> runner.HostCommand:
        if options.executor:
            raise UsageError("--executor", "a try measures and decides from this machine", "try without --executor")
        variable = _variable(options)
        keep_if = _keep_if(options, bool(variable))
        trial = _Try(run_id, options, keep_if, MeasurementOptions(options.wheels, options.rounds), variable)
        path, disrupt = runner.playbook(options.playbook, "provision"), options.disrupt
        return runner.HostCommand(
            options, trial.act, path, disrupt=disrupt, before_connecting=trial.bind, exit_code=exit_code
        )

    return runner.run(options, prepare)


_OPTIONS = {"driver": "--driver", "kernel_cmdline": "--kernel-cmdline", "limits": "--limits"}


def _variable(options: TryOptions) -> str:
    """The inventory variable to change; "" without a change. Raises UsageError for more than one."""
    given = [name for name in _OPTIONS if getattr(options, name)]
    if len(given) > 1:
        problem = f"{' and '.join(_OPTIONS[name] for name in given)} are {len(given)} changes"
        todo = "one of them; which of several changes made a difference cannot be measured"
        raise UsageError("try", problem, "one change", todo)
    if given and options.again:
        raise UsageError("--again", f"changes nothing, and {_OPTIONS[given[0]]} is a change", "one or the other")
    return given[0] if given else ""


def _keep_if(options: TryOptions, changes: bool) -> str:
    """What decides: --keep-if, else `ask` on a terminal and `never` without one. Raises UsageError."""
    if options.keep_if and not changes:
        raise UsageError("--keep-if", "nothing is to be changed", f"with it {', '.join(_OPTIONS.values())}")
    if options.keep_if == "ask" and not prompt.on_terminal():
        raise UsageError("--keep-if ask", "there is no terminal to ask at", "--keep-if faster, no-slower or never")
    return options.keep_if or ("ask" if prompt.on_terminal() else "never")


def _value(options: TryOptions, variable: str, now: Any) -> Any:
    """The value of the variable for this run; `now`: the value in the inventory. Raises InputError."""
    same = now if isinstance(now, Mapping) else {}
    if variable == "driver":
        others = {key: value for key, value in same.items() if key not in ("branch", "version")}
        return {"branch": options.driver, **others}
    if variable == "kernel_cmdline":
        words, before = options.kernel_cmdline.split(), list(now) if isinstance(now, (list, tuple)) else []
        left_out = [word for word in before if word not in words]
        if left_out and not set(words) - set(before):
            problem = f"it has no new word, and provision does not reboot to take {' '.join(left_out)} away"
            raise UsageError("--kernel-cmdline", problem, "a word that is new, such as iommu=off in place of iommu=pt")
        return words
    text = options.limits.strip()
    if ":" not in text:
        raise InputError("--limits", f"{text!r} is no mapping", "'power_limit_w: 250'", "invoke explain power-limit")
    given = loads(text if text.startswith("{") else f"{{{text}}}", "--limits")
    if not isinstance(given, YamlMapping):
        raise InputError("--limits", f"{text!r} is no mapping", "'power_limit_w: 250'")
    only_keys(given, Limits.__struct_fields__, "limit")
    return {**same, **given}


class _Try(Struct):
    """One try. `as_is`: the playbook with the inventory's value; `changed`: with the other value; `back`: the
    rollback."""

    run_id: str
    options: TryOptions
    keep_if: str
    measurement: MeasurementOptions
    variable: str
    value: Any = None
    as_is: BoundPlaybook | None = None
    changed: BoundPlaybook | None = None
    back: BoundPlaybook | None = None
    earlier: tuple[str, Measurement] | None = None

    def bind(self, inventory: Inventory, bound: Sequence[BoundPlaybook]) -> None:
        """Binds the playbooks to the host. Raises UsageError for several hosts, InputError for a bad value."""
        if len(bound) != 1:
            problem = f"{len(bound)} hosts are named, and a try is about one machine"
            raise UsageError("--host", problem, "one host", f"{program_name()} try --host {bound[0].host.name}")
        self.as_is = bound[0]
        if self.options.again:
            self.earlier = _earlier(bound[0].host.name, self.options.again)
        if not self.variable:
            return
        host = self.as_is.host
        now = host.variables.get(self.variable)
        if self.variable == "limits" and now == "auto":
            now = host_variables.of_host(host, inventory.rigs).variables["limits"]
        self.value = _value(self.options, self.variable, now)
        origins = {**host.origins, self.variable: _OPTIONS[self.variable]}
        other = dataclasses.replace(host, variables={**host.variables, self.variable: self.value}, origins=origins)
        path = runner.playbook(self.options.playbook, "provision")
        self.changed = playbook.bind(path, inventory, other)
        self.back = rollback.with_aim(playbook.bind(rollback.path(), inventory, host), self.run_id)

    @property
    def change(self) -> str:
        """The change in words: `driver: 580`."""
        return inventory_line.in_words(self.variable, self.value) if self.variable else ""

    def act(self, runs: list[HostRun], text: Any) -> None:
        """Measures; with a change plans it, asks, makes it, measures again, and keeps it or goes back."""
        (run,) = runs
        if self.changed is None:
            self._measure_only(runs, text)
            return
        assert self.as_is is not None
        pool.run_hosts(runs, attempts.read_runs, activity="reading")
        if run.report.error is not None:
            return
        cut = past_runs.cut_try(run.value(run_record.runs))
        if cut is not None:
            self._take_back(run, cut, text)
            return
        pool.run_hosts(runs, attempts.plan_unchanged, activity="planning")
        run.bound = self.changed
        pool.run_hosts(runs, actions.plan_or_fail, activity="planning")
        if run.report.error is not None:
            return
        text.plans([run.report])
        if run.report.status != "pending":
            text.line(f"[bold]{as_is(run.host.name)}[/]: it is so already: {as_is(self.change)}")
            return
        text.plain(self._announced())
        runner.consent(self.options.yes, "Measure, make these changes, and measure again?")
        run.bound = self.as_is
        self._measure(runs, with_checks=True)
        run.bound = self.changed
        try:
            pool.run_hosts(runs, partial(attempts.change_and_measure, options=self.measurement), activity="changing")
            if run.report.error is None:
                self._decide(run, text)
        except KeyboardInterrupt:
            if run.report.last(Attempt).decision not in ("kept", "back"):
                text.plain(self._left(run))
            raise
        if run.report.error is not None and run.report.last(Attempt).decision == "left":
            text.plain(self._left(run))

    def _measure(self, runs: list[HostRun], with_checks: bool) -> None:
        measure = partial(attempts.measure, options=self.measurement, change=self.change, note=self.options.note)
        pool.run_hosts(runs, partial(measure, with_checks=with_checks), activity="measuring")

    @property
    def flag(self) -> str:
        """The --inventory of this command, for other commands."""
        return f" --inventory {shlex.quote(str(self.options.inventory))}" if self.options.inventory else ""

    def _left(self, run: HostRun, run_id: str = "") -> str:
        """What to type when the change of `run_id` may still be in force; "": the change of this run."""
        return (
            f"{run.host.name}: the change may still be in force; once the host answers:"
            f" {program_name()} rollback --host {run.host.name}{self.flag} --to {run_id or run.options.run_id}"
        )

    def _announced(self) -> str:
        """What follows the measurements, before the host is changed."""
        rules = {
            "faster": "it is kept if it is faster, else the host goes back",
            "no-slower": "it is kept unless it is slower, else the host goes back",
            "ask": "you decide whether it is kept; the host goes back if it fails",
            "never": "the host goes back; --keep-if faster or no-slower keeps it",
        }
        return f"{self.change}, for this run: measured before and after; then {rules[self.keep_if]}."

    def _decide(self, run: HostRun, text: Any) -> None:
        """Shows the comparison, keeps the change or goes back, and says what became of it."""
        tried = run.report.last(Attempt)
        table.show(text.console, tried)
        kept, why = False, f"the change failed: {tried.failure}"
        if tried.comparison is not None:
            decision, why = attempt.decide(tried.comparison, self.keep_if)
            if decision is None:
                with text.paused():
                    decision = prompt.answer("Keep it? [y/N] ").lower() in ("y", "yes")
                why = f"{why}; the answer was {'yes' if decision else 'no'}"
            kept = decision
        if kept:
            self._keep(run, tried, why, text)
        else:
            assert self.back is not None
            run.bound = self.back
            self._go_back(run, why, self.run_id, text)

    def _go_back(self, run: HostRun, why: str, run_id: str, text: Any) -> None:
        """Takes the change of a run back with the playbook of the run, and proves that the host is as before it."""
        assert self.as_is is not None
        change = as_is(run.report.last(Attempt).change)
        text.line(f"[bold]{as_is(run.host.name)}[/]: going back, {as_is(why)}")
        pool.run_hosts([run], partial(attempts.go_back, why=why, run_id=run_id), activity="going back")
        run.bound = self.as_is
        pool.run_hosts([run], partial(attempts.prove_back, options=self.measurement), activity="checking")
        if run.report.error is None:
            runner.show_result(run.report, text, findings=False)
            text.line(f"[bold]{as_is(run.host.name)}[/]: [bold]back[/] as it was before {change}")

    def _take_back(self, run: HostRun, cut: Run, text: Any) -> None:
        """Takes back the change of an earlier try that was cut before a decision, also in the middle of its way
        back."""
        assert self.back is not None
        host = as_is(run.host.name)
        text.line(f"[bold]{host}[/]: run {cut.run} tried {as_is(cut.tried)}, and ended before anybody decided on it")
        run.bound = rollback.with_aim(self.back, cut.run)
        pool.run_hosts([run], actions.plan_or_fail, activity="planning")
        if run.report.error is not None:
            return
        text.plans([run.report])
        if run.report.status == "pending":
            runner.consent(self.options.yes, "Take it back?")
        run.merge(Attempt(cut.tried, self.options.note, decision="left"))
        self._go_back(run, "nobody decided on it", cut.run, text)
        if run.report.error is None:
            text.line(f"[bold]{host}[/]: the same command now tries {as_is(self.change)}")
        else:
            text.plain(self._left(run, cut.run))

    def _keep(self, run: HostRun, tried: Attempt, why: str, text: Any) -> None:
        """Records that the change is kept; writes the line into the inventory (--write or a yes) or says where it
        belongs."""
        assert self.as_is is not None
        path = inventory_path(self.options.inventory)
        folder = path if path.is_dir() else path.parent
        line = inventory_line.of(self.as_is.host, folder, self.variable, self.value)
        kept = replace(tried, decision="kept", why=why, write=line.text, write_to=line.place)
        pool.run_hosts([run], partial(attempts.keep, kept=kept), activity="keeping")
        if run.report.error is not None:
            return
        text.line(f"[bold]{as_is(run.host.name)}[/]: [bold green]kept[/], {as_is(why)}")
        inventory_line.settle(line, self.options.write, lambda: read_inventory(self.options.inventory), text)

    def _measure_only(self, runs: list[HostRun], text: Any) -> None:
        """Measures the host as it is; with --again compares with the state that an earlier run left."""
        (run,) = runs
        self._measure(runs, with_checks=False)
        tried = run.report.get(Attempt)
        if run.report.error is not None or tried is None or tried.before is None:
            return
        if self.earlier:
            before_run, before = self.earlier
            comparison = attempt.compare(before, tried.before)
            tried = replace(tried, before=before, before_run=before_run, after=tried.before, comparison=comparison)
            run.merge(tried)
        table.show(text.console, tried)
        if not self.earlier:
            again = f"{program_name()} try --host {run.host.name}{self.flag} --again --note 'WHAT YOU CHANGED'"
            text.line("Change one thing by hand, such as a setting of the BIOS; then compare:")
            text.plain(f"  {again}")


def _earlier(host: str, run: str) -> tuple[str, Measurement]:
    """The id of an earlier run of `try` on the host, and what it measured of the state that it left. Raises
    UsageError."""
    from rigwright.history import History  # SQLite, only for --again

    with History.open(write=False) as past:
        run_id, document = past.attempt(host, run)
    problem = "did not measure the state that it left"
    try:
        if measured := typed(document, Attempt).stands:
            return run_id, measured
    except ValueError as error:
        problem = f"recorded what cannot be read ({error})"
    raise UsageError("--again", f"run {run_id} {problem}", "another run of try", "invoke history.list")


def exit_code(report: HostReport) -> int:
    """0 when the change is kept, or when nothing was to be changed and nothing is worse; 2 when the host went back."""
    tried = report.get(Attempt)
    if report.error is not None or (tried is None and report.status != "ok"):
        return report.exit_code
    if tried is None or tried.decision == "kept":
        return 0
    refused = tried.comparison is not None and tried.comparison.verdict == "refused"
    return 2 if tried.decision or refused else 0
