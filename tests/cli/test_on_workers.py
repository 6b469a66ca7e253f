"""A run by workers: slices, what is sent with them, the question, batches, the limit of failed hosts, wrong answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rigwright.cli import on_workers
from rigwright.core.process import prompt
from rigwright.fleet import journal
from rigwright.history import History
from tests.cli import workers_here
from tests.cli.run_command import run_command
from tests.cli.workers_here import ADDRESS, WorkersHere
from tests.fleet import fake_fleet
from tests.fleet.fake_fleet import Fleet

HOSTS = tuple(f"gpu{number:02}" for number in range(1, 7))


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """Returns six hosts without their folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("RIGWRIGHT_HISTORY", str(tmp_path / "history.sqlite"))
    return fake_fleet.fleet(tmp_path, monkeypatch, *HOSTS)


@pytest.fixture
def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WorkersHere:
    """Returns the worker of all commands."""
    return workers_here.use(tmp_path / "worker", monkeypatch)


def run(gpus: Fleet, command: str, **words: Any) -> tuple[int, dict[str, Any]]:
    """Runs a command with workers; returns its exit code and its document."""
    file = gpus.folder / "out.json"
    words = {"host": "gpu", "inventory": gpus.inventory, "playbook": gpus.playbook, "executor": ADDRESS, **words}
    code = run_command(command, json=str(file), **words)
    return code, json.loads(file.read_text())


def statuses(document: dict[str, Any]) -> dict[str, str]:
    """Returns the status of each host."""
    return {name: host["status"] for name, host in document["hosts"].items()}


@pytest.mark.parametrize(
    ("hosts", "workers", "size"),
    [(1, 1, 50), (64, 1, 50), (100, 1, 50), (200, 1, 100), (1000, 1, 200), (1000, 4, 125), (1000, 40, 50),
     (10_000, 8, 200)],
)  # fmt: skip
def test_the_size_of_a_slice(hosts: int, workers: int, size: int) -> None:
    assert on_workers.size(hosts, workers) == size


def test_a_step_that_leads_to_a_reboot_is_announced_and_counts_as_one() -> None:
    def disrupting(*changes: tuple[str, bool, str]) -> tuple[list[str], list[str]]:
        rows = [{"step": step, "disruptive": bad, "leads_to": to} for step, bad, to in changes]
        steps = [
            SimpleNamespace(name=name, declared=SimpleNamespace(reboots=name == "Reboot")) for name in ("A", "Reboot")
        ]
        job: Any = SimpleNamespace(
            report=SimpleNamespace(written={"changes": rows}), bound=SimpleNamespace(steps=steps)
        )
        return on_workers._disrupting(job), on_workers._disrupting(job, only_reboots=True)

    assert disrupting(("A", False, "")) == ([], [])
    assert disrupting(("A", True, "")) == (["A"], [])
    assert disrupting(("A", False, "reboot")) == (["Reboot"], ["Reboot"])
    assert disrupting(("A", True, ""), ("Reboot", False, "")) == (["A", "Reboot"], ["Reboot"])


def test_with_several_slices_each_has_its_text_and_all_hosts_are_in_one_document(
    gpus: Fleet, workers: WorkersHere, capsys: pytest.CaptureFixture[str]
) -> None:
    gpus.made, gpus.away = ["gpu01"], {"gpu06"}
    code, document = run(gpus, "plan", slice="2")
    text = capsys.readouterr().out
    assert (code, len(workers.orders)) == (3, 3)
    assert statuses(document) == {"gpu01": "ok", **dict.fromkeys(HOSTS[1:5], "pending"), "gpu06": "unreachable"}
    assert [f"Slice {number} of 3: gpu0{2 * number - 1}, gpu0{2 * number}\n" in text for number in (1, 2, 3)] == [
        True
    ] * 3
    assert text.count("error gpu06: the connection was refused\n") == 1
    with History.open(write=False) as history:
        assert {host.name: host.status for host in history.runs()[0].hosts} == statuses(document)


