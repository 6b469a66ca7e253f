"""When the actions run the full peer-to-peer test, and what they record of it on the host."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from rigwright.checks import Finding
from rigwright.cli.provision import exit_code
from rigwright.core.command import command
from rigwright.core.desired import Desired
from rigwright.core.host_result import HostResult
from rigwright.engine import identity, rollback, run_owner
from rigwright.engine.events import Event, Note
from rigwright.engine.host_run import HostRun
from rigwright.engine.p2p import nccl_test
from rigwright.engine.p2p.nccl_test import NcclTestOptions
from rigwright.engine.playbook import Check, Step
from rigwright.engine.report import NcclTestResult
from rigwright.facts import Fact, Facts, run_record
from rigwright.facts.machine import Past
from rigwright.facts.nccl import p2p_record, p2p_test as nccl
from rigwright.fleet import actions
from rigwright.fleet.host_runs import run_action
from tests.engine.test_required_test import PLAY, Machine
from tests.facts.test_past_runs import runs


class Hosts:
    """One host; `tests`: the options of each peer-to-peer test that was run on it."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.machine = Machine(folder / "rigwright")
        self.tests: list[NcclTestOptions] = []
        patch.setattr(nccl_test, "test", self._test)

    def _test(self, run: HostRun, options: NcclTestOptions) -> NcclTestResult:
        self.tests.append(options)
        document = run.store.known[nccl.tested] = self.machine.document(quick=options.quick)
        return NcclTestResult(document)

    def does(self, action: object, told: list[Event] | None = None, **given: object) -> HostRun:
        """Runs an action on the host, and returns that. `told` gets the events."""
        run = self.machine.run(tell=([] if told is None else told).append)

        def stages(run: HostRun) -> list[HostResult]:
            return list(action(run, **given))  # type: ignore[operator]

        run.report = run_action(run, stages)
        assert run.report.error is None, run.report.error
        return run

    @property
    def recorded(self) -> bool:
        """Whether the host has a record of a passed test."""
        return (self.machine.folder / p2p_record.PASSED).exists()


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hosts:
    """Returns a host whose GPUs pass the test."""
    return Hosts(tmp_path, monkeypatch)


def test_provision_tests_only_what_is_required(host: Hosts) -> None:
    assert host.does(actions.provision_host, wheels="").report.required_tests == ()
    assert host.tests == []
    host.machine.requires_test()
    run = host.does(actions.provision_host, wheels="none")
    assert (host.tests, len(run.report.required_tests), run.report.findings[0].verdict) == ([], 1, "warn")
    assert (exit_code(run.report), run.report.exit_code) == (2, 0), "provision proved nothing; verify only tells"
    decided = replace(run.report, host=dataclasses.replace(run.report.host, variables={"p2p_wheels": "none"}))
    assert exit_code(decided) == 0, "its owner decided against the test in the inventory"
    for layouts, code in (({"all": ["3g.20gb"]}, 0), ({"all": []}, 2), (False, 2)):
        split = replace(run.report, host=dataclasses.replace(run.report.host, variables={"mig": layouts}))
        assert exit_code(split) == code, "with MIG on the test cannot run"
    run = host.does(actions.provision_host, wheels="")
    assert (len(host.tests), host.tests[0].quick, run.report.required_tests, host.recorded) == (1, False, (), True)
    assert exit_code(run.report) == 0
    host.does(actions.provision_host, wheels="")
    assert len(host.tests) == 1


def test_verify_records_a_full_test_only_where_it_is_required(host: Hosts) -> None:
    full = NcclTestOptions(wheels="none")
    assert host.does(actions.verify_host, test=full).report.required_tests == ()
    assert not host.machine.folder.exists()
    host.machine.requires_test()
    assert len(host.does(actions.verify_host).report.required_tests) == 1
    assert (
        len(host.does(actions.verify_host, test=NcclTestOptions(quick=True, wheels="none")).report.required_tests) == 1
    )
    run = host.does(actions.verify_host, test=full)
    assert (run.report.required_tests, host.recorded) == ((), True)
    assert [options.quick for options in host.tests] == [False, True, False]


