"""`invoke try` on the command line; what it does on a host is in tests/end_to_end/test_try.py."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from rigwright import inventory
from rigwright.cli import inventory_line, runner
from rigwright.core.errors import ConsentError, HostError, InputError, RigwrightError, Unreachable, UsageError
from rigwright.core.process import prompt
from rigwright.engine import playbook
from rigwright.engine.host_run import HostRun
from rigwright.features.try_ import run as attempts
from rigwright.features.try_.attempt import Attempt, Comparison, Measurement
from rigwright.features.try_.command import exit_code, try_
from rigwright.features.try_.options import TryOptions
from rigwright.fleet import actions, pool
from rigwright.history import History
from rigwright.inventory.model import Host
from rigwright.report.terminal import Text
from tests import reports
from tests.facts.test_past_runs import runs
from tests.history.test_history import run_of
from tests.host_runs import host_run

HOST = """\
# The frame in the cellar.
rig: rig-3090
driver: {branch: '535', source: auto}  # since the upgrade
kernel_cmdline: [iommu=pt]
limits: {persistence: true, power_limit_w: 285}
"""


@pytest.fixture(autouse=True)
def _no_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(prompt, "on_terminal", lambda: False)
    monkeypatch.setenv("RIGWRIGHT_HISTORY", str(tmp_path / "history.sqlite"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Returns an inventory of two hosts, of which `frame` has a file of its own."""
    made = tmp_path / "inventory"
    (made / "host_vars").mkdir(parents=True)
    (made / "hosts.yml").write_text("gpu: {hosts: {frame: {}, other: {driver: {branch: '535'}}}}\n")
    (made / "host_vars" / "frame.yml").write_text(HOST)
    return made


def bound(monkeypatch: pytest.MonkeyPatch, folder: Path, host: str = "frame", **given: Any) -> Any:
    """Returns the try that the options make, bound to the host."""
    commands: list[runner.HostCommand] = []
    monkeypatch.setattr(runner, "run", lambda _options, prepare: commands.append(prepare("id")) or 0)
    options = TryOptions(host=host, inventory=str(folder), **given)
    assert try_(options) == 0
    (command,) = commands
    known = inventory.read(folder)
    assert command.playbook is not None
    bound, _ = playbook.bind_all(command.playbook, known, known.select(host), frozenset(), False, frozenset())
    command.before_connecting(known, bound)
    return command.act.__self__  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("given", "changed"),
    [
        ({"driver": "580"}, {"driver": {"branch": "580", "source": "auto"}}),
        ({"driver": "580.178.04"}, {"driver": {"branch": "580.178.04", "source": "auto"}}),
        ({"kernel_cmdline": "iommu=pt pcie_aspm=off"}, {"kernel_cmdline": ["iommu=pt", "pcie_aspm=off"]}),
        ({"kernel_cmdline": "iommu=off"}, {"kernel_cmdline": ["iommu=off"]}),
        ({"limits": "power_limit_w: 250"}, {"limits": {"persistence": True, "power_limit_w": 250}}),
        ({"limits": "{locked_graphics_mhz: [210, 1400]}"},
         {"limits": {"persistence": True, "power_limit_w": 285, "locked_graphics_mhz": [210, 1400]}}),
    ],
)  # fmt: skip
def test_one_variable_has_another_value(
    given: dict[str, str], changed: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = bound(monkeypatch, folder, **given)
    was = dict(made.as_is.host.variables)
    assert dict(made.changed.host.variables) == {**was, **changed}
    assert made.keep_if == "never", "without a terminal"
    for before, after in zip(made.as_is.steps, made.changed.steps, strict=True):
        assert (before.name, before.skipped) == (after.name, after.skipped)


@pytest.mark.parametrize(
    ("given", "where", "found"),
    [
        ({"driver": "580", "limits": "power_limit_w: 250"}, "try", "--driver and --limits are 2 changes"),
        ({"driver": "580", "again": "last"}, "--again", "changes nothing, and --driver is a change"),
        ({"driver": "580", "keep_if": "fastest"}, "--keep-if", "'fastest' is no known word"),
        ({"driver": "580", "keep_if": "ask"}, "--keep-if ask", "no terminal to ask at"),
        ({"keep_if": "faster"}, "--keep-if", "nothing is to be changed"),
        ({"rounds": "1"}, "--rounds", "'1' is no number of rounds"),
        ({"wheels": "/nowhere"}, "--wheels", "'/nowhere' is no directory"),
        ({"driver": "580", "executor": "tls://one:8786"}, "--executor", "from this machine"),
        ({"driver": "5x"}, "--driver", "branch '5x'"),
        ({"limits": "power_limit_w: fast"}, "--limits", "'fast'"),
        ({"limits": "power_limit: 250"}, "--limits", "unknown limit 'power_limit'"),
        ({"limits": "250"}, "--limits", "'250' is no mapping"),
        ({"kernel_cmdline": " "}, "--kernel-cmdline", "new word, and provision does not reboot to take iommu=pt away"),
        ({"kernel_cmdline": "a'b"}, "--kernel-cmdline", "no kernel parameter"),
        ({"again": "last"}, "", "no"),  # no history yet
        ({"driver": "580", "host": "gpu"}, "--host", "2 hosts are named"),
    ],
)
def test_what_is_refused_before_connecting(
    given: dict[str, str], where: str, found: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RigwrightError) as caught:
        bound(monkeypatch, folder, **given)
    assert where in caught.value.where
    assert found in caught.value.found
    assert isinstance(caught.value, (UsageError, InputError)) or not where


def test_a_branch_that_is_none_names_how_to_find_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError) as caught:
        bound(monkeypatch, folder, driver="abc")
    assert str(caught.value).splitlines() == [
        "--driver: 'driver': branch 'abc'",
        "  expected: a branch such as '535', or a version of it such as '535.183.01'",
        "  fix:      invoke explain GPU, such as rtx-3090, names the branches that support it",
    ]


