"""Attack 25: the socket of kept connections: others in its place or on it, frames without an end, and clients that keep it waiting."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rigwright.ssh import keeper, keeper_socket, kept
from rigwright.ssh.keeper_socket import REQUEST, Wire
from tests.ssh.conftest import KEEP_S, InProcess, reads, until
from tests.ssh.shell_server import ShellServer

NOBODY = 65534


@contextlib.contextmanager
def impostor(place: Path, answer: dict[str, Any] | bytes | None) -> Iterator[list[bytes]]:
    """Listens in place of the keeper, and gives every request the same answer; yields what it was told."""
    told: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(place))
        listening.listen()

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    told.append(connection.recv(65536))
                    if isinstance(answer, bytes):
                        connection.sendall(answer)
                    elif answer is not None:
                        Wire(connection).send(keeper_socket.ANSWER, json.dumps(answer).encode())
                    waiting.append(connection)

        waiting: list[socket.socket] = []
        threading.Thread(target=serve, daemon=True).start()
        yield told
        for connection in waiting:
            connection.close()
    place.unlink()


def _place() -> Path:
    place = keeper_socket.place(make=True)
    assert place is not None
    return place


def test_a_folder_that_others_can_use(box: ShellServer) -> None:
    _place().parent.chmod(0o770)
    assert keeper_socket.place(make=True) is None
    assert reads(box) == "hello"
    kept.order([(box.host(), "decision")], KEEP_S)
    assert os.listdir(box.folder / "rigwright") == []


def test_a_folder_that_is_a_link(box: ShellServer) -> None:
    (box.folder / "real").mkdir(mode=0o700)
    (box.folder / "rigwright").symlink_to(box.folder / "real")
    assert keeper_socket.place(make=True) is None


def test_a_socket_of_another_user_is_told_nothing(box: ShellServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when another user could put a socket there: its owner, and the user who listens, are compared with this one."""
    place = _place()
    own = os.geteuid()
    with impostor(place, {"token": "t", "user": "root", "legacy": []}) as told:
        real = os.lstat

        def of_another(path: Any, **options: Any) -> os.stat_result:
            about = real(path, **options)
            return os.stat_result((*about[:4], NOBODY, *about[5:])) if Path(path) == place else about

        with monkeypatch.context() as patch:
            patch.setattr(os, "lstat", of_another)
            assert kept.session(box.host(), KEEP_S) is None
        with monkeypatch.context() as patch:
            patch.setattr(keeper_socket, "_peer_uid", lambda _connection: own + 1)
            assert kept.session(box.host(), KEEP_S) is None
        until(lambda: len(told) == 1)
        assert told == [b""], "the one that was connected to got nothing"


def test_another_user_gets_no_answer(box: ShellServer, keeping: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_socket, "_peer_uid", lambda _connection: os.geteuid() + 1)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(keeping.place))
        connection.settimeout(5)
        with contextlib.suppress(OSError):
            connection.sendall(b"R\0\0\0\x0e" + b'{"do":"close"}')
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(100) == b""
    monkeypatch.undo()
    assert keeping.keeper._kept
    assert box.logins == 2


def test_the_real_peer_is_named(box: ShellServer, as_root: None) -> None:  # noqa: ARG001
    """A process of another user listens: the kernel says so, whoever owns the socket's file."""
    place = _place()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            listening = socket.socket(socket.AF_UNIX)
            listening.bind(str(place))
            os.setuid(NOBODY)
            listening.listen()
            os.write(writing, b".")
            time.sleep(30)
        os._exit(0)
    try:
        assert os.read(reading, 1) == b"."
        assert os.lstat(place).st_uid == os.geteuid()
        assert keeper_socket.connected(place) is None
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(reading)
        os.close(writing)


LONG = b"R" + struct.pack(">I", keeper_socket.MOST_FRAME + 1)


