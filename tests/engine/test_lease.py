"""The error of a run that meets the lease of another run."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from rigwright.core.command import Result
from rigwright.core.errors import HostError
from rigwright.engine import apply, lease, run_owner
from tests.engine.shell_host import Host
from tests.host_runs import host_run
from tests.machine_speed import within
from tests.ssh.fake_transport import FakeTransport


def test_the_message_about_another_run() -> None:
    transport = FakeTransport(lambda _cmd: Result(75, b"12 600  20261121-1000 ada@gpu-elsewhere-2f.402 4711 1\n"))
    with pytest.raises(HostError) as caught:
        lease.take(transport, "servbadge", "20261122-0900")
    assert str(caught.value) == (
        "servbadge: run 20261121-1000 by ada@gpu-elsewhere is changing it (its lease was renewed 12 s ago)\n"
        "  expected: one run at a time\n"
        "  fix:      wait until it is done, or until its lease expires, in 588 s unless it renews it; "
        "then run the same command"
    )


@pytest.mark.parametrize("owner", ["@" * 60_000, "a@" * 30_000, "a " * 30_000, "a@a 1 " + "1" * 60_000])
@pytest.mark.parametrize("begin", ["", "a ", "12 600 busy a "])
def test_an_owner_without_end_is_refused_at_once(begin: str, owner: str) -> None:
    """Hostile: an expression that tries every @ for every beginning takes minutes, and stops the threads of the other
    hosts."""
    transport = FakeTransport(lambda _cmd: Result(75, (begin + owner).encode()))
    started = time.thread_time()
    assert not run_owner.has_ended(begin + owner)
    with pytest.raises(HostError):
        lease.take(transport, "servbadge", "20261122-0900")
    assert len(lease.lost("servbadge", Result(77, b"", (begin + owner).encode())).found) < 100
    assert within(time.thread_time() - started, 1)


def test_the_message_about_a_lease_that_cannot_be_written() -> None:
    transport = FakeTransport(lambda _cmd: Result(1, b"", b"mkdir: Read-only file system\n"))
    with pytest.raises(HostError) as caught:
        lease.take(transport, "servbadge", "20261122-0900")
    assert str(caught.value) == (
        "servbadge: the lease cannot be taken: mkdir: Read-only file system\n"
        "  expected: a writable /var/lib\n"
        "  fix:      df -h /var"
    )


def test_the_last_twenty_runs_stay_on_the_host(tmp_path: Path) -> None:
    host = Host(tmp_path)
    held = lease.take(host, "host", "20261122-0900")
    for number in range(25):
        run = tmp_path / "var" / "runs" / f"run-{number}"
        (run / "before/etc").mkdir(parents=True)
        os.utime(run, (number, number))
    host.state("units", "rigwright-job-x.service loaded active running\n")
    held.release()
    assert (len(list((tmp_path / "var/runs").iterdir())), host.lease.exists()) == (25, True)  # a job is at work
    host.state("units", "")
    held.release()
    assert sorted(run.name for run in (tmp_path / "var/runs").iterdir()) == sorted(
        f"run-{number}" for number in range(5, 25)
    )
    assert not host.lease.exists()


def test_files_that_a_cut_left_half_written_are_removed(tmp_path: Path) -> None:
    host = Host(tmp_path)
    folder = tmp_path / "etc dir"
    for name in (".rigwright.aB3xYz", ".rigwright.other-name", "kept.d"):
        (folder / name).mkdir(parents=True)
    (folder / ".rigwright.aB3xYz" / "content").write_text("half")
    (folder / ".rigwright.000000").symlink_to(folder / "kept.d")
    held = lease.take(host, "host", "20261122-0900")
    (tmp_path / "var/files").write_text(f"{folder}/a.conf\n{folder}/b.conf\n/does/not/exist\nno path\n")
    held.release()
    assert sorted(path.name for path in folder.iterdir()) == [".rigwright.other-name", "kept.d"]


@pytest.mark.parametrize(
    ("owner", "stays"),
    [
        ("20261122-0900 ada@{machine} 999999999 4711", False),  # a process of this machine that has ended
        ("20261122-0900 ada@{machine} {pid} {started}", True),
        ("20261122-0900 ada@elsewhere-2f.402 999999999 4711", True),
        ("nobody knows", True),
    ],
)
def test_a_run_without_changes_removes_the_lease_of_one_that_was_cut(tmp_path: Path, owner: str, stays: bool) -> None:
    host = Host(tmp_path)
    started = run_owner._start_of_process(os.getpid())
    line = owner.format(machine=run_owner._machine(), pid=os.getpid(), started=started)
    host.lease.write_text(f"{line}\n11111111-first 15 600\n")
    (tmp_path / "etc" / ".rigwright.aB3xYz").mkdir(parents=True)
    (tmp_path / "var/files").write_text(f"{tmp_path}/etc/a.conf\n")
    run = host_run(host, "20261122-1000", host.host)
    apply.tidy(run)
    assert host.lease.exists(), "nothing was read yet"
    run.store.learn([(lease.holder, host.run([lease.holder.command])[0])])
    apply.tidy(run)
    assert host.lease.exists() == stays
    assert (tmp_path / "etc" / ".rigwright.aB3xYz").exists() == stays


def test_each_lease_has_a_greater_token_and_the_system_log_says_who_took_it(tmp_path: Path) -> None:
    host = Host(tmp_path)
    tokens = []
    for run, boot in (("1", "11111111-first"), ("2", "22222222-second")):
        host.boot(boot)
        held = lease.take(host, "gpu01", run)
        tokens.append(held.token)
        held.release()
    assert tokens == [1, 2]
    assert host.log == [
        "run 1 changes this host as gpu01 from now on (lease 1)",
        "run 1 has ended its work on this host",
        "run 2 changes this host as gpu01 from now on (lease 2)",
        "run 2 has ended its work on this host",
    ]


@pytest.mark.parametrize("text", ["", "x\n", "-4\n", "08\n", "9" * 40, "1; reboot\n", "7\n8\n"])
def test_a_damaged_token_file_stops_nobody(tmp_path: Path, text: str) -> None:
    host = Host(tmp_path)
    (tmp_path / "var" / "lease.token").write_text(text)
    assert lease.take(host, "gpu01", "1").token == (8 if text.startswith("7") else 1)


def take_elsewhere(host: Host, monkeypatch: pytest.MonkeyPatch) -> lease.Lease:
    """Returns the lease that run 1 on another machine has taken."""
    with monkeypatch.context() as patch:
        patch.setattr(run_owner, "_machine", lambda: "elsewhere-2f.402")
        return lease.take(host, "gpu01", "1")


def test_a_second_attempt_takes_the_host_over_and_the_first_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An order that a lost worker had is given to another one, on another machine: nobody there knows whether the first
    still works."""
    host = Host(tmp_path)
    first = take_elsewhere(host, monkeypatch)
    second = lease.take(host, "gpu01", "2", ("0", "1"))
    assert second.token > first.token
    with pytest.raises(HostError, match=r"run 2 by .* has taken this host"):
        first.renew()
    second.renew()


