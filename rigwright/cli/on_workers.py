"""A run with `--executor`: workers run the command on slices of the hosts, and their documents become one.

docs/guide/rollouts.md says what is sent and what differs from a run without workers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import msgspec
from msgspec import Struct

from rigwright.cli.options import HostsOptions
from rigwright.cli.slice_command import CONSENT, LONGEST_TEXT, SliceOrder, run_slice, stop
from rigwright.core import host_ranges, secrets
from rigwright.core.control_characters import one_line
from rigwright.core.errors import HistoryError, HostError
from rigwright.core.files import shipped_files
from rigwright.core.process import interruption
from rigwright.engine import playbook as playbooks
from rigwright.engine.events import ActivityStarted
from rigwright.engine.host_run import HostRun
from rigwright.fleet import pool, rollout
from rigwright.fleet.dask_workers import Workers
from rigwright.fleet.host_runs import left_behind
from rigwright.history import History
from rigwright.inventory.model import CONNECTION, NOT_SECRET, Inventory
from rigwright.report import json_document
from rigwright.report.labels import as_is
from rigwright.report.lazy_terminal import Output

LEAST, MOST = 50, 200
"""The hosts of a slice without --slice. Fewer hosts than LEAST are one slice."""
EACH = 2
"""The slices for each worker: several, because they take different times."""
LONGEST_ANSWER = 256 << 20
"""Characters of the answer about a slice."""
_OWN_OPTIONS = (
    *("vault_password_file", "executor", "insecure", "slice", "html", "prometheus", "reload"),
    *("serial", "max_fail", "resume", "reboots"),
)
"""Options of the controller, which are not sent."""
_NO_REPORT = "the worker's answer is no report"
_AGAIN = "look at the worker's log; then run the same command again, which goes on from where the host is"


class Slice(Struct, eq=False):
    """Hosts that a worker gets together. `text`: what the command said of them."""

    runs: Sequence[HostRun]
    text: str = ""


def size(hosts: int, workers: int) -> int:
    """The number of hosts of a slice: EACH slices for each worker, within LEAST and MOST."""
    return min(MOST, max(LEAST, -(-hosts // (EACH * max(1, workers)))))


class Slices:
    """Gives the hosts of a command to workers.

    `looked_up`: the facts of which the command reads earlier values. `yes`: whether --yes was typed. `question`: the
    question of the command before it changes hosts, or "". `finished`: the hosts with nothing left to do.
    """

    def __init__(
        self,
        options: HostsOptions,
        playbook: Path | None,
        looked_up: Sequence[str],
        inventory: Inventory,
        workers: Workers,
        output: Output,
    ) -> None:
        self.options, self.inventory, self.workers, self.output = options, inventory, workers, output
        self.yes = bool(getattr(options, "yes", False))
        read = list(playbooks.files(playbook)) if playbook else []
        shipped = shipped_files.folder("playbooks").resolve()
        own = [path for path in read if read[0].resolve().parent != shipped]
        folders = [inventory.rigs, inventory.templates, *(path.parent.parent / "templates" for path in own[:1])]
        paths = [*own, *(path for folder in folders for path in folder.rglob("*") if path.is_file())]
        self.files = {str(path.absolute()): path.read_text(encoding="utf-8", errors="replace") for path in paths}
        """The texts of the files besides the inventory that bind the playbook, by their path."""
        written = [*self.files.values(), *(path.read_text(encoding="utf-8") for path in read)]
        self.words = frozenset(re.findall(r"\w+", " ".join(written)))
        """All words of the playbook and of these files. A variable whose name is not among them is not needed."""
        given = getattr(options, "playbook", "")
        self.playbook = str(own[0].absolute()) if own else read[0].stem if given else ""
        self.past: dict[str, Any] = {}
        with suppress(HistoryError), History.open(write=False) as past:
            self.past = past.known(looked_up)
        self.question, self.lost = "", ""
        self.finished: set[str] = set()

    def give_out(
        self,
        runs: Sequence[HostRun],
        on_end: Callable[[HostRun], object] = pool.do_nothing,
        too_many: Callable[[int], bool] = pool.never,
        *,
        yes: bool = True,
    ) -> None:
        """Lets the workers run the command on the hosts that have no error, and shows its text.

        `on_end` is called with each host that has an answer. Once `too_many` is true of the number of failed hosts, no
        further host begins. If a host will reboot, one slice is given out at a time.

        Raises KeyboardInterrupt after Ctrl-C; a second one does not wait for hosts at work.
        """
        able = [run for run in runs if run.report.error is None and self._may_be_sent(run)]
        if not able:
            return
        most = self.options.slice or size(len(able), self.workers.count)
        parts = [Slice(able[at : at + most]) for at in range(0, len(able), most)]
        one_at_a_time = yes and any(_disrupting(run, only_reboots=True) for run in able)
        try:
            with able[0].stage([run.host.name for run in able]):
                for part in self._answers(parts, yes, one_at_a_time, too_many):
                    for run in part.runs:
                        on_end(run)
        finally:
            for number, part in enumerate(parts, 1):
                if part.text and len(parts) > 1:
                    names = host_ranges.folded(run.host.name for run in part.runs)
                    self.output.text.line(f"\n[bold]Slice {number} of {len(parts)}[/]: {as_is(names)}")
                for line in part.text.splitlines():
                    self.output.text.plain(line)

    def _answers(
        self, parts: Sequence[Slice], yes: bool, one_at_a_time: bool, too_many: Callable[[int], bool]
    ) -> Iterator[Slice]:
        """Gives out the slices; yields each one when its answer is in the reports of its hosts."""
        run_id = parts[0].runs[0].options.run_id
        queue: SimpleQueue[tuple[Slice, str | BaseException] | None] = SimpleQueue()  # an answer; None for a signal
        waiting, given_out, failed, signals, stopped = list(parts), list[Slice](), 0, 0, False

        def submit(part: Slice) -> None:
            given_out.append(part)
            for run in part.runs:
                run.tell(ActivityStarted(run.host.name, "with a worker"))
            most_failed = next((more for more in range(len(part.runs)) if too_many(failed + more + 1)), len(part.runs))
            future = self.workers.submit(run_slice, run_id, self._order(part, yes, most_failed))
            # The result is fetched from its worker in the thread of the callback: this one handles signals.
            future.add_done_callback(lambda done: queue.put((part, _result(done))))

        with interruption.handled(lambda _signal: queue.put(None)):
            while given_out or (waiting and not stopped):
                while waiting and not stopped and len(given_out) < (1 if one_at_a_time else self.workers.threads):
                    submit(waiting.pop(0))
                try:
                    answer = queue.get(timeout=0.5)
                except Empty:
                    if self.workers.lost:
                        for part in [*given_out, *waiting]:
                            self._read(part, ConnectionError(self.workers.lost), pool.never)
                            yield part
                        given_out, waiting = [], []
                    continue
                if answer is None:
                    signals += 1
                elif answer[0] in given_out:
                    part = answer[0]
                    given_out.remove(part)
                    self._read(*answer, lambda bad: stopped or too_many(failed + bad))  # noqa: B023
                    failed += sum(run.report.bad for run in part.runs)
                    yield part
                if signals > 1:
                    for run in (run for part in given_out for run in part.runs):
                        run.report = left_behind(run)
                    break
                if not stopped and (signals or too_many(failed)):
                    stopped = True
                    self.workers.call_all(stop, run_id, "interrupt" if signals else "no more")
        pool.leave_out([run for part in waiting for run in part.runs])
        if signals:
            raise KeyboardInterrupt

    def _may_be_sent(self, run: HostRun) -> bool:
        """Whether its work needs no secret; else that is the error of the host."""
        steps = [f"the step '{step.name}'" for step in run.bound.steps if secrets.holds(step.parameters)]
        checks = [f"the check '{check.name}'" for check in run.bound.checks if secrets.holds(check.parameters)]
        for what in (*steps, *checks, *(name for name in CONNECTION if name in run.host.secret)):
            problem = f"{what} needs a secret of the inventory, which is not sent to workers"
            fix = "run this host without --executor, or with --tags that leave the step out"
            run.report = run.report.with_error(HostError(run.host.name, problem, "work without secrets", fix))
            return False
        return True

    def _order(self, part: Slice, yes: bool, most_failed: int) -> str:
        """The order for a slice as text, without a secret."""
        own = {run.host.name: run.host.variables for run in part.runs}
        hosts: dict[str, Any] = {name: {} for name in self.inventory.groups["all"]}
        for name, variables in own.items():
            needed = {key: value for key, value in variables.items() if key in NOT_SECRET or key in self.words}
            hosts[name] = {key: value for key, value in needed.items() if not secrets.holds(value)}
        groups: dict[str, Any] = {
            group: {"hosts": {name: {} for name in members}}
            for group, members in self.inventory.groups.items()
            if group not in ("all", "ungrouped")
        }
        inventory = f"{self.inventory.rigs.parent.absolute()}/hosts.yml"
        ours = {"host": ",".join(own), "inventory": inventory, "json": "-", "yes": yes, "playbook": self.playbook}
        options = {**vars(self.options), **ours}
        run = part.runs[0].options
        order: SliceOrder = {
            "command": f"{type(self.options).__module__}:{type(self.options).__name__}",
            "options": {name: options[name] for name in vars(self.options) if name in ours or name not in _OWN_OPTIONS},
            "files": {**self.files, inventory: json.dumps({"all": {"hosts": hosts, "children": groups}})},
            "machines": self.past,
            "runs": [*run.earlier_runs, run.run_id],
            "reboots": run.reboots,
            "lost": self.lost,
            "most_failed": most_failed,
            "digests": {run.host.name: rollout.digest(run.bound) for run in part.runs},
            "announced": {run.host.name: _disrupting(run) for run in part.runs} if yes else None,
        }
        return json.dumps(order, allow_nan=False, default=str)

    def _read(self, part: Slice, answer: str | BaseException, may_leave_out: Callable[[int], bool]) -> None:
        """Gives a slice its text and its hosts their reports; a host without a valid report gets an error.

        `may_leave_out`: whether a worker may leave hosts out when so many hosts of the slice are bad.
        """
        document: dict[str, Any] = {}
        problem = ""
        try:
            document = _document(answer)
        except BaseException as error:
            problem = f"the worker that had it gave no answer that can be used ({type(error).__name__}: {error})"
        more, stopped_by = document.get("slice", {}), document.get("error") or {}
        words = [one_line(str(stopped_by.get(key, "")))[:500] for key in ("where", "found") if stopped_by.get(key)]
        problem = problem or (f"the worker says: {': '.join(words)}" if words else f"{_NO_REPORT} of this host")
        problems: dict[str, str] = {}
        for run in part.runs:
            name = run.host.name
            if name not in document.get("hosts", {}):
                problems[name] = problem
                continue
            try:
                run.report = json_document.read_host(run.host, document["hosts"][name], more["exit_codes"].get(name, 0))
            except Exception as wrong:
                problems[name] = f"{_NO_REPORT} of this host: {str(wrong)[:200]}"
        bad = sum(run.host.name in problems or run.report.bad for run in part.runs)
        for run in part.runs:
            if run.report.status == "not_attempted" and run.host.name not in problems and not may_leave_out(bad):
                problems[run.host.name] = "its worker did not begin it"
            if run.host.name in problems:
                refusal = HostError(run.host.name, problems[run.host.name], "the report of the work", _AGAIN)
                run.report = run.report.with_error(refusal)
        if stopped_by.get("where") == CONSENT:
            self.question = one_line(str(stopped_by.get("found")))[:200]
        else:
            self.finished |= {run.host.name for run in part.runs}
        self.lost = next((run.host.name for run in part.runs if run.host.name == more.get("lost")), self.lost)
        part.text = more.get("text", "")[:LONGEST_TEXT]


def _result(future: Any) -> str | BaseException:
    """The value that a future of Dask returned, or the error that it raised."""
    try:
        return str(future.result())
    except BaseException as error:
        return error


def _document(answer: str | BaseException) -> dict[str, Any]:
    """The document of a worker. Raises ValueError for another text, and the error of a worker without an answer."""
    if isinstance(answer, BaseException):
        raise answer
    if len(answer) > LONGEST_ANSWER:
        raise ValueError(f"{len(answer) >> 20} MiB of text, more than {LONGEST_ANSWER >> 20} MiB")
    document = msgspec.json.decode(answer)
    if isinstance(document, dict) and isinstance(document.get("failed"), str):
        raise ValueError(f"the worker could not do the work: {one_line(document['failed'])[:500]}")
    if not isinstance(document, dict) or not all(isinstance(document.get(key), dict) for key in ("hosts", "slice")):
        raise ValueError("no document of a slice")
    kinds = {name: type(value) for name, value in document["slice"].items()}
    if kinds != {"text": str, "exit_codes": dict, "lost": str} or not isinstance(document["error"], (dict, type(None))):
        raise ValueError("no result of a slice")
    return document


def _disrupting(run: HostRun, only_reboots: bool = False) -> list[str]:
    """The names of the steps in the plan of a host that interrupt work on it, or that reboot it."""
    changes = run.report.written["changes"] if run.report.written else ()
    reboots = {step.name for step in run.bound.steps if step.declared.reboots}
    leads = any(change["leads_to"] == "reboot" for change in changes)
    names = {change["step"] for change in changes if change["disruptive"] and not only_reboots}
    return sorted(names | (reboots if leads else {change["step"] for change in changes} & reboots))
