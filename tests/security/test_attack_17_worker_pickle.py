"""Attack 17: a worker's answer runs code in the controller. Answers are JSON texts that are checked; workers are reached over TLS."""

from __future__ import annotations

import copy
import datetime
import json
import random
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from rigwright import catalogue
from rigwright.catalogue import lifecycle
from rigwright.checks import Finding
from rigwright.cli.facts import SHOWN
from rigwright.core import errors
from rigwright.core.change import Change, Note
from rigwright.core.errors import HostError, RigwrightError, UsageError
from rigwright.engine import events
from rigwright.engine import machine as described
from rigwright.engine.host_run import Options
from rigwright.engine.plan import PlannedStep
from rigwright.engine.playbook import BoundPlaybook, Check, Step
from rigwright.engine.plugins import known
from rigwright.engine.report import ApplyResult, CommandResult, HostReport
from rigwright.facts import Fact, Unavailable, Unreadable, gpu, parsed
from rigwright.facts.machine import Past
from rigwright.facts.plain import plain
from rigwright.fleet import actions, dask_executor, drift, pool, remote_work
from rigwright.fleet.drift import Machine
from rigwright.fleet.host_job import HostJob
from rigwright.fleet.report_shapes import KEPT
from rigwright.fleet.worker_documents import RemoteJob, answer_text, order_text, read_answer, read_order
from rigwright.inventory.model import Host
from rigwright.report import json_document
from rigwright.report.html import host_page
from tests.cli.run_command import run_command
from tests.fleet.test_remote_work import answer_of, prepared
from tests.paths import CASES, ROOT
from tests.test_cases import _ask, _fact, _parameters, _result

HOST = Host("one", ("all",), {"ansible_user": "ada", "ansible_port": 22}, "hosts.yml:2")


