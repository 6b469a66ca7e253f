"""Machines of the history: the past of a host is that of its identity, not of its name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict

from rigwright.core.machine_identity import MachineIdentity
from rigwright.history import History
from rigwright.history.machines import CHECK, Match, Place, RecordedMachine, RecordedMachines, names_sharing
from tests.history.test_history import NOON, run_of

OLD = MachineIdentity.read("4c4c4544-0042-3510-8052-b4c04f564732", "MH19S00123", "0f3b5c6d7e8f90a1b2c3d4e5f6a7b8c9")
NEW = MachineIdentity.read("0ae5c1d2-77f0-11ee-b962-0242ac120002", "MH19S00999", "9c8b7a6f5e4d3c2b1a09f8e7d6c5b3f0")
REINSTALLED = OLD.updated(MachineIdentity.read("", "", "11112222333344445555666677778888"))
TOLD = [{"check": CHECK, "subject": "machine", "verdict": "warn", "seen": "", "expected": "", "cause": "", "fix": ""}]


@pytest.fixture
def history(tmp_path: Path) -> Any:
    """Yields a history without runs."""
    with History.open(tmp_path / "history.sqlite") as opened:
        yield opened


def seen(number: int, **hosts: Any) -> dict[str, Any]:
    """The document of run `r<number>` with these hosts: by name an identity, or a dictionary of values of the
    report."""
    document = run_of(number)
    (report,) = document["hosts"].values()
    parts = {
        name: part if isinstance(part, dict) else {"identity": part and asdict(part)} for name, part in hosts.items()
    }
    document["hosts"] = {name: {**report, "address": name, **part} for name, part in parts.items()}
    return document


def of(history: History, name: str, identity: MachineIdentity, *present: str, simulated: bool = False) -> Match:
    return history.machines(present).match(name, name, identity, simulated)


def gpu(identity: MachineIdentity, cpu: str, findings: Any = ()) -> dict[str, Any]:
    return {
        "identity": asdict(identity),
        "kept": {"system.cpu": cpu},
        "baseline": {"threads": 8, "cpu": cpu},
        "findings": findings,
    }


def test_another_machine_under_a_name_has_a_past_of_its_own(history: History) -> None:
    """It is told until a run has a finding about it; both machines keep their facts, changes and baselines."""
    history.record(seen(0, gpu1=gpu(OLD, "old")))
    assert of(history, "gpu1", OLD) == Match(history.machines().machines[0])
    match = of(history, "gpu1", NEW)
    assert (match.machine, match.former) == (None, None)
    assert (match.predecessor, match.until) == (history.machines().machines[0], NOON.timestamp() + 2)
    history.record(seen(1, gpu1=gpu(NEW, "new")))
    assert of(history, "gpu1", NEW).predecessor is not None, "no finding has told it"
    history.record(seen(2, gpu1=gpu(NEW, "new", TOLD)))
    match = of(history, "gpu1", NEW)
    assert not match.tells
    assert match.machine is not None
    assert match.machine.baseline == {"threads": 8, "cpu": "new"}
    assert history.diff("gpu1", NOON.replace(hour=0)) == [], "the difference between two machines is no change of one"
    assert history.last(match.machine.id, "system.cpu").value == "new"  # type: ignore[union-attr]
    old = of(history, "gpu9", OLD).machine
    assert old is not None
    assert old.baseline == {"threads": 8, "cpu": "old"}


def test_a_reinstalled_machine_is_the_same(history: History) -> None:
    history.record(seen(0, gpu1=OLD))
    match = of(history, "gpu1", REINSTALLED)
    assert match.machine is not None
    assert not match.tells
    history.record(seen(1, gpu1=REINSTALLED))
    (machine,) = history.machines().machines
    assert machine.identity == REINSTALLED


def test_the_past_of_a_machine_follows_it_to_another_name(history: History) -> None:
    """Its runs keep the name that they had; both names find it."""
    history.record(seen(0, gpu1=gpu(OLD, "one")))
    match = of(history, "gpu9", OLD)
    assert match.former is not None
    assert (match.former.name, match.former.last_seen) == ("gpu1", NOON.timestamp() + 2)
    assert match.predecessor is None
    history.record(seen(1, gpu9=gpu(OLD, "two", TOLD)))
    assert not of(history, "gpu9", OLD).tells
    assert not of(history, "gpu1", OLD).tells, "the way back is not told again"
    assert [[host.name for host in run.hosts] for run in history.runs()] == [["gpu9"], ["gpu1"]]
    assert [run.id for run in history.runs(host="gpu9")] == ["r1", "r0"]
    for name in ("gpu1", "gpu9"):
        assert [(change.before, change.after) for change in history.diff(name, NOON)] == [("one", "two")]
    assert list(history.run("r0")["hosts"]) == ["gpu1"]


def test_a_machine_at_another_address_is_the_same(history: History) -> None:
    history.record(seen(0, gpu1={**gpu(OLD, "one"), "address": "192.0.2.1"}))
    history.record(seen(1, gpu1={**gpu(OLD, "one"), "address": "192.0.2.2"}))
    (machine,) = history.machines().machines
    assert (machine.address, machine.baseline) == ("192.0.2.2", {"threads": 8, "cpu": "one"})
    assert not of(history, "gpu1", OLD).tells


def test_two_machines_change_their_names_in_one_run(history: History) -> None:
    """While the hosts answer it cannot be decided; the record has all answers, and the next run tells it."""
    history.record(seen(0, gpu1=gpu(OLD, "old"), gpu2=gpu(NEW, "new")))
    assert of(history, "gpu2", OLD, "gpu1", "gpu2") == Match(undecided=True)
    history.record(seen(1, gpu1=gpu(NEW, "new"), gpu2=gpu(OLD, "old")))
    match = of(history, "gpu2", OLD, "gpu1", "gpu2")
    assert match.machine is not None
    assert match.machine.baseline == {"threads": 8, "cpu": "old"}
    assert (match.former and match.former.name, match.predecessor and match.predecessor.identity) == ("gpu1", NEW)
    assert len(history.machines().machines) == 2


def test_one_identity_of_two_hosts_merges_neither(history: History) -> None:
    history.record(seen(0, gpu1=gpu(OLD, "one")))
    assert names_sharing({"gpu1": OLD, "gpu2": OLD, "gpu3": NEW, "gpu4": MachineIdentity()}) == {
        "gpu1": ("gpu2",),
        "gpu2": ("gpu1",),
    }
    for number in (1, 2):
        history.record(seen(number, gpu2=gpu(OLD, "two"), gpu1=gpu(OLD, "one")))
    assert {machine.name: machine.baseline for machine in history.machines().machines} == {
        "gpu1": {"threads": 8, "cpu": "one"},
        "gpu2": {"threads": 8, "cpu": "two"},
    }
    assert of(history, "gpu3", OLD) == Match(shared=("gpu1", "gpu2")), "a third name takes neither past"


def test_a_host_that_gives_no_identity_is_known_by_name_and_address(history: History) -> None:
    history.record(seen(0, gpu1=gpu(OLD, "one")))
    history.record(seen(1, gpu1=None, gpu2=None))
    assert [machine.name for machine in history.machines().machines] == ["gpu1", "gpu2"]
    match = of(history, "gpu1", MachineIdentity())
    assert match.machine is not None
    assert match.machine.identity == OLD
    history.record(seen(2, gpu2=NEW))
    assert [machine.identity for machine in history.machines().machines] == [OLD, NEW], (
        "an unknown identity becomes known"
    )
    assert not of(history, "gpu2", NEW).tells


def test_a_new_machine_that_did_not_answer_first_is_told_all_the_same(history: History) -> None:
    history.record(seen(0, gpu1=OLD))
    history.record(seen(1, gpu1={"address": "192.0.2.9", "status": "unreachable"}))
    match = history.machines().match("gpu1", "192.0.2.9", NEW, False)
    assert match.machine is not None
    assert match.predecessor is not None
    assert match.predecessor.identity == OLD


def test_a_simulated_machine_does_not_replace_a_real_one(history: History) -> None:
    history.record(seen(0, gpu1=OLD))
    assert of(history, "gpu1", NEW, simulated=True) == Match()


def test_the_uuids_of_a_machine_that_was_replaced_keep_their_place(history: History) -> None:
    """GPUs of both machines of a name are known: those of the old one may appear elsewhere."""
    for number, identity, uuid in ((0, OLD, "GPU-a"), (1, NEW, "GPU-b")):
        fact = {"gpu.gpus": [{"uuid": uuid, "bus_id": "0000:01:00.0"}]}
        history.record(seen(number, gpu1={"identity": asdict(identity), "kept": fact}))
    known = [(name, record.value[0]["uuid"]) for name, record in history.everywhere("gpu.gpus").values()]
    assert known == [("gpu1", "GPU-a"), ("gpu1", "GPU-b")]


def test_a_thousand_machines_are_not_compared_with_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time to find the machines of a run grows with their number, not with its square."""
    identities = {f"gpu{number}": MachineIdentity(board_serial=f"SN{number:06}x") for number in range(1000)}
    recorded = RecordedMachines(
        tuple(
            RecordedMachine(number, name, name, identity, False, (Place(name, name, 1.0, 2.0, True),))
            for number, (name, identity) in enumerate(identities.items())
        )
    )
    compared = 0
    real = MachineIdentity.compared

    def counted(self: MachineIdentity, other: MachineIdentity) -> str:
        nonlocal compared
        compared += 1
        return real(self, other)

    monkeypatch.setattr(MachineIdentity, "compared", counted)
    assert names_sharing(identities) == {}
    for name, identity in identities.items():
        machine = recorded.match(name, name, identity, False).machine
        assert machine is not None
        assert machine.name == name
    assert compared <= 3 * len(identities)