def test_again_finds_the_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = {"at": "2026-11-21T12:00:00Z", "conditions": {}, "passed": 1, "failures": {}, "transport": "", "rounds": {},
             "missing": {}, "wrong": {}}  # fmt: skip
    for number, passed in enumerate((1, 2)):
        found = {"change": "", "note": "", "before": {**tried, "passed": passed}, "after": None, "before_run": "",
                 "comparison": None,
                 "failure": "", "decision": "", "why": "", "write": "", "write_to": ""}  # fmt: skip
        document = run_of(number, command="try", **{"try": found})
        document["hosts"] = {"frame": document["hosts"]["servbadge"]}
        with History.open() as history:
            history.record(document)
    for run, expected in (("last", ("r1", 2)), ("r0", ("r0", 1))):
        made = bound(monkeypatch, folder, again=run)
        assert (made.earlier[0], made.earlier[1].passed) == expected
    for run, problem in (("r", "2 runs of try begin so"), ("r7", "no run of try on frame is of that id")):
        with pytest.raises(UsageError, match=problem):
            bound(monkeypatch, folder, again=run)
    with History.open() as history:
        assert history.run("r0")["hosts"]["frame"]["try"]["before"]["passed"] == 1
        assert history.diff("frame", run_time()) == [], "a measurement is no state of the host"


def run_time() -> Any:
    import datetime

    return datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)


