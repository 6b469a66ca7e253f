"""Connections that are kept for later runs: when one is used, and that a run without one does as if there were none."""

from __future__ import annotations

import os
import signal
import socket
import struct
import threading
import time
from pathlib import Path

import paramiko
import pytest

from rigwright.core.command import command
from rigwright.core.errors import Interrupted, Unreachable, UsageError
from rigwright.ssh import connect, keeper, keeper_socket, kept
from rigwright.ssh.transport import Ssh
from tests.ssh.conftest import KEEP_S, InProcess, reads, until
from tests.ssh.shell_server import ShellServer


def test_a_second_run_needs_no_login(box: ShellServer, keeping: InProcess) -> None:
    assert [reads(box, "one"), reads(box, "two")] == ["one", "two"]
    assert box.logins == 2
    assert keeping.keeper._kept


def test_without_the_option_every_run_has_its_own(box: ShellServer, keeping: InProcess) -> None:  # noqa: ARG001
    assert reads(box, keep_s=None) == "hello"
    assert box.logins == 3


def test_a_long_answer_and_a_long_script(box: ShellServer, keeping: InProcess) -> None:  # noqa: ARG001
    run = Ssh(box.host(), root=False, keep_s=KEEP_S)
    word = "x" * 100_000
    loud = command("sh", "-c", "head -c 700000 /dev/zero | tr '\\0' y; head -c 3000 /dev/zero | tr '\\0' z >&2; exit 3")
    answers = run.run([command("printf", "%s", word), loud], together=True)
    run.close()
    assert answers[0].stdout == word.encode()
    assert (answers[1].code, len(answers[1].stdout), answers[1].stderr) == (3, 700_000, b"z" * 3000)
    assert box.logins == 2


def test_what_may_change_the_host_has_a_login_of_its_own(box: ShellServer, keeping: InProcess) -> None:
    run = Ssh(box.host(), root=False, keep_s=KEEP_S)
    assert run.run([command("echo", "read", reads=True)], together=True)[0].text.strip() == "read"
    assert box.logins == 2
    assert run.run([command("echo", "change")])[0].text.strip() == "change"
    assert (box.logins, keeping.keeper._kept) == (3, {}), "a later login may get other groups than that of the kept one"
    run.close()


def test_a_run_without_the_option_that_changes_the_host_ends_the_kept_one(box: ShellServer, keeping: InProcess) -> None:
    run = Ssh(box.host(), root=False)
    run.run([command("true")])
    run.close()
    until(lambda: not keeping.keeper._kept)


def test_a_changed_record_of_the_host_key(box: ShellServer, keeping: InProcess) -> None:
    box.record(paramiko.ECDSAKey.generate())
    box.programs.clear()
    with pytest.raises(Exception, match="has changed"):
        reads(box)
    assert (box.programs, keeping.keeper._kept) == ([], {})


def test_a_revoked_host_key(box: ShellServer, keeping: InProcess) -> None:
    with box.known_hosts.open("a") as file:
        file.write(f"@revoked [127.0.0.1]:{box.port} {box.host_key.get_name()} {box.host_key.get_base64()}\n")
    with pytest.raises(Exception, match="revoked"):
        reads(box)
    assert not keeping.keeper._kept


@pytest.mark.parametrize(
    "line", ["User other", "IdentityAgent /run/an-agent", "HostKeyAlias box\n  UserKnownHostsFile none"]
)
def test_ssh_config_that_changed(box: ShellServer, keeping: InProcess, line: str) -> None:
    (box.folder / ".ssh/config").write_text(f"Host 127.0.0.1\n  {line}\n")
    if "Alias" in line:
        box.known_hosts.write_text(f"box {box.host_key.get_name()} {box.host_key.get_base64()}\n")
    assert reads(box) == "hello"
    if "User o" in line:
        assert box.logins == 2, "the inventory's user precedes ssh_config's, so nothing has changed"
    else:
        assert (box.logins, keeping.keeper._kept) == (3, {})


def test_another_key_file_or_another_one_of_its_name(box: ShellServer, keeping: InProcess) -> None:
    other = box.folder / "other"
    box.key.write_private_key_file(str(other))
    assert reads(box, ansible_ssh_private_key_file=str(other)) == "hello"
    assert (box.logins, len(keeping.keeper._kept)) == (3, 1)
    box.key_file.unlink()
    box.key.write_private_key_file(str(box.key_file))
    assert reads(box) == "hello"
    assert (box.logins, keeping.keeper._kept) == (4, {})