@pytest.mark.parametrize(("seconds", "ends"), [("0.6", True), ("30", False)])
def test_a_command_of_the_attempt_before_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: str, ends: bool
) -> None:
    """A worker that is killed leaves the command that it has begun on the host."""
    host = Host(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(run_owner, "_machine", lambda: "elsewhere-2f.402")
        lease.take(host, "gpu01", "1")
        variables = {**os.environ, **run_owner.environment("1")}
    (tmp_path / "bin" / "sleep").unlink()
    monkeypatch.setattr(lease, "_AWAIT_QUIET", lease._AWAIT_QUIET.replace("-lt 600", "-lt 20"))
    with subprocess.Popen(["sleep", seconds], env=variables) as left:
        try:
            if ends:
                lease.take(host, "gpu01", "1", ("1",))
                assert left.poll() == 0
            else:
                with pytest.raises(HostError, match=r"a command of run 1 by .* still runs on it"):
                    lease.take(host, "gpu01", "2", ("1",))
        finally:
            left.kill()


def test_the_token_tells_two_attempts_of_one_process_apart(tmp_path: Path) -> None:
    """A worker that lost its scheduler for a while may get the order again while its first attempt is still at work."""
    host = Host(tmp_path)
    first, second = (lease.take(host, "gpu01", "1") for _ in range(2))
    assert (first.token, second.token) == (1, 2)
    with pytest.raises(HostError, match=r"run 1 by .* has taken this host"):
        first.renew()
    first.release()
    second.renew()
    assert host.lease.read_text().startswith(f"{second.owner}\n")


def test_a_run_that_another_one_continues_gets_no_lease_any_more(tmp_path: Path) -> None:
    """The orders of a controller that was killed are still with the workers; they must not undo what its successor
    did."""
    host = Host(tmp_path)
    lease.take(host, "gpu01", "2", ("0", "1", "2")).release()
    for run in ("0", "1"):
        with pytest.raises(HostError, match=f"run {run} has ended: run 2 continues its work"):
            lease.take(host, "gpu01", run)
    assert not host.lease.exists()
    lease.take(host, "gpu01", "2", ("0", "1", "2")).release()
    lease.take(host, "gpu01", "3").release()


@pytest.mark.parametrize(("name", "runs"), [("gpu01", ()), ("gpu01", ("0",)), ("gpu02", ("1",))])
def test_another_run_and_another_name_of_the_host_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, runs: tuple[str, ...]
) -> None:
    """Two names of one machine in one rollout must not take it from each other."""
    host = Host(tmp_path)
    take_elsewhere(host, monkeypatch)
    with pytest.raises(HostError, match=r"run 1 by .*@elsewhere is changing it"):
        lease.take(host, name, "2", runs)


def test_two_names_of_one_machine_wait_for_each_other_in_one_process_too(tmp_path: Path) -> None:
    host = Host(tmp_path)
    lease.take(host, "gpu01", "1")
    with pytest.raises(HostError, match=r"run 1 by .* is changing it"):
        lease.take(host, "gpu02", "1")
