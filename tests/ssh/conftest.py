"""A server that runs programs, a home folder, and a keeper of connections in this process."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rigwright.core.command import command
from rigwright.ssh import keeper, keeper_socket, kept
from rigwright.ssh.transport import Ssh
from tests.ssh.shell_server import ShellServer, serving

KEEP_S = 60.0


@pytest.fixture
def box(monkeypatch: pytest.MonkeyPatch) -> Iterator[ShellServer]:
    """Yields a server; the home and runtime folders are empty ones, with short paths as sockets need them."""
    folder = Path(tempfile.mkdtemp(prefix="rw-"))
    (folder / ".ssh").mkdir(mode=0o700)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setattr(kept, "WAIT_S", 20.0)  # a busy machine may be late
    monkeypatch.setattr(keeper, "LIFE_S", 10.0)
    with serving(folder) as server:
        yield server
    shutil.rmtree(folder)


class InProcess:
    """A keeper that runs in a thread of the tests."""

    def __init__(self) -> None:
        place = keeper_socket.place(make=True)
        assert place is not None
        self.place = place
        self.keeper = keeper.Keeper()
        self.ended = threading.Event()
        self._listens = threading.Event()

    def start(self, request: dict[str, Any]) -> None:
        """Begins with a request, as the process does."""
        threading.Thread(target=self._serve, args=(request,), daemon=True).start()
        assert self._listens.wait(10)

    def _serve(self, request: dict[str, Any]) -> None:
        listening = keeper_socket.Listening.on(self.place)
        assert listening is not None
        self._listens.set()
        self.keeper.keep(request)
        self.keeper.serve(listening.socket)
        listening.end()
        self.ended.set()

    def keeps(self, box: ShellServer, keep_s: float = KEEP_S, **variables: Any) -> InProcess:
        """Keeps a connection to a server; returns when it does."""
        host = box.host(**variables)
        own = Ssh(host, root=False)
        own.connect()
        own.close()
        order = {"name": host.name, "variables": dict(host.variables), "decision": own.decision}
        self.start({"keep_s": keep_s, "orders": [order]})
        until(lambda: bool(self.keeper._kept) or self.ended.is_set())
        return self

    def end(self) -> None:
        """Closes everything."""
        self.keeper.close()
        assert self.ended.wait(10)


@pytest.fixture
def keeping(box: ShellServer) -> Iterator[InProcess]:
    """Yields a keeper that keeps a connection to the server, which has had two logins then."""
    found = InProcess().keeps(box)
    assert box.logins == 2
    yield found
    found.end()


def until(true: Callable[[], bool], limit_s: float = 10.0) -> None:
    """Waits until something is true; fails after `limit_s` seconds."""
    end = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def reads(box: ShellServer, text: str = "hello", keep_s: float | None = KEEP_S, **variables: Any) -> str:
    """What a run reads from a server; it must succeed."""
    run = Ssh(box.host(**variables), root=False, keep_s=keep_s)
    try:
        return str(run.run([command("echo", text, reads=True)], together=True)[0].text.strip())
    finally:
        run.close()