def test_a_connection_that_the_host_has_closed(box: ShellServer, keeping: InProcess) -> None:
    box.cut()
    assert reads(box) == "hello"
    assert (box.logins, keeping.keeper._kept) == (3, {})


def test_a_host_that_does_not_answer_any_more(
    box: ShellServer, keeping: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a power cut: the connection looks open."""
    answers = threading.Event()
    monkeypatch.setattr(keeper, "LIFE_S", 0.3)
    (one,) = keeping.keeper._kept.values()
    monkeypatch.setattr(
        one.session.connection.client.get_transport(), "global_request", lambda *_, **__: answers.wait(150)
    )
    began = time.monotonic()
    assert reads(box) == "hello"
    assert box.logins == 3
    assert time.monotonic() - began < 60
    answers.set()


def test_a_connection_that_is_lost_while_it_reads(box: ShellServer, keeping: InProcess) -> None:
    run = Ssh(box.host(), root=False, keep_s=KEEP_S)
    run.connect()
    (one,) = keeping.keeper._kept.values()
    slow = command("sh", "-c", f"[ -e {box.folder}/again ] || {{ : >{box.folder}/again; sleep 60; }}; echo done")
    threading.Thread(target=lambda: (until((box.folder / "again").exists), one.session.close()), daemon=True).start()
    assert run.run([slow], together=True)[0].text.strip() == "done"
    run.close()
    assert box.logins == 3


def test_a_keeper_that_is_killed_while_it_is_used(box: ShellServer) -> None:
    own = Ssh(box.host(), root=False)
    own.connect()
    own.close()
    kept.order([(box.host(), own.decision)], KEEP_S)
    until(lambda: box.logins == 2)
    place = keeper_socket.place()
    assert place
    run = Ssh(box.host(), root=False, keep_s=KEEP_S)

    def is_used() -> bool:
        run._may_use_kept = True
        return run._use_kept() is not None

    until(is_used)
    os.kill(_pid(place), signal.SIGKILL)
    assert run.run([command("echo", "read", reads=True)], together=True)[0].text.strip() == "read"
    run.close()
    assert (place.exists(), box.logins) == (True, 3), "what a killed keeper leaves is in nobody's way"
    assert reads(box) == "hello"
    InProcess().keeps(box).end()


def _pid(place: Path) -> int:
    """The process that listens on a socket."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(place))
        return int(struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])