@pytest.mark.parametrize(
    ("wheels", "given", "optional"), [("none", "", True), ("none", "fetch", False), (None, "", False)]
)
def test_a_test_that_the_owner_decided_against_is_optional(
    host: Hosts, wheels: str | None, given: str, optional: bool
) -> None:
    run = host.machine.run(bound=replace(PLAY, desired=Desired(p2p_wheels=wheels)))
    list(actions.verify_host(run, test=NcclTestOptions(quick=True, wheels=given)))
    assert [options.optional for options in host.tests] == [optional]


def test_a_plan_names_another_machine_before_anything_is_changed(host: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Finding(
        "identity", "warn", "another machine than the one that was gpu1", "", "serial 7", "correct ansible_host"
    )
    monkeypatch.setattr(identity, "findings", lambda _run: (other,))
    told: list[Event] = []
    host.does(actions.plan_or_fail, told)
    assert [event.text for event in told if isinstance(event, Note)] == [
        "another machine than the one that was gpu1 (serial 7): correct ansible_host"
    ]


@pytest.mark.parametrize(
    ("remembered", "says"),
    [
        ("a b", ""),
        ("a b?", "run b tried driver: 580 and ended before anybody decided on it: "
                 "invoke rollback --host h --to b takes it back"),
        ("a b? c>b!", "invoke rollback --host h --to b takes it back; provision makes"),
        ("a b c>b!", "the rollback c to before run b did not end: invoke rollback --host h goes on with it"),
        ("a b c>b", ""),
        ("", ""),
    ],
)  # fmt: skip
def test_a_plan_with_changes_names_what_did_not_end(host: Hosts, remembered: str, says: str) -> None:
    run = host.machine.run()
    run.store.known[run_record.runs] = runs(*remembered.split(), by=run_owner.owner("b").rpartition(" ")[0] + " 1")
    text = rollback.unfinished_note(run)
    assert says in text
    assert bool(says) == bool(text)
    back = Step("Record", "rollback.possible", lambda _facts: iter(()), {}, "rollback.yml:1")
    run.bound = replace(PLAY, steps=(back,))
    assert rollback.unfinished_note(run) == ""


def test_a_try_that_may_be_at_work_is_not_called_cut(host: Hosts) -> None:
    for by in (run_owner.owner("b"), "b root@elsewhere-1.2 7 9", "?"):
        run = host.machine.run()
        run.store.known[run_record.runs] = runs("a", "b?", by=by)
        text = rollback.unfinished_note(run)
        assert "run b tries driver: 580 on it" in text
        assert text.endswith("; if it was cut there: invoke rollback --host h --to b takes it back")


@pytest.mark.parametrize(("proved", "round_trips"), [(True, 1), (False, 2)])
def test_the_facts_of_checks_come_with_the_plan_of_a_host_that_was_proved(
    host: Hosts, monkeypatch: pytest.MonkeyPatch, proved: bool, round_trips: int
) -> None:
    """Only there, because a new host has changes, after which the checks read their facts in any case."""
    monkeypatch.setattr(HostRun, "earlier", Past(2048, 1, 8) if proved else None)
    fact = Fact("test.fact", command("a-command"), lambda result: result.text)

    def reads_a_fact(facts: Facts) -> Iterator[Finding]:
        yield Finding("a fact", "pass", facts(fact))

    bound = replace(PLAY, checks=(Check("A fact", "test.reads", reads_a_fact, {}, "play.yml:1"),))
    run = host.machine.run(bound=bound)
    run.report = run_action(run, lambda run: list(actions.plan_or_fail(run, checks=True)))
    run.report = run_action(run, lambda run: list(actions.provision_host(run, wheels="none")))
    assert [finding.verdict for finding in run.report.findings if finding.subject == "a fact"] == ["pass"]
    assert run.transport.round_trips == round_trips


def test_a_plan_says_what_is_required_and_changes_nothing(host: Hosts) -> None:
    host.machine.requires_test()
    report = host.does(actions.plan_or_fail).report
    assert (report.status, len(report.required_tests), report.findings) == ("ok", 1, ())
    assert not host.recorded