class Lines:
    """Takes the lines that a command writes."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def plain(self, line: str) -> None:
        self.lines.append(line)


@pytest.mark.parametrize(
    ("variable", "value", "line"),
    [
        ("driver", {"branch": "580", "source": "auto"}, "driver: {branch: '580', source: auto}  # since the upgrade"),
        ("kernel_cmdline", ["iommu=pt", "pcie_aspm=off"], "kernel_cmdline: [iommu=pt, pcie_aspm=off]"),
        ("kernel_cmdline", [], "kernel_cmdline: []"),
        ("limits", {"persistence": True, "power_limit_w": 250}, "limits: {persistence: true, power_limit_w: 250}"),
        ("cuda", {"toolkit": "12.4"}, "cuda: {toolkit: '12.4'}"),
    ],
)
def test_a_line_of_the_host_is_written(variable: str, value: Any, line: str, folder: Path) -> None:
    file = folder / "host_vars" / "frame.yml"
    host = inventory.read(folder).hosts["frame"]
    found = inventory_line.of(host, folder, variable, value)
    out = Lines()
    inventory_line.settle(found, True, lambda: inventory.read(folder), out)
    assert out.lines == [f"written: {file}"]
    assert line in file.read_text().splitlines()
    assert yaml.safe_load(file.read_text()) == {**yaml.safe_load(HOST), variable: value}
    assert file.read_text().startswith("# The frame in the cellar.\n")


def test_what_is_not_written_is_named(folder: Path) -> None:
    file = folder / "host_vars" / "frame.yml"
    host = inventory.read(folder).hosts["frame"]
    out = Lines()
    inventory_line.settle(inventory_line.of(host, folder, "driver", {"branch": "580"}), False, int, out)
    assert out.lines == [
        f"The next provision takes it back, unless you write this into {file}:3:", "    driver: {branch: '580'}",
    ]  # fmt: skip

    def refuses() -> None:
        raise InputError("x", "the inventory cannot be read")

    out = Lines()
    inventory_line.settle(inventory_line.of(host, folder, "driver", {"branch": "580"}), True, refuses, out)
    assert "(the inventory cannot be read)" in out.lines[0]
    assert file.read_text() == HOST


def test_a_host_without_a_file_gets_one_and_several_are_left_alone(folder: Path) -> None:
    host = inventory.read(folder).hosts["other"]
    line = inventory_line.of(host, folder, "driver", {"branch": "580"})
    inventory_line.settle(line, True, lambda: inventory.read(folder), Lines())
    assert inventory.read(folder).hosts["other"].variables["driver"] == {"branch": "580"}
    (folder / "host_vars" / "other").mkdir()
    (folder / "host_vars" / "other" / "one.yml").write_text("a: 1\n")
    line = inventory_line.of(inventory.read(folder).hosts["other"], folder, "driver", {"branch": "580"})
    assert (line.file, line.place) == (None, str(folder / "host_vars" / "other"))


REFUSED = Comparison((), (), ("it hangs",), (), "refused")


@pytest.mark.parametrize(
    ("tried", "error", "code"),
    [
        (Attempt(), None, 0),
        (Attempt("driver: 580", decision="kept"), None, 0),
        (Attempt("driver: 580", decision="back"), None, 2),
        (Attempt("driver: 580", decision="left"), HostError("frame", "it failed"), 1),
        (Attempt(comparison=REFUSED), None, 2),
        (None, None, 0),
    ],
)
def test_the_exit_code(tried: Attempt | None, error: RigwrightError | None, code: int) -> None:
    status = "failed" if tried else "ok"
    assert exit_code(reports.report(Host("frame", (), {}), *filter(None, [tried]), status=status, error=error)) == code


def changed_host(made: Any, verdict: str, remembered: str = "") -> HostRun:
    """Returns a host on which a change was made and measured, and that remembers runs."""
    measured = Measurement("2026-11-22T19:28:27Z", passed=1)
    comparison = Comparison((), (), ("it hangs",) if verdict == "refused" else (), (), verdict)  # type: ignore[arg-type]
    tried = Attempt(made.change, before=measured, after=measured, comparison=comparison, decision="left")
    report = reports.report(made.as_is.host, tried, status="changed")
    run = host_run({}, "20261122-193313-3570", bound=made.changed, report=report)
    run.value = lambda _fact: runs(*remembered.split())  # type: ignore[method-assign]
    return run


@pytest.mark.parametrize(
    ("verdict", "given", "answers", "decision"),
    [
        ("faster", {}, ["y", "y"], "kept"),
        ("slower", {}, ["y", "n"], "kept"),
        ("faster", {}, ["n"], "back"),
        ("faster", {}, [""], "back"),  # Ctrl-D, or a terminal that is gone
        ("refused", {}, [], "back"),
        ("same", {"keep_if": "no-slower", "write": True}, [], "kept"),
        ("same", {"keep_if": "faster"}, [], "back"),
        ("faster", {"keep_if": "never"}, [], "back"),
    ],
)
def test_the_decision(
    verdict: str,
    given: dict[str, Any],
    answers: list[str],
    decision: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prompt, "on_terminal", lambda: True)
    left = list(answers)
    monkeypatch.setattr(prompt, "answer", lambda _question: left.pop(0))
    ran: list[tuple[Any, Any]] = []

    def run_hosts(runs: list[HostRun], action: Any, **_more: Any) -> None:
        ran.append((action.func, runs[0].bound))
        if action.func is attempts.prove_back:
            runs[0].merge(replace(runs[0].report.last(Attempt), decision="back"))
        if action.func is attempts.keep:
            runs[0].merge(action.keywords["kept"])

    monkeypatch.setattr(pool, "run_hosts", run_hosts)
    made = bound(monkeypatch, folder, driver="580", **given)
    run, stream = changed_host(made, verdict), io.StringIO()
    made._decide(run, Text(stream, "inventory", many=False))
    assert run.report.last(Attempt).decision == decision, stream.getvalue()
    assert left == []
    if decision == "back":
        assert ran == [(attempts.go_back, made.back), (attempts.prove_back, made.as_is)]
        steps = {step.parameters.get("to") for step in made.back.steps}
        assert "id" in steps, "the way back is that of this run"
    else:
        assert [action for action, _ in ran] == [attempts.keep]
        assert run.report.last(Attempt).write == "driver: {branch: '580', source: auto}"
    written = "branch: '580'" in (folder / "host_vars" / "frame.yml").read_text()
    assert written == (decision == "kept" and answers != ["y", "n"])
    assert ("The next provision takes it back" in stream.getvalue()) == (decision == "kept" and not written)


def test_a_host_that_does_not_answer_gets_the_command_that_goes_back(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = bound(monkeypatch, folder, driver="580", yes=True)
    run, stream = changed_host(made, "faster"), io.StringIO()

    def run_hosts(runs: list[HostRun], action: Any, **_more: Any) -> None:
        if getattr(action, "func", None) is attempts.change_and_measure:
            runs[0].report = replace(runs[0].report, error=Unreachable("frame", "it did not come back"))
        elif action is actions.plan_or_fail:
            runs[0].report = replace(runs[0].report, status="pending")

    monkeypatch.setattr(pool, "run_hosts", run_hosts)
    made.act([run], Text(stream, "inventory", many=False))
    said = " ".join(stream.getvalue().split())
    assert f"rollback --host frame --inventory {folder} --to 20261122-193313-3570" in said


@pytest.mark.parametrize(
    ("remembered", "pending"),
    [
        ("a b?", True),  # cut in the change, after it, or while it was measured
        ("a b? c>b!", True),  # in the way back of an earlier command
        ("a b?", False),  # after its last change
    ],
)
def test_a_try_that_was_cut_is_taken_back_first(
    remembered: str, pending: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = bound(monkeypatch, folder, driver="580", yes=True)
    run, stream = changed_host(made, "faster", remembered), io.StringIO()
    run.report = replace(run.report, results={})
    ran: list[tuple[Any, Any]] = []

    def run_hosts(runs: list[HostRun], action: Any, **_more: Any) -> None:
        aims = [step.parameters["to"] for step in runs[0].bound.steps if "to" in step.parameters]
        ran.append((getattr(action, "func", action), aims[0] if aims else ""))
        if action is actions.plan_or_fail:
            runs[0].report = replace(runs[0].report, status="pending" if pending else "ok")
        elif ran[-1][0] is attempts.prove_back:
            runs[0].merge(replace(runs[0].report.last(Attempt), decision="back"))

    monkeypatch.setattr(pool, "run_hosts", run_hosts)
    made.act([run], Text(stream, "inventory", many=False))
    way_back = [(actions.plan_or_fail, "b"), (attempts.go_back, "b"), (attempts.prove_back, "")]
    assert ran == [(attempts.read_runs, ""), *way_back]
    said = " ".join(stream.getvalue().split())
    assert "frame: run b tried driver: 580, and ended before anybody decided on it" in said
    assert "frame: back as it was before driver: 580 frame: the same command now tries driver: {branch: '580'" in said
    assert "source: auto}" in said
    assert exit_code(run.report) == 2


def test_taking_back_a_try_that_was_cut_needs_a_yes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = bound(monkeypatch, folder, driver="580")
    run = changed_host(made, "faster", "a b?")
    run.report = replace(run.report, status="pending")
    monkeypatch.setattr(pool, "run_hosts", lambda _jobs, _action, **_more: None)
    with pytest.raises(ConsentError):
        made.act([run], Text(io.StringIO(), "inventory", many=False))