@pytest.mark.parametrize(("answer", "code", "made"), [("yes", 0, HOSTS), ("no", 2, ())])
def test_the_controller_asks_before_anything_is_changed(
    gpus: Fleet,
    workers: WorkersHere,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    code: int,
    made: Sequence[str],
) -> None:
    asked: list[str] = []

    def answered(question: str) -> str:
        asked.append(question)
        assert gpus.made == []
        return answer

    monkeypatch.setattr(prompt, "on_terminal", lambda: True)
    monkeypatch.setattr(prompt, "answer", answered)
    found, document = run(gpus, "provision", slice="3")
    assert (found, sorted(gpus.made)) == (code, list(made))
    assert asked == ["Make these changes? [y/N] "]
    text = capsys.readouterr().out
    assert text.count("Plan: 3 to add.") == 2, "each slice's plan is shown once"
    assert text.count("1 change, no check was made") == len(made)
    assert set(statuses(document).values()) == {"changed" if made else "pending"}
    orders = [json.loads(order) for order in workers.orders]
    assert [order["announced"] is None for order in orders] == [True, True, *[False] * (len(made) // 3)]
    assert {tuple(order["runs"]) for order in orders} == {(document["run"],)}


def test_too_many_failed_hosts_end_a_rollout(
    gpus: Fleet, workers: WorkersHere, capsys: pytest.CaptureFixture[str]
) -> None:
    gpus.broken = {"gpu02"}
    code, document = run(gpus, "provision", yes=True, max_fail="0", slice="1")
    assert (code, gpus.made) == (1, ["gpu01"])
    assert statuses(document) == {"gpu01": "changed", "gpu02": "failed", **dict.fromkeys(HOSTS[2:], "not_attempted")}
    assert workers.told == [(document["run"], "no more")]
    text = capsys.readouterr().out
    assert "Stopped: 1 of 6 hosts failed (gpu02), more than --max-fail 0; not attempted: gpu[03:06]\n" in text
    assert journal.last_stopped().pending == HOSTS[1:]
    gpus.broken = set()
    first = document["run"]
    code, document = run(gpus, "provision", resume=True, yes=True, host=None, inventory="", playbook="")
    assert (code, sorted(gpus.made)) == (0, list(HOSTS))
    assert json.loads(workers.orders[-1])["runs"] == [first, document["run"]]


def test_batches_are_given_out_one_after_the_other(gpus: Fleet, workers: WorkersHere) -> None:
    gpus.made = ["gpu01"]
    code, document = run(gpus, "provision", yes=True, serial="1,100%")
    assert code == 0
    assert [json.loads(order)["options"]["host"].split(",") for order in workers.orders] == [
        list(HOSTS), ["gpu01"], ["gpu02"], list(HOSTS[2:]),
    ]  # fmt: skip
    assert document["rollout"]["batches"] == [["gpu02"], list(HOSTS[2:])]


PLAY = """- import_playbook: ../more/other.yml
- name: P
  hosts: gpu[0]
  tasks:
    - name: Room
      file.directory: {path: "/srv/{{ place }}"}
    - name: Text
      file.template: {path: /etc/own, template: own.j2}
"""


def test_the_files_of_a_playbook_of_the_owner_are_sent(
    gpus: Fleet, workers: WorkersHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {
        "plays/play.yml": PLAY,
        "more/other.yml": "- name: Q\n  hosts: other:!gpu\n  tasks: [{name: No, file.directory: {path: /srv/no}}]\n",
        "templates/own.j2": "own {{ word }} of {{ group_names }}\n",
        "rigs/mine.yml": "title: Mine\ngpus: {}\nsources: {}\n",
        "hosts.yml": "gpu: {hosts: {gpu01: , gpu02: }}\nother: {hosts: {gpu02: }, vars: {x: 1}}\n"
        "all: {vars: {place: room, word: hello, note: unused}}\n",
    }.items():
        (gpus.folder / name).parent.mkdir(exist_ok=True)
        (gpus.folder / name).write_text(text)
    found = []
    monkeypatch.chdir(gpus.folder)
    for executor in ("", ADDRESS):
        monkeypatch.setenv("RIGWRIGHT_HISTORY", str(gpus.folder / f"history{len(found)}.sqlite"))
        document = run(gpus, "plan", host="all", playbook="plays/play.yml", executor=executor)[1]
        found.append({name: (host["steps"], host["changes"]) for name, host in document["hosts"].items()})
    assert found[0] == found[1]
    assert [len(steps) for steps, _ in found[0].values()] == [2, 0]
    order = json.loads(workers.orders[0])
    ends = ("hosts.yml", "more/other.yml", "plays/play.yml", "rigs/mine.yml", "templates/own.j2")
    assert sorted(path.removeprefix(f"{gpus.folder}/").replace("plays/../", "") for path in order["files"]) == list(
        ends
    )
    variables = {"place": "room", "word": "hello", "group_names": ["gpu"]}
    assert json.loads(order["files"][gpus.inventory])["all"]["hosts"]["gpu01"] == variables


def test_a_condition_that_needs_a_secret_refuses_the_host(gpus: Fleet, workers: WorkersHere) -> None:
    play = (
        fake_fleet.PLAY + "    - name: More\n      file.directory: {path: /srv/more}\n      when: hf_token is defined\n"
    )
    (gpus.folder / "play.yml").write_text(play)
    hosts = Path(gpus.inventory)
    hosts.write_text(hosts.read_text().replace("gpu02:\n", "gpu02: {hf_token: swordfish}\n"))
    code, document = run(gpus, "plan")
    assert code == 1
    assert statuses(document) == {name: "failed" if name == "gpu02" else "pending" for name in HOSTS}
    error = document["hosts"]["gpu02"]["error"]
    assert error["found"].startswith("its steps and checks are others on the worker: a condition needs a secret")
    assert "swordfish" not in workers.orders[0]


def test_checks_compare_with_the_past_that_the_controller_knows(gpus: Fleet, workers: WorkersHere) -> None:
    run(gpus, "verify", quick=True)
    assert json.loads(workers.orders[0])["machines"] == {}
    run(gpus, "verify", quick=True)
    assert sorted(row[1] for row in json.loads(workers.orders[1])["machines"]["host"]) == list(HOSTS)


class Gone(WorkersHere):
    """Workers that are gone, with their scheduler, once they have an order."""

    def submit(self, _function: object, _run: str, order: str) -> Any:
        self.orders.append(order)
        self.lost = "the scheduler is gone (OSError)"
        return SimpleNamespace(add_done_callback=lambda _callback: None)


def test_nothing_waits_for_workers_that_are_gone(
    gpus: Fleet, workers: WorkersHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "__class__", Gone)
    code, document = run(gpus, "plan", slice="2")
    assert (code, len(workers.orders)) == (1, 1)
    assert {host["error"]["found"] for host in document["hosts"].values()} == {
        "the worker that had it gave no answer that can be used (ConnectionError: the scheduler is gone (OSError))"
    }


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document["hosts"].pop("gpu02"),
        lambda document: document["hosts"]["gpu02"].update(status="not_attempted"),
    ],
    ids=["left out", "not begun"],
)
def test_a_host_that_a_worker_did_not_begin_is_no_success(
    gpus: Fleet, workers: WorkersHere, change: Callable[[dict[str, Any]], object]
) -> None:
    def changed(answer: str) -> str:
        document = json.loads(answer)
        change(document)
        return json.dumps(document)

    workers.answer = changed
    gpus.made = list(HOSTS)
    code, document = run(gpus, "plan")
    assert code == 1
    assert statuses(document) == {name: "failed" if name == "gpu02" else "ok" for name in HOSTS}


def test_an_error_of_the_whole_command_on_the_worker_is_that_of_its_hosts(gpus: Fleet, workers: WorkersHere) -> None:
    def stopped(answer: str) -> str:
        error = {"where": "hosts.yml:3", "found": "the ssh key ~/x is not there", "expected": "", "fix": ""}
        return json.dumps({**json.loads(answer), "hosts": {}, "error": error})

    workers.answer = stopped
    code, document = run(gpus, "plan")
    assert code == 1
    assert {host["error"]["found"] for host in document["hosts"].values()} == {
        "the worker says: hosts.yml:3: the ssh key ~/x is not there"
    }


@pytest.mark.parametrize("said", ["nowhere", "gpu03"])
def test_only_a_host_of_the_slice_stops_other_reboots(gpus: Fleet, workers: WorkersHere, said: str) -> None:
    def lost(answer: str) -> str:
        document = json.loads(answer)
        document["slice"]["lost"] = said
        return json.dumps(document)

    workers.answer = lost
    run(gpus, "plan", slice="3")
    assert [json.loads(order)["lost"] for order in workers.orders] == ["", said if said == "gpu03" else ""]