class Bomb:
    """A pickle that makes a file when it is read."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Callable[..., object], tuple[Path]]:
        return Path.touch, (self.file,)


@cache
def real_work() -> tuple[BoundPlaybook, HostReport]:
    """Returns the steps and checks of all cases of tests/cases, and a report with everything that they make."""
    steps: list[Step] = []
    planned: list[PlannedStep] = []
    checks: list[Check] = []
    findings: list[Finding] = []
    for kind in ("operations", "checks"):
        functions = known(kind)  # type: ignore[arg-type]
        for path in sorted((CASES / kind).glob("*/*.yml")):
            case = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
            function, name = functions[path.parent.name], path.parent.name
            given = _parameters(function, case.get("parameters") or {})
            where = f"play.yml:{len(steps) + len(checks)}"
            if kind == "checks":
                checks.append(Check(path.stem, name, function, given, where))
            else:
                steps.append(Step(path.stem, name, function, given, where))
            if "error" in case or "unavailable" in case:
                if kind == "operations":
                    error = HostError(name, "found", "expected", "fix")
                    planned.append(PlannedStep(steps[-1], "failed", reason="a reason", error=error))
                continue
            items, _ = _ask(function, given, case.get("facts") or {})
            findings += [item for item in items if isinstance(item, Finding)]
            if kind == "operations":
                changes = tuple(item for item in items if isinstance(item, Change))
                notes = tuple(item for item in items if isinstance(item, Note))
                planned.append(PlannedStep(steps[-1], "pending" if changes else "ok", changes, notes=notes))
    bound = BoundPlaybook(HOST, tuple(steps), tuple(checks), frozenset({"limits"}))
    changed = next(step for step in planned if step.changes)
    read = {fact: value for fact, value in real_facts() if not isinstance(value, Exception)}
    facts = {fact.name: Unreadable("no answer", "look") if fact is gpu.gpus else value for fact, value in read.items()}
    kept = {fact.name: fact.kept(value) for fact, value in read.items() if fact.kept}
    unknown = {fact: Unavailable("no driver") for fact in described.FACTS}
    description = described.of({**unknown, **read}, catalogue.rig("servbadge", ""), {})
    report = HostReport(
        HOST, "failed", errors.Interrupted("one", "stopped", "", "again"), tuple(planned),
        ApplyResult(tuple(planned), {changed.step.key: changed.changes}, HostError("one", "found"), rebooted=True),
        tuple(findings), tuple(findings[:1]), facts, kept, Past(2048, 1, 8, ("A1 1024 MiB",), loaded_c={"GPU-1": 61.0}),
        machine=description, events=(
            (0.5, events.Connected("one", "10.0.0.1", "")), (1, events.StepStarted("one", "a", changed.changes)),
            (1.5, events.OutputLine("one", "a", "\x1b]52;")), (2.0, events.StepDone("one", "a", "failed", "why", 1.5)),
            (2.5, events.Note("one", "a note")),
        ),
        ran=CommandResult(None, "out\nput", cut=True), simulated="a lab", round_trips=7, seconds=3.25,
    )  # fmt: skip
    return bound, report


def real_facts() -> Iterator[tuple[Fact[Any], Any]]:
    """Yields the values that the cases of facts have, of those that a report holds."""
    for path in sorted((CASES / "facts").glob("*/*.yml")):
        fact, case = _fact(path)
        if fact.kept is not None or fact in SHOWN or fact in described.FACTS:
            yield fact, parsed(fact, _result(case["answer"]))


def document_of(report: HostReport) -> Any:
    """Returns what a command writes of a report."""
    return json_document.document("verify", "run-1", 0, None, [report])["hosts"]["one"]


def without_commands(value: Any) -> Any:
    """Returns planned steps whose changes have no commands, as they are after a journey."""
    return tuple(
        replace(step, changes=tuple(replace(change, commands=()) for change in step.changes)) for step in value
    )


@pytest.mark.nightly
def test_what_real_work_makes_survives_the_journey() -> None:
    bound, report = real_work()
    back = read_answer(bound, answer_text(bound, report))
    assert document_of(back) == document_of(report)
    assert len(report.findings) > 300
    assert back.findings == report.findings
    assert back.events[0] == report.events[0]
    assert back.baseline == report.baseline
    for name, value in report.facts.items():
        assert str(back.facts[name]) == str(value) if isinstance(value, Exception) else back.facts[name] == value, name
    assert {name: back.kept[name] for name in back.kept if name not in KEPT} == {
        name: report.kept[name] for name in report.kept if name not in KEPT
    }
    for before, after in zip(without_commands(report.planned), back.planned, strict=True):
        assert replace(after, error=None) == replace(before, error=None)
        assert after.step is before.step
        assert str(after.error) == str(before.error)
    assert type(back.error) is errors.Interrupted


def test_an_order_is_bound_to_the_same_functions_with_the_same_parameters() -> None:
    bound, report = real_work()
    action = partial(actions.provision_host, wheels="none", describe=True)
    order = read_order(order_text(RemoteJob(bound, Options("run-1", reboots=3), action, report, True, 1.5)))
    assert order.bound == bound
    assert [step.function for step in order.bound.steps] == [step.function for step in bound.steps]
    assert [check.function for check in order.bound.checks] == [check.function for check in bound.checks]
    assert order.bound.host.variables == HOST.variables
    assert (order.options, order.announced, order.at_s) == (Options("run-1", reboots=3), True, 1.5)
    assert isinstance(order.action, partial)
    assert (order.action.func, order.action.keywords) == (actions.provision_host, {"wheels": "none", "describe": True})


def test_a_changed_answer_is_refused_or_harmless() -> None:
    """Any value in place of any part of an answer: the host's error, or a report that can be written."""
    bound, report = real_work()
    bound = replace(bound, steps=bound.steps[:6])
    planned = tuple(step for step in report.planned if step.step in bound.steps)
    report = replace(report, planned=planned, applied=None, findings=report.findings[:6])
    answer = json.loads(answer_text(bound, report))
    places, same = list(_places(answer)), Machine("two", (), plain(report.kept))
    chance, refused = random.Random(17), 0
    odd = (None, True, -1, 2**70, 1.5, "", "x", "\ud800", [], {}, [[]], {"x": 1}, [1, "a"], "../..", "__init__")
    for _ in range(300):
        changed = copy.deepcopy(answer)
        holder = changed
        *way, key = chance.choice(places)
        for step in way:
            holder = holder[step]
        if chance.random() < 0.2:
            del holder[key]
        else:
            holder[key] = chance.choice(odd)
        try:
            changed_report = read_answer(bound, json.dumps(changed))
            host_page.page([json_document.document("verify", "run-1", 0, None, [changed_report])])
            lifecycle.ends(plain(changed_report.kept), datetime.date(2026, 1, 1))
            machines = (Machine("one", (), plain(changed_report.kept), plain(report.kept)), same)
            for compare in (
                drift.peers,
                lambda given: drift.placed(given, {}),
                lambda given: list(drift.past(given[0])),
            ):
                compare(machines)
        except HostError:
            refused += 1
    assert refused > 150