def test_the_process_has_no_terminal_no_files_and_no_secret(box: ShellServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASSWORD_OF_SOMETHING", "correct horse")
    own = Ssh(box.host(), root=False)
    own.connect()
    own.close()
    with open(box.folder / "inherited", "w") as file:
        os.set_inheritable(file.fileno(), True)
        kept.order([(box.host(), own.decision)], 2.0)
    until(lambda: box.logins == 2)
    place = keeper_socket.place()
    assert place
    pid = _pid(place)
    if os.geteuid() == 0:  # the process lets nobody else look into it
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        files = [os.readlink(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd")]
        assert b"correct horse" not in environment
        assert str(box.folder / "inherited") not in files
    assert os.getsid(pid) == pid
    assert (os.stat(place).st_mode & 0o777, os.stat(place.parent).st_mode & 0o777) == (0o700, 0o700)
    until(lambda: not place.exists(), 15)  # its time is over


def test_the_time_begins_again_with_each_use(box: ShellServer) -> None:
    found = InProcess().keeps(box, 1.0)
    (one,) = found.keeper._kept.values()
    run = Ssh(box.host(), root=False, keep_s=1.0)
    run.connect()
    time.sleep(1.2)
    assert found.keeper._kept, "it is in use"
    run.close()
    until(lambda: not one.users)
    assert found.ended.wait(60), "it ends with its last connection"
    assert not found.place.exists()


def test_a_run_that_comes_to_another_decision_keeps_nothing(box: ShellServer) -> None:
    found = InProcess()
    host = box.host()
    found.start(
        {"keep_s": 60, "orders": [{"name": host.name, "variables": dict(host.variables), "decision": "another"}]}
    )
    assert found.ended.wait(60)
    assert box.logins == 1


@pytest.mark.parametrize("path", ["key", "./key"])
def test_a_file_that_depends_on_the_current_folder(box: ShellServer, path: str) -> None:
    kept.order([(box.host(ansible_ssh_private_key_file=path), "decision")], KEEP_S)
    assert not kept.exists()


def test_two_runs_share_one_connection_and_a_fifth_has_its_own(box: ShellServer, keeping: InProcess) -> None:  # noqa: ARG001
    runs = [Ssh(box.host(), root=False, keep_s=KEEP_S) for _ in range(keeper.MOST_USERS + 1)]
    answers: list[str] = []

    def read(run: Ssh) -> None:
        answers.append(
            run.run([command("sh", "-c", "sleep 0.3; echo hello", reads=True)], together=True)[0].text.strip()
        )

    for run in runs:
        run.connect()
    threads = [threading.Thread(target=read, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for run in runs:
        run.close()
    assert answers == ["hello"] * len(runs)
    assert box.logins == 3


def test_an_interruption_ends_a_read_and_leaves_the_connection(box: ShellServer, keeping: InProcess) -> None:
    run = Ssh(box.host(), root=False, keep_s=KEEP_S)
    run.connect()
    threading.Timer(0.3, run.abandon).start()
    began = time.monotonic()
    with pytest.raises(Exception, match="lost"):
        run.run([command("sleep", "150", reads=True)], together=True)
    assert time.monotonic() - began < 60
    with pytest.raises(Interrupted):
        run.connect()
    assert reads(box) == "hello"
    assert (box.logins, len(keeping.keeper._kept)) == (2, 1)


def test_a_session_that_is_closed_while_a_channel_opens(
    box: ShellServer, keeping: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by Ctrl-C: the keeper may not have noticed yet that the run is gone."""
    session = kept.session(box.host(), KEEP_S)
    assert session
    opened = session._open

    def then_closed(deadline: float, program: str) -> kept.KeptChannel:
        channel = opened(deadline, program)
        session.close()
        return channel

    monkeypatch.setattr(session, "_open", then_closed)
    with pytest.raises(Unreachable, match="closed"), session.channel(time.monotonic() + 10, "sleep 60"):
        pytest.fail("it is closed")
    assert keeping.keeper._kept


def test_connections_are_closed_by_command(box: ShellServer, keeping: InProcess) -> None:
    assert kept.close_all() == ["box"]
    assert keeping.ended.wait(60)
    assert kept.close_all() == []
    assert reads(box) == "hello"


def test_a_password_of_sudo_goes_through_the_channel(box: ShellServer, keeping: InProcess) -> None:
    """The keeper gives a program its input, and has nothing of it afterwards."""
    session = kept.session(box.host(), KEEP_S)
    assert session is not None
    with session.channel(time.monotonic() + 10, "") as channel:
        channel.exec_command("read -r word; echo got $word >&2; exit 1")
        channel.sendall(b"correct-horse\n")
        until(channel.exit_status_ready)
        assert channel.recv_stderr(100) == b"got correct-horse\n"
    session.close()
    assert "correct-horse" not in repr(vars(keeping.keeper))


@pytest.mark.parametrize(
    ("text", "seconds"), [("", None), ("0", 0), ("90", 90), ("90s", 90), ("10m", 600), ("24h", 86400)]
)
def test_a_time(text: str, seconds: float | None) -> None:
    assert kept.duration_s(text) == seconds


@pytest.mark.parametrize("text", ["m", "-1", "1d", "25h", "1.5m", "٣m", "9" * 40, "ten"])
def test_no_time(text: str) -> None:
    with pytest.raises(UsageError, match="no time to keep"):
        kept.duration_s(text)


def test_a_login_that_is_still_verified(box: ShellServer) -> None:
    session = connect.verified(box.host(), 10, lambda _abort: None)
    assert connect.still_verified(session)
    box.record(paramiko.ECDSAKey.generate())
    assert not connect.still_verified(session)
    session.close()


def test_nobody_listens(box: ShellServer) -> None:
    place = keeper_socket.place(make=True)
    assert place
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(place))
    assert kept.exists()
    assert reads(box) == "hello"
    assert box.logins == 1