def test_a_machine_that_another_host_of_the_run_is_is_not_taken() -> None:
    identity = MachineIdentity(board_serial="SN000001x")
    recorded = RecordedMachines((RecordedMachine(1, "a", "a", identity, False, (Place("a", "a", 1.0, 2.0, True),)),))
    assert recorded.match("a", "a", identity, False).machine is not None
    assert recorded.match("a", "a", identity, False, taken={1}).machine is None
    assert recorded.match("a", "a", MachineIdentity(), False, taken={1}).machine is None


def test_another_history_learns_the_machines_and_the_values_of_some_facts(history: History, tmp_path: Path) -> None:
    history.record(seen(1, one=gpu(OLD, "Xeon"), two=gpu(NEW, "EPYC")))
    history.record(seen(2, one=gpu(OLD, "Xeon 2")))
    with History.open(tmp_path / "other.sqlite") as other:
        other.learn(json.loads(json.dumps(history.known(["system.cpu"]))))
        assert other.machines() == history.machines()
        for machine in (1, 2):
            assert other.every(machine, "system.cpu") == history.every(machine, "system.cpu") != []
    with History.open(tmp_path / "third.sqlite") as third:
        third.learn({**history.known([]), "run": [["r1"]]})
        assert third.machines() == history.machines()
        assert (third.every(1, "system.cpu"), third.runs()) == ([], [])