def _places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*way, key)
        yield from _places(item, (*way, key))


class Hostile:
    """Workers whose answers about the host `two` are what `answer` makes of the order; the other hosts are done as ordered.

    `answer_of_slice`: what they make of the answer about the whole slice.
    """

    def __init__(
        self, answer: Callable[[str], str] | None = None, answer_of_slice: Callable[[str], object] = str
    ) -> None:
        self.answer, self.answer_of_slice = answer, answer_of_slice

    def submit(self, function: Callable[[str], str], order: str) -> Future[object]:
        future: Future[object] = Future()
        orders, answers = order.split("\n"), function(order).split("\n")
        names = [json.loads(line)["job"]["bound"]["host"]["name"] for line in orders[1:]]
        if self.answer is not None:
            answers[1 + names.index("two")] = self.answer(orders[1 + names.index("two")])
        future.set_result(self.answer_of_slice("\n".join(answers)))
        return future


def resting(job: HostJob) -> tuple[CommandResult]:
    """Does nothing to a host."""
    assert job.host.name
    return (CommandResult(0, "done"),)


def answer_with(change: Callable[[dict[str, Any]], object]) -> Callable[[str], str]:
    """Returns a worker whose report is changed by a function."""

    def answer(order: str) -> str:
        document = json.loads(answer_of(order))
        change(document)
        return json.dumps(document)

    return answer


def reported(**changed: Any) -> Callable[[str], str]:
    """Returns a worker whose report has these values."""
    return answer_with(lambda document: document["report"].update(changed))


ANSWERS: Mapping[str, Callable[[str], str]] = {
    "nothing": lambda _order: "",
    "no JSON": lambda _order: "ok",
    "another document": lambda _order: '{"hosts": {}}',
    "another host": answer_with(lambda document: document.update(host="one")),
    "another key": answer_with(lambda document: document.update(more=1)),
    "too deep": lambda _order: "[" * 100_000 + "]" * 100_000,
    "deep": reported(machine=json.loads("[" * 60 + "]" * 60)),
    "too large": lambda _order: json.dumps("x" * (33 << 20)),
    "no status": reported(status="fine"),
    "a missing key": answer_with(lambda document: document["report"].pop("seconds")),
    "an unknown class": reported(events=[[0, {"kind": "HostFinished", "outcome": "done"}]]),
    "an unknown error": reported(error={"kind": "SystemExit", "where": "", "found": "", "expected": "", "fix": ""}),
    "a step that was not ordered": reported(
        planned=[{"step": 7, "status": "ok", "changes": [], "reason": "", "error": None, "notes": []}]
    ),
    "no number": answer_with(lambda document: document["report"].update(seconds=float("nan"))),
    "a large number": reported(round_trips=10**30),
    "half a character": reported(simulated="\ud800"),
    "a fact of another type": reported(kept={"pci.gpus": {"value": 5}}),
    "no machine": reported(machine={"gpus": 5}),
    "what a worker does not know": reported(fleet={}),
}


