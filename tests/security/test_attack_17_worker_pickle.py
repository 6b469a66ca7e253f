"""Attack 17: a worker's answer runs code in the controller. Answers are JSON texts that are checked; workers are reached over TLS."""

from __future__ import annotations

import copy
import json
import random
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from rigwright import catalogue
from rigwright.checks import Finding
from rigwright.cli import on_workers
from rigwright.cli.facts import SHOWN
from rigwright.core import errors
from rigwright.core.change import Change, Note
from rigwright.core.errors import HostError, RigwrightError, UsageError
from rigwright.engine import events
from rigwright.engine import machine as described
from rigwright.engine.machine import MachineResult
from rigwright.engine.plan import PlannedStep
from rigwright.engine.playbook import BoundPlaybook, Check, Step
from rigwright.engine.plugins import known
from rigwright.engine.report import ApplyResult, CheckResult, FactsResult, HostReport, PlanResult
from rigwright.facts import Fact, Unavailable, Unreadable, gpu, parsed
from rigwright.facts.machine import Past
from rigwright.features.fleet_run.result import CommandResult
from rigwright.fleet import dask_workers
from rigwright.inventory.model import Host
from rigwright.report import json_document
from rigwright.report.terminal import Text
from tests import reports
from tests.cli import workers_here
from tests.cli.run_command import run_command
from tests.fleet import fake_fleet
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
    results = (
        PlanResult(tuple(planned), "a lab", tuple(findings[:1])),
        ApplyResult(tuple(planned), {changed.step.key: changed.changes}, HostError("one", "found"), rebooted=True),
        CheckResult(tuple(findings), Past(2048, 1, 8, ("A1 1024 MiB",), loaded_c={"GPU-1": 61.0}), tuple(findings[:1])),
        FactsResult(facts), MachineResult(description), CommandResult(None, "out\nput", cut=True),
    )  # fmt: skip
    told = (
        (0.5, events.Connected("one", "10.0.0.1", "")), (1, events.StepStarted("one", "a", changed.changes)),
        (1.5, events.OutputLine("one", "a", "\x1b]52;")), (2.0, events.StepDone("one", "a", "failed", "why", 1.5)),
        (2.5, events.Note("one", "a note")),
    )  # fmt: skip
    error = errors.Interrupted("one", "stopped", "", "again")
    report = reports.report(
        HOST, *results, status="failed", error=error, kept=kept, events=told, round_trips=7, seconds=3.25
    )
    return bound, report


def real_facts() -> Iterator[tuple[Fact[Any], Any]]:
    """Yields the values that the cases of facts have, of those that a report holds."""
    for path in sorted((CASES / "facts").glob("*/*.yml")):
        fact, case = _fact(path)
        if fact.kept is not None or fact in SHOWN or fact in described.FACTS:
            yield fact, parsed(fact, _result(case["answer"], fact.name))


def document_of(report: HostReport) -> Any:
    """Returns what a command writes of a report."""
    return json_document.document("verify", "run-1", 0, None, [report])["hosts"]["one"]


def test_what_real_work_makes_is_in_the_document_of_the_controller_too() -> None:
    _, report = real_work()
    document = json.loads(json.dumps(document_of(report)))
    back = json_document.read_host(HOST, document, errors.Interrupted.exit_code)
    assert document_of(back) == document
    assert len(report.findings) > 300
    assert back.findings == report.findings
    assert type(back.error) is errors.Interrupted


def test_a_changed_answer_is_refused_or_can_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """Any value in place of any part of what the controller shows and records itself."""
    _, report = real_work()
    few = PlanResult(report.planned[:6]), CheckResult(report.findings[:6], owed=report.findings[:1])
    report = reports.report(HOST, *few, CommandResult(0, "out"), status="failed", error=report.error)
    answer = json.loads(json.dumps(document_of(report)))
    checked = ("status", "error", "steps", "changes", "findings", "owed", "ran", "simulated", "seconds", "identity")
    places = [place for place in _places(answer) if place[0] in checked]
    chance, refused = random.Random(17), 0
    odd = (None, True, -1, 2**70, 1.5, "", "x", [], {}, [[]], {"x": 1}, [1, "a"], "../..", "__init__")
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
            back = json_document.read_host(HOST, changed, 130)
        except Exception:
            refused += 1
            continue
        text = Text(sys.stdout, "", False)
        text.verdict(back)
        text.findings(back)
        text.problems(back)
        text.errors([("one", back.error)] if back.error else [])
        document_of(back)
    assert refused > 100
    assert "\x1b" not in capsys.readouterr().out


def _places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*way, key)
        yield from _places(item, (*way, key))


def of_host(**changed: Any) -> Callable[[str], str]:
    """Returns a worker whose document has these values of the host `two`."""
    return with_host(lambda host: host.update(changed))


def with_host(change: Callable[[dict[str, Any]], object]) -> Callable[[str], str]:
    """Returns a worker whose part of a document about the host `two` is changed by a function."""

    def answer(text: str) -> str:
        document = json.loads(text)
        change(document["hosts"]["two"])
        return json.dumps(document)

    return answer


