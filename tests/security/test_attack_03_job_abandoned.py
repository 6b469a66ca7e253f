"""A job that runs is never abandoned: an answer that nobody can read says neither that it ended nor that the host is
free."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rigwright.core.command import Result, script
from rigwright.core.errors import HostError, Unreachable
from rigwright.engine import jobs, lease
from rigwright.facts import FactStore, Unreadable
from rigwright.facts.own_programs import at_work
from tests.engine.shell_host import Host

WORK = script("echo works", long=True, timeout_s=60)
UNREADABLE = {
    "nothing, because the poll ran past its limit": Result(124, b""),
    "nothing at all": Result(0, b""),
    "killed": Result(137, b"running 11111111"),
    "half a line": Result(0, b"running 1111"),
    "another exit code": Result(1, b"0 11111111-first 11111111-first kept 2026-11-22 09:00:00 UTC\n"),
    "no number": Result(0, b"0x 11111111-first 11111111-first kept 2026-11-22 09:00:00 UTC\n"),
    "bytes": Result(0, b"\xff\xfe \x1b]52;c;aGk=\x07 - kept x\n" * 9),
}


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rigwright.engine.jobs.time.sleep", lambda _seconds: None)


@pytest.mark.parametrize("answer", UNREADABLE.values(), ids=UNREADABLE)
def test_an_unreadable_poll_means_still_running(tmp_path: Path, answer: Result) -> None:
    host, polls = Host(tmp_path), iter(range(99))
    owner = lease.take(host, "host", "1").owner

    def after(_result: Result) -> Result | None:
        return answer if next(polls) in (1, 2, 3, 4) else None  # the first command starts the job

    host.after = after
    lines: list[str] = []
    assert jobs.run(host, owner, "Driver", 0, WORK, lines.append).stdout == b"works\n"
    assert lines[0].startswith("the host does not say whether the job runs")
    assert host.starts == 1


@pytest.mark.parametrize("lost", [Result(124, b""), Result(-1, b""), Unreachable("host", "the connection was lost")])
@pytest.mark.parametrize("started", [True, False])
def test_a_start_without_an_answer_starts_the_job_once(
    tmp_path: Path, lost: Result | Unreachable, started: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, real, calls = Host(tmp_path), Host._answer, iter(range(99))
    owner = lease.take(host, "host", "1").owner

    def answer(self: Host, cmd: object) -> Result:
        first = next(calls) == 0
        result = real(self, cmd) if started or not first else Result(-1, b"")  # type: ignore[arg-type]
        if first and isinstance(lost, Unreachable):
            raise lost
        return lost if first and isinstance(lost, Result) else result

    monkeypatch.setattr(Host, "_answer", answer)
    assert jobs.run(host, owner, "Driver", 0, WORK, print).code == 0
    assert host.starts == 1


def test_the_lease_stays_while_a_job_runs(tmp_path: Path) -> None:
    """Whatever ends the run: the host itself keeps the lease, also if its systemd does not answer."""
    host = Host(tmp_path)
    taken = lease.take(host, "host", "1")
    for state, text in (("units", "rigwright-job-driver-0.service loaded active running x\n"), ("silent", "")):
        host.state(state, text)
        taken.release()
        assert host.lease.exists(), state
        (tmp_path / "state" / state).unlink()
    taken.release()
    assert not host.lease.exists()


MALFORMED: dict[str, Callable[[Host], object]] = {
    "empty": lambda host: host.lease.write_text(""),
    "of one line": lambda host: host.lease.write_text("2 ada@elsewhere-2f.1 4711 1\n"),
    "without length": lambda host: host.lease.write_text("2 ada@elsewhere-2f.1 4711 1\n11111111-first 10\n"),
    "a number that no shell can compare": lambda host: host.lease.write_text("2 a@b 1 1\nb 1 99999999999999999999\n"),
    "no number": lambda host: host.lease.write_text("2 a@b 1 1\n11111111-first 1 $(touch pwned)\n"),
    "bytes": lambda host: host.lease.write_bytes(b"\xff\xfe\x1b]0;x\x07" * 99),
}


@pytest.mark.parametrize("damage", MALFORMED.values(), ids=MALFORMED)
def test_a_lease_that_cannot_be_read_is_not_free(tmp_path: Path, damage: Callable[[Host], object]) -> None:
    host = Host(tmp_path)
    damage(host)
    before = host.lease.read_bytes()
    with pytest.raises(HostError, match="cannot be read") as caught:
        lease.take(host, "host", "1")
    assert "sudo rm /var/lib/rigwright/lease" in caught.value.fix
    assert host.lease.read_bytes() == before


@pytest.mark.parametrize(
    "answer",
    [
        Result(75, b""),
        Result(75, b"soon\n"),
        Result(75, b"1 2 three"),
        Result(124, b""),
        Result(-1, b""),
        Result(0x7F, b""),
    ],
)
def test_an_answer_about_a_lease_that_cannot_be_read_is_not_a_yes(tmp_path: Path, answer: Result) -> None:
    host = Host(tmp_path)
    host.after = lambda _result: answer
    with pytest.raises(HostError, match="the lease cannot be taken"):
        lease.take(host, "host", "1")


@pytest.mark.parametrize(
    "answer",
    [
        Result(1, b"", b"Failed to connect to bus"),
        Result(0, b"Id=rigwright-job-driver-0.service\nSubState=running\nDescription=/bin/sh job\n\nup 9\n"),
    ],
)
def test_jobs_that_systemd_does_not_tell_are_not_none(answer: Result) -> None:
    store = FactStore()
    store.learn([(at_work, answer)])
    assert isinstance(store.known[at_work], Unreadable)


def test_a_long_output_is_bounded_here(tmp_path: Path) -> None:
    host, lines = Host(tmp_path), list[str]()
    owner = lease.take(host, "host", "1").owner
    work = script("yes 0123456789abcdef | head -c 6000000; head -c 3000000 /dev/zero; echo; echo E: the end", long=True)
    result = jobs.run(host, owner, "Driver", 0, work, lines.append)
    assert result.stdout.endswith(b"\nE: the end\n")
    assert result.cut
    assert len(result.stdout) == jobs.LOG_BYTES
    assert len(lines) <= jobs.MOST_LINES + 1
    assert sum(map(len, lines)) <= jobs.MOST_LINE_BYTES + 2 * jobs.LOG_BYTES
    assert lines[-1].startswith("the output is long")