ANSWERS_OF_SLICES: Mapping[str, Callable[[str], object]] = {
    "an object": lambda _text: HostReport(HOST, "ok"),
    "bytes": lambda text: text.encode(),
    "nothing": lambda _text: None,
    "empty": lambda _text: "",
    "no JSON": lambda text: f"x{text}",
    "a host less": lambda text: text.rpartition("\n")[0],
    "a host more": lambda text: f"{text}\n{{}}",
    "too large": lambda text: text + " " * (65 << 20),
    "another key": lambda text: text.replace('"lost"', '"last"', 1),
    "no name": lambda text: text.replace('"lost":""', '"lost":7', 1).replace('"lost": ""', '"lost": 7', 1),
}


@pytest.mark.parametrize("answer", ANSWERS_OF_SLICES.values(), ids=ANSWERS_OF_SLICES)
def test_an_answer_that_is_none_about_the_slice_is_the_error_of_all_its_hosts(
    answer: Callable[[str], object], tmp_path: Path
) -> None:
    jobs = prepared(tmp_path)
    pool.run_hosts(jobs, resting, Hostile(answer_of_slice=answer))  # type: ignore[arg-type]
    for job in jobs:
        assert isinstance(job.report.error, HostError)
        assert job.report.error.found.startswith("the worker's answer is no report of this host: ")
        assert len(job.report.error.found) < 300
    json_document.document("verify", "run-1", 1, None, [job.report for job in jobs])


@pytest.mark.parametrize("said", ["nowhere", "one"])
def test_only_a_host_of_the_slice_stops_other_reboots(said: str, tmp_path: Path) -> None:
    jobs = prepared(tmp_path)
    changed = Hostile(answer_of_slice=lambda text: re.sub(r'"lost": ?""', f'"lost":"{said}"', text, count=1))
    pool.run_hosts(jobs, resting, changed)  # type: ignore[arg-type]
    assert jobs[0].run.state.lost == ("one" if said == "one" else "")


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_an_answer_that_is_no_report_is_the_error_of_its_host(answer: Callable[[str], str], tmp_path: Path) -> None:
    jobs = prepared(tmp_path)
    pool.run_hosts(jobs, resting, Hostile(answer))  # type: ignore[arg-type]
    one, two, three = (job.report for job in jobs)
    assert (one.status, two.status, three.status) == ("ok", "failed", "ok")
    assert isinstance(two.error, HostError)
    assert two.error.found.startswith("the worker's answer is no report of this host: ")
    assert len(two.error.found) < 300
    json_document.document("verify", "run-1", 1, None, [one, two, three])


def test_an_error_of_a_worker_comes_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (job, *_) = prepared(tmp_path)
    for order in ("no order", remote_work.order(job, resting).replace("file.directory", "file.no_operation")):
        answer = answer_of(order)
        assert "failed" in json.loads(answer)
        with pytest.raises(HostError, match="the worker could not do the work"):
            read_answer(job.bound, answer)
    assert "Traceback" in capsys.readouterr().err  # in the worker's log


@pytest.mark.parametrize(
    ("options", "found", "fix"),
    [
        ({"executor": "tcp://10.0.0.5:8786"}, "tcp://10.0.0.5:8786 has no TLS", "or add --insecure"),
        ({"executor": "tls://10.0.0.5:8786", "insecure": True}, "--insecure: is for tcp://", "leave --insecure out"),
        ({"insecure": True}, "--insecure: is for --executor, which is not given", ""),
    ],
)
def test_workers_without_tls_need_a_word(
    options: dict[str, Any], found: str, fix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hosts.yml").write_text("all:\n  hosts: {one: }\n")
    assert run_command("facts", inventory=str(tmp_path / "hosts.yml"), **options) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert found in shown
    assert fix in shown


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ((), "needs certificates, and DASK_DISTRIBUTED__COMM__TLS__CA_FILE and DASK_DISTRIBUTED__COMM__TLS__CLIENT__CERT name none"),
        (("ca-file",), "needs certificates, and DASK_DISTRIBUTED__COMM__TLS__CLIENT__CERT names none"),
        (("ca-file", "client.cert", "client.key"), "none.pem, which DASK_DISTRIBUTED__COMM__TLS__CA_FILE names, cannot be read"),
        (("ca-file=x", "client.cert=x", "client.key=x"), "the certificates of tls:// cannot be used (SSLError"),
    ],
)  # fmt: skip
def test_tls_without_certificates_says_what_is_missing(given: tuple[str, ...], found: str, tmp_path: Path) -> None:
    import dask

    (tmp_path / "x").write_text("no certificate")
    settings = {
        f"distributed.comm.tls.{name}": str(tmp_path / (file or "none.pem"))
        for name, _, file in (word.partition("=") for word in given)
    }
    with (
        dask.config.set(settings),
        pytest.raises(UsageError) as caught,
        dask_executor.executor("tls://127.0.0.1:1"),
    ):
        pass
    assert found in caught.value.found
    assert "docs/guide/rollouts.md" in caught.value.fix