CHANGE = {
    **dict.fromkeys(("step", "action", "subject", "before", "after", "leads_to"), ""), "disruptive": False, "done": True
}  # fmt: skip
OF_ONE_HOST: Mapping[str, Callable[[str], str]] = {
    "no status": of_host(status="fine"),
    "another key": of_host(more=1),
    "a missing key": with_host(lambda host: host.pop("seconds")),
    "no error": of_host(error={"where": "", "found": "", "expected": ""}),
    "an error that is none": of_host(error=["x"]),
    "an error without its exit code": of_host(error=dict.fromkeys(("where", "found", "expected", "fix"), "")),
    "a finding of another type": of_host(findings=[{"check": 7}]),
    "a finding with another verdict": of_host(findings=[dict.fromkeys(Finding.__struct_fields__, "x")]),
    "a change without a step": of_host(changes=[{**CHANGE, "step": None}]),
    "a step that is none": of_host(steps=["x"]),
    "no list": of_host(changes={}),
    "no machine": of_host(machine="x"),
    "an output that is none": of_host(ran={"code": 0}),
}


@pytest.mark.parametrize("answer", OF_ONE_HOST.values(), ids=OF_ONE_HOST)
def test_an_answer_that_is_no_report_is_the_error_of_its_host(
    answer: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = planned(answer, tmp_path, monkeypatch)
    assert [host["status"] for host in hosts.values()] == ["pending", "failed", "pending"]
    found = hosts["two"]["error"]["found"]
    assert found.startswith("the worker's answer is no report of this host: ")
    assert len(found) < 300


OF_A_SLICE: Mapping[str, Callable[[str], object]] = {
    "an object": lambda _text: HostReport(HOST, "ok"),
    "bytes": lambda text: text.encode(),
    "nothing": lambda _text: None,
    "empty": lambda _text: "",
    "no JSON": lambda text: f"x{text}",
    "another document": lambda _text: '{"hosts": {}}',
    "no hosts": lambda text: json.dumps({**json.loads(text), "hosts": []}),
    "no result": lambda text: json.dumps({**json.loads(text), "slice": {"text": 7}}),
    "too deep": lambda _text: "[" * 100_000 + "]" * 100_000,
    "no number": lambda text: re.sub(r'"round_trips": \d+', '"round_trips": NaN', text, count=1),
    "half a character": lambda text: text.replace('"simulated": ""', r'"simulated": "\\\ud800"', 1),
    "a failure": lambda _text: json.dumps({"failed": "no memory\x1b[2J" * 99}),
}


@pytest.mark.parametrize("answer", OF_A_SLICE.values(), ids=OF_A_SLICE)
def test_an_answer_that_is_none_about_the_slice_is_the_error_of_all_its_hosts(
    answer: Callable[[str], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = planned(answer, tmp_path, monkeypatch)
    assert {host["status"] for host in hosts.values()} == {"failed"}
    for host in hosts.values():
        assert host["error"]["found"].startswith("the worker that had it gave no answer that can be used (")
        assert len(host["error"]["found"]) < 700


def test_an_answer_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_workers, "LONGEST_ANSWER", 1 << 20)
    hosts = planned(lambda text: text + " " * (2 << 20), tmp_path, monkeypatch)
    assert "2 MiB of text, more than 1 MiB" in hosts["one"]["error"]["found"]


def planned(answer: Callable[[str], object], folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Plans three hosts with a worker whose answer is changed; returns the hosts of the document."""
    fleet = fake_fleet.fleet(folder, patch, "one", "two", "three")
    workers_here.use(folder / "worker", patch).answer = answer
    words = {"inventory": fleet.inventory, "playbook": fleet.playbook, "executor": workers_here.ADDRESS}
    run_command("plan", host="all", json=str(folder / "out.json"), **words)
    hosts: dict[str, Any] = json.loads((folder / "out.json").read_text())["hosts"]
    return hosts


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
        dask_workers.connected("tls://127.0.0.1:1"),
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


def bomb(file: str) -> Any:
    """A hostile worker's answer."""
    return Bomb(Path(file))


def test_tls_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work goes to a worker over TLS and its answer comes back; a result that is a pickle is not read; others get no connection."""
    import dask

    ours, others = tmp_path / "ours", tmp_path / "others"
    ours.mkdir()
    others.mkdir()
    exploded = tmp_path / "exploded"
    with tls_cluster(ours) as address, dask.config.set(client_settings(ours)):
        until = time.monotonic() + 60
        while True:
            try:
                with dask_workers.connected(address) as workers:
                    assert workers.submit(dask_workers.sources).result(timeout=60) == dask_workers.sources()
                    refused = workers.submit(bomb, str(exploded))
                    with pytest.raises(Exception, match="only able to deserialize"):
                        refused.result(timeout=30)
                break
            except RigwrightError:
                assert time.monotonic() < until, (ours / "log").read_text()
                time.sleep(0.2)
        assert not exploded.exists()

        monkeypatch.setattr(dask_workers, "CONNECT_S", 2)
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
                dask_workers.connected(address),
            ):
                pass