@pytest.mark.parametrize(
    "sent",
    [
        LONG + bytes(100),
        b"R\xff\xff\xff\xff",
        b"R\0\0\0\x02[]",
        b"R\0\0\0\x02{}",
        b"O\0\0\0\x02{}",
        b"R\0\0\0\x05\xff\xff\xff\xff\xff",
        b"R" + struct.pack(">I", 100_000) + b"[" * 100_000,
        *(
            b"R" + struct.pack(">I", len(text)) + text
            for text in (
                b'{"do": "use"}',
                b'{"do": "use", "name": 1, "variables": 3, "keep_s": 1}',
                b'{"do": "channel", "token": "0", "program": "id"}',
                b'{"do": "channel", "token": null, "program": "id"}',
                b'{"do": "keep", "keep_s": "x", "orders": 3}',
                b'{"do": "keep", "keep_s": NaN, "orders": [1]}',
                b'{"do": ["close"]}',
            )
        ),
    ],
)
def test_what_is_no_request_of_a_run(box: ShellServer, keeping: InProcess, sent: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(keeping.place))
        connection.settimeout(5)
        with contextlib.suppress(BrokenPipeError):
            connection.sendall(sent)
        with contextlib.suppress(ConnectionResetError):
            while connection.recv(65536):
                pass
    assert reads(box) == "hello"
    assert box.logins == 2


def test_a_client_that_is_slow(box: ShellServer, keeping: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "REQUEST_S", 0.3)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(keeping.place))
        connection.settimeout(60)
        with pytest.raises(OSError, match=r"Broken pipe|reset by peer"):  # noqa: PT012
            for byte in b"R\0\0\x08\0" + b"{" * 1200:
                connection.sendall(bytes([byte]))
                time.sleep(0.05)
    assert reads(box) == "hello"


def test_many_clients_that_say_nothing(box: ShellServer, keeping: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "MOST_CLIENTS", 8)
    silent = [socket.socket(socket.AF_UNIX) for _ in range(20)]
    for connection in silent:
        connection.connect(str(keeping.place))
    assert reads(box) == "hello"
    assert box.logins == 3, "the run does not wait for the others"
    for connection in silent:
        connection.close()
    until(lambda: keeping.keeper._clients == 0)
    assert reads(box) == "hello"
    assert box.logins == 3


def test_a_keeper_that_says_nothing(box: ShellServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "WAIT_S", 0.3)
    with impostor(_place(), None):
        began = time.monotonic()
        assert reads(box) == "hello"
        assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    "answer",
    [
        LONG.replace(b"R", b"A"),
        b"A\0\0\0\x02[]",
        b"A\0\0\0\x04null",
        b"\0" * 50,
        {"token": 3, "user": [], "legacy": {}},
        {"token": "t", "user": "root", "legacy": 5},
        {},
    ],
)
def test_what_is_no_answer_of_a_keeper(box: ShellServer, answer: dict[str, Any] | bytes) -> None:
    with impostor(_place(), answer):
        assert reads(box) == "hello"
    assert box.logins == 1


def test_a_flood_on_a_channel(box: ShellServer) -> None:
    near, far = socket.socketpair()
    channel = kept.KeptChannel(Wire(near))
    channel.settimeout(10)

    def flood() -> None:
        with contextlib.suppress(OSError):
            while True:
                Wire(far).send(keeper_socket.ERRORS, bytes(keeper_socket.MOST_FRAME))

    threading.Thread(target=flood, daemon=True).start()
    with pytest.raises(OSError, match="window"):
        channel.recv(10)
    assert len(channel._err) < 2 * kept.MOST_UNREAD
    channel.close()
    far.close()
    assert box.logins == 0


def test_a_run_that_reads_nothing_does_not_hold_the_others(box: ShellServer, keeping: InProcess) -> None:
    session = kept.session(box.host(), KEEP_S)
    assert session
    with session.channel(time.monotonic() + 10, "yes") as channel:
        until(lambda: channel._wire.has_unread)
        time.sleep(0.3)
        assert reads(box) == "hello"
    session.close()
    assert reads(box) == "hello"
    assert (box.logins, len(keeping.keeper._kept)) == (2, 1)


def test_a_token_is_needed_and_ends_with_its_run(box: ShellServer, keeping: InProcess) -> None:
    session = kept.session(box.host(), KEEP_S)
    assert session
    token = session._token
    session.close()
    (one,) = keeping.keeper._kept.values()
    until(lambda: not one.users)
    wire = keeper_socket.connected(keeping.place)
    assert wire
    wire.send(REQUEST, json.dumps({"do": "channel", "token": token, "program": "id"}).encode())
    assert wire.receive(5) == (keeper_socket.ANSWER, b"{}")
    wire.close()