PAGE = (ROOT / "docs" / "guide" / "rollouts.md").read_text(encoding="utf-8")


@contextmanager
def tls_cluster(folder: Path) -> Iterator[str]:
    """Yields the address of a scheduler with one worker, with the certificates and settings that docs/guide/rollouts.md makes."""
    block = re.search(r"( +umask 077\n(?: +.*\n)+)", PAGE)
    assert block
    subprocess.run(["sh", "-ec", block[1]], cwd=folder, check=True, capture_output=True)
    settings = "\n".join(re.findall(r"^ +(export .*)$", PAGE, re.MULTILINE))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tls://127.0.0.1:{free.getsockname()[1]}"
    dask, port = f"exec {sys.executable} -m dask", address.rpartition(":")[2]
    commands = (
        f"{dask} scheduler --protocol tls --no-dashboard --host 127.0.0.1 --port {port}",
        f"{dask} worker {address} --nthreads 2 --no-nanny --no-dashboard --host 127.0.0.1",
    )
    with (folder / "log").open("wb") as log:
        environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(folder)}
        processes = [
            subprocess.Popen(
                ["sh", "-c", f"{settings}\n{command}"], cwd=folder, env=environment, stdout=log, stderr=log
            )
            for command in commands
        ]
        try:
            yield address
        finally:
            for process in processes:
                process.kill()
                process.wait(10)


def client_settings(folder: Path) -> dict[str, str]:
    """Returns the settings of a client with the certificates in a folder."""
    names = {"ca-file": "ca.pem", "client.cert": "client.pem", "client.key": "client.key"}
    return {f"distributed.comm.tls.{name}": str(folder / file) for name, file in names.items()}


def bomb(file: str) -> Bomb:
    """A hostile worker's answer."""
    return Bomb(Path(file))


def test_tls_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work goes to a worker over TLS and its report comes back; a result that is a pickle is not read; others get no connection."""
    import dask

    ours, others = tmp_path / "ours", tmp_path / "others"
    ours.mkdir()
    others.mkdir()
    exploded = tmp_path / "exploded"
    jobs = prepared(tmp_path)
    with tls_cluster(ours) as address, dask.config.set(client_settings(ours)):
        until = time.monotonic() + 60
        while True:
            try:
                with dask_executor.executor(address) as workers:
                    pool.run_hosts(jobs, resting, workers)
                    refused = workers.submit(bomb, str(exploded))
                    with pytest.raises(Exception, match="only able to deserialize"):
                        refused.result(timeout=30)
                break
            except RigwrightError:
                assert time.monotonic() < until, (ours / "log").read_text()
                time.sleep(0.2)
        assert [job.report.get(CommandResult) for job in jobs] == [CommandResult(0, "done")] * 3
        assert not exploded.exists()

        monkeypatch.setattr(dask_executor, "CONNECT_S", 2)
        block = re.search(r"( +umask 077\n(?: +.*\n)+)", PAGE)
        assert block
        subprocess.run(["sh", "-ec", block[1]], cwd=others, check=True, capture_output=True)
        for settings in (
            client_settings(others),
            client_settings(ours) | {"distributed.comm.tls.ca-file": str(others / "ca.pem")},
        ):
            with (
                dask.config.set(settings),
                pytest.raises(errors.Unreachable, match="no Dask scheduler answers"),
                dask_executor.executor(address),
            ):
                pass
