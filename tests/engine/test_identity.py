"""The findings about the identity of a machine, and the baseline that its checks compare with."""

from __future__ import annotations

import pytest
from msgspec import structs

from rigwright.checks import Finding, machine
from rigwright.core.command import Result
from rigwright.core.machine_identity import MachineIdentity
from rigwright.engine import identity, verify
from rigwright.engine.host_run import HostRun
from rigwright.engine.playbook import Check
from rigwright.facts import machine as machines, pci, system
from rigwright.facts.machine import Past
from rigwright.history.machines import Match, Place, RecordedMachine, RecordedMachines
from rigwright.inventory.model import Host
from tests.host_runs import host_run

NOON = 1793534400.0  # 2026-11-01 12:00 UTC
SERIAL = MachineIdentity(board_serial="MH19S00123")
OLD = RecordedMachine(
    1, "gpu1", "192.0.2.1", SERIAL, False, (Place("gpu1", "192.0.2.1", NOON - 1, NOON, True),),
    structs.asdict(Past(64000, 1, 8, gpus=("0000:01:00.0 2204", "0000:02:00.0 2204"))),
)  # fmt: skip


def run_of(serial: str, name: str = "gpu1", present: tuple[str, ...] = (), code: int = 0) -> HostRun:
    """A host with one GPU and this board serial; the history knows OLD, with two GPUs."""
    answers = {
        system.identity.command: Result(code, f"\n{serial}\n\n".encode()),
        machines.machine.command: Result(0, b"65536000\n1\n8\n"),
        pci.gpus.command: Result(0, b"0000:01:00.0 0x030200 2204 nvidia\n"),
    }

    host = Host(name, (), {"ansible_host": "192.0.2.1"})
    run = host_run(lambda cmd: answers.get(cmd, Result(0, b"")), host=host)
    run.recorded = RecordedMachines((OLD,), frozenset(present))
    return run


def checked(run: HostRun) -> tuple[Finding, ...]:
    """The findings of the check that compares the machine with its last good run, and those of its identity."""
    check = Check("machine.unchanged", "Unchanged", machine.unchanged, {}, "play.yml:1")
    findings = verify.CheckEvaluation(run, [check]).findings()
    assert run.transport.round_trips == 1, "the identity is read along"
    return (*identity.findings(run), *findings)


def test_a_lost_gpu_of_the_same_machine_fails() -> None:
    (lost,) = checked(run_of("MH19S00123"))
    assert (lost.check, lost.verdict, lost.symptom) == ("machine.unchanged", "fail", "gpu.missing")


def test_the_gpus_of_another_machine_are_not_missing() -> None:
    told, seen = checked(run_of("MH19S00999"))
    assert (told.check, told.verdict) == ("history.machine", "warn")
    assert told.seen == "another machine than the one that was gpu1 until 2026-11-01"
    assert told.cause == "board serial MH19S00999; gpu1 was board serial MH19S00123; its past begins with this run"
    assert (seen.verdict, seen.seen) == ("info", "62 GiB, processors 8 threads, 1 GPUs; recorded for the next run")


def test_the_past_follows_a_machine_to_another_name() -> None:
    told, lost = checked(run_of("MH19S00123", "gpu9"))
    assert told.seen == "the machine that was gpu1 until 2026-11-01"
    assert told.cause == "board serial MH19S00123; its past follows it"
    assert (lost.verdict, lost.symptom) == ("fail", "gpu.missing")


@pytest.mark.parametrize("serial", ["", "To be filled by O.E.M.", "\x1b[2J"])
def test_a_host_without_an_identity_is_known_by_its_name(serial: str) -> None:
    (lost,) = checked(run_of(serial))
    assert lost.symptom == "gpu.missing"


def test_a_machine_that_may_be_another_host_of_the_run_is_compared_with_nothing_and_records_nothing() -> None:
    run = run_of("MH19S00123", "gpu9", ("gpu1", "gpu9"))
    (seen,) = checked(run)
    assert seen.verdict == "info"
    assert verify.baseline(run, [seen], accept=True) is None
    assert verify.baseline(run_with_facts(run_of("MH19S00123")), [], accept=True) is not None


def run_with_facts(run: HostRun) -> HostRun:
    run.read((machines.machine, pci.gpus))
    return run


def test_names_that_share_an_identity() -> None:
    (finding,) = identity.of(Match(shared=tuple(f"gpu{number}" for number in range(10))), "x", SERIAL)
    assert finding.seen == "gpu0, gpu1, gpu2, gpu3, gpu4, gpu5, gpu6, gpu7 and 2 more have the same"
    assert finding.cause.startswith("board serial MH19S00123: two names of one machine")
    assert "machine-id" not in finding.fix
    (finding,) = identity.of(Match(shared=("gpu1",)), "x", MachineIdentity(machine_id_hash="0f3b5c6d7e8f90a1"))
    assert finding.seen == "gpu1 has the same"
    assert "systemd-machine-id-setup" in finding.fix


def test_a_machine_that_took_the_name_of_another() -> None:
    new = structs.replace(OLD, name="gpu7")
    (finding,) = identity.of(Match(OLD, OLD.places[0], new, NOON), "gpu2", SERIAL)
    assert finding.seen == "the machine that was gpu1 until 2026-11-01"
    assert finding.cause == (
        "board serial MH19S00123; gpu2 was board serial MH19S00123, which is now gpu7; its past follows it"
    )
