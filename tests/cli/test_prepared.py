"""A command line in a fork of a prepared process: it does what it would do in a process of its own, or that process does it."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rigwright
from rigwright.cli import prepared, prepared_client
from rigwright.core import forked
from rigwright.engine import playbook
from rigwright.ssh import keeper_socket
from rigwright.ssh.keeper_socket import ANSWER, REQUEST, Listening, Wire
from tests.ssh.conftest import box as box
from tests.ssh.conftest import until
from tests.ssh.shell_server import ShellServer

ALONE = 99
"""The exit code where no fork ran the command."""


class Program:
    """The program `rigwright` in a folder with an inventory."""

    def __init__(self, box: ShellServer) -> None:
        self.folder = box.folder
        self.script = box.folder / "rigwright.d" / "rigwright"
        self.script.parent.mkdir()
        self.script.write_text("from rigwright.cli import start\nstart.rigwright()\n")
        self.inventory = box.folder / "hosts.yml"
        self.write({"box": dict(box.host().variables)})
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        self.words = ["facts", "--host", "box", "--keep", "1m", "--inventory", str(self.inventory)]

    def write(self, hosts: dict[str, Any]) -> None:
        """Writes the inventory."""
        self.inventory.write_text(json.dumps({"all": {"hosts": hosts}}))

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs a command as a person does."""
        argv = [sys.executable, str(self.script), *(words or self.words)]
        return subprocess.run(
            argv, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )

    def begin(self, *words: str) -> subprocess.Popen[str]:
        """Begins a command that runs in a fork or not at all."""
        code = "from rigwright.cli import prepared_client; import sys; sys.argv[0] = sys.argv.pop(1); prepared_client.WAIT_S = 30; prepared_client.run('rigwright'); sys.exit(99)"
        pipe = subprocess.PIPE
        argv = [sys.executable, "-c", code, str(self.script), *(words or self.words)]
        return subprocess.Popen(
            argv, cwd=self.folder, env=self.environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )

    def forked(self, *words: str) -> tuple[int, str, str]:
        """The exit code and outputs of a command that runs in a fork or not at all."""
        process = self.begin(*words)
        out, errors = process.communicate(timeout=60)
        return process.returncode, out, errors

    @functools.cached_property
    def place(self) -> Path:
        """The socket of the prepared process."""
        argv = [sys.executable, "-c", "from rigwright.cli import prepared_client as c; print(c.place())"]
        found = subprocess.run(argv, env=self.environment, capture_output=True, text=True, check=True)
        return Path(found.stdout.strip())

    @property
    def pid(self) -> int:
        """The prepared process."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.place))
            return int(struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])

    @property
    def forks(self) -> list[int]:
        """The forks that run."""
        of, found = self.pid, []
        for status in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                state, parent = status.read_text().rpartition(")")[2].split()[:2]
                if int(parent) == of and state != "Z":
                    found.append(int(status.parent.name))
        return found


@pytest.fixture
def program(box: ShellServer) -> Iterator[Program]:
    """Yields the program after a first run, when the connection is kept and the process prepared."""
    found = Program(box)
    first = found.run()
    assert (first.returncode, first.stderr) == (0, "")
    until(lambda: box.logins == 2)
    until(found.place.exists)
    until(lambda: _serves(found.place), 30)
    yield found
    box.delay_s = 0
    closed = found.run("connections.close", "--json", "-")
    assert closed.returncode == 0
    assert json.loads(closed.stdout)["closed"] in ([], ["box"])
    assert found.run("connections.close").stdout == "no connection is kept\n"
    until(lambda: not found.place.exists())


def _serves(place: Path) -> bool:
    """Whether the prepared process has imported everything: it answers what is no request by closing."""
    wire = keeper_socket.connected(place)
    if wire is None:
        return False
    with contextlib.closing(wire):
        try:
            wire.send(REQUEST, b'{"do": "nothing"}')
            wire.receive(0.5)
        except EOFError:
            return True
        except OSError:  # it does not answer yet, or it is gone
            return False
    return False


def test_it_does_what_a_process_of_its_own_does(program: Program) -> None:
    inventory = ["--inventory", str(program.inventory)]
    for words in (
        ["facts", *inventory],
        ["facts", "--host", "nobody", *inventory],
        ["facts", "--unknown"],
        ["plan", "--playbook", "no"],
    ):
        own, (code, out, errors) = program.run(*words), program.forked(*words, "--keep", "1m")
        assert (code, _stable(out), _stable(errors)) == (own.returncode, _stable(own.stdout), _stable(own.stderr))
    code, out, errors = program.forked(*program.words, "--json", "written.json")
    assert (code, errors) == (0, "")
    document = json.loads((program.folder / "written.json").read_text())
    assert (document["command"], list(document["hosts"])) == ("facts", ["box"])
    assert program.forked(*program.words, "--json", "-")[1].startswith("{")


def _stable(text: str) -> str:
    """A text without the figures of this machine that change between two runs."""
    return re.sub(r"\d+", "0", text)


@pytest.mark.parametrize("variables", [{"ansible_connection": "local"}, {"a_password": "SECRET"}])
def test_what_needs_the_terminal_of_the_person(box: ShellServer, program: Program, variables: dict[str, str]) -> None:
    program.write({"box": {**box.host().variables, **variables}})
    text = program.inventory.read_text()
    program.inventory.write_text(text.replace('"SECRET"', '!secret {command: ["echo", "hello-secret"]}'))
    assert program.forked()[0] == ALONE


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_fork_as_it_ends_a_process(
    box: ShellServer, program: Program, number: signal.Signals
) -> None:
    box.delay_s = 20
    process = program.begin(*program.words, "--json", "end.json")
    until(lambda: bool(program.forks))
    time.sleep(1)
    process.send_signal(number)
    _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (130, "")
    assert json.loads((program.folder / "end.json").read_text())["exit_code"] == 130
    assert program.forks == []


def test_a_fork_ends_with_the_process_of_the_person(box: ShellServer, program: Program) -> None:
    box.delay_s = 20
    process = program.begin(*program.words, "--json", "end.json")
    until(lambda: bool(program.forks))
    time.sleep(1)
    process.kill()
    until(lambda: program.forks == [], 20)
    assert json.loads((program.folder / "end.json").read_text())["exit_code"] == 130


def test_a_fork_stops_and_continues_with_its_process(box: ShellServer, program: Program) -> None:
    """As with Ctrl-Z and fg."""
    box.delay_s = 2
    process = program.begin()
    until(lambda: bool(program.forks))
    time.sleep(1)
    (fork,) = program.forks
    process.send_signal(signal.SIGTSTP)
    until(lambda: _state(fork) == _state(process.pid) == "T")
    process.send_signal(signal.SIGCONT)
    out, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")
    assert out.startswith("box")


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_fork_that_is_killed(box: ShellServer, program: Program) -> None:
    box.delay_s = 20
    process = program.begin()
    until(lambda: bool(program.forks))
    time.sleep(1)
    os.kill(program.forks[0], signal.SIGKILL)
    process.communicate(timeout=20)
    assert process.returncode == -signal.SIGKILL


def test_a_prepared_process_that_is_killed(program: Program) -> None:
    os.kill(program.pid, signal.SIGKILL)
    until(lambda: keeper_socket.connected(program.place) is None)
    assert program.forked()[0] == ALONE
    assert program.run().returncode == 0, "it starts another one"
    until(lambda: _serves(program.place), 30)


def test_a_client_that_does_not_wait_is_not_served_twice(box: ShellServer, program: Program) -> None:
    wire = keeper_socket.connected(program.place)
    assert wire
    before = len(box.programs)
    with open(os.devnull, "r+b") as null:
        wire.send_files(*[null.fileno()] * 3)
    request = {"do": "run", "program": "rigwright", "argv": ["rigwright", *program.words], "orig_argv": ["python"], "folder": "/",
               "environment": program.environment, "umask": 0o22, "nice": 0, "ignored": []}  # fmt: skip
    wire.send(REQUEST, json.dumps(request).encode())
    assert wire.receive(5)[0] == ANSWER
    wire.close()
    until(lambda: program.forks == [])
    assert len(box.programs) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--keep soon", "--keep: 'soon' is no time to keep connections for"),
        ("--keep 10m --executor tcp://127.0.0.1:1 --insecure", "--keep: is for connections of this machine"),
    ],
)
def test_what_keep_does_not_take(box: ShellServer, words: str, message: str) -> None:
    program = Program(box)
    done = program.run("facts", "--host", "box", "--inventory", str(program.inventory), *words.split())
    assert (done.returncode, message in done.stderr or message in done.stdout, box.logins) == (1, True, 0)


def test_keep_0_closes_the_connection_of_the_host(box: ShellServer, program: Program) -> None:
    program.write({"box": dict(box.host().variables), "other": dict(box.host().variables)})
    assert program.run("facts", "--host", "other", "--keep", "0", "--inventory", str(program.inventory)).returncode == 0
    assert box.logins == 3
    assert program.run(*program.words[:3], "--keep", "0", *program.words[5:]).returncode == 0
    assert box.logins == 4
    assert "no connection is kept" in program.run("connections.close").stdout


@pytest.mark.parametrize(
    ("words", "forks"),
    [
        ("facts --keep 10m", True),
        ("facts --keep=10m --host all", True),
        ("facts", False),
        ("facts --keep 0", False),
        ("facts --keep=0", False),
        ("provision --keep 10m --serial 1,10%", False),
        ("provision --keep 10m --resume", False),
        ("verify --keep 10m --watch", False),
        ("plan --keep 10m --executor=tls://a:1", False),
        ("plan --keep 10m --vault-password-file /dev/fd/63", False),
        ("plan --keep 10m --inventory /dev/fd/63", False),
    ],
)
def test_which_command_lines_may_run_in_a_fork(words: str, forks: bool) -> None:
    assert prepared_client._is_for_it(words.split()) is forks


def test_a_variable_that_changes_python(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PYTHON")]:
        monkeypatch.delenv(name)
    assert prepared_client.may_serve()
    monkeypatch.setenv("PYTHONUTF8", "1")
    assert not prepared_client.may_serve()


@pytest.fixture
def server(box: ShellServer) -> Iterator[prepared._Server]:
    """Yields a server in this process, which must not fork."""
    listening = Listening.on(box.folder / "run.sock")
    assert listening
    yield prepared._Server(listening, 60)
    listening.end()


def _asked(server: prepared._Server, *frames: bytes, files: bool = True) -> bytes:
    """What a server answers to the frames of a client."""
    near, far = socket.socketpair()
    client = Wire(near)
    if files:
        client.send_files(0, 1, 2)
    for frame in frames:
        near.sendall(frame)
    with contextlib.suppress(OSError, EOFError, ValueError, KeyError, TypeError):
        assert server._answer(far) is None
    near.settimeout(5)
    with contextlib.closing(near):
        return near.recv(1000)


def _frame(text: bytes) -> bytes:
    return b"R" + len(text).to_bytes(4, "big") + text


def test_a_file_that_has_changed_ends_it(
    server: prepared._Server, box: ShellServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("it must not fork"))
    monkeypatch.syspath_prepend(str(box.folder))
    module = box.folder / "an_example_of_a_module.py"
    module.write_text("one = 1\n")
    assert server.imports({module.stem: str(module)})
    module.write_text("one = 10\n")
    assert _asked(server, _frame(b'{"do": "run"}')) == b""
    assert server._until == 0


def test_what_was_compiled_of_the_catalogue_does_not_end_it(
    server: prepared._Server, box: ShellServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a change of a source every process may write it anew, also its own rehearsal."""
    package = box.folder / "rigwright"
    shutil.copytree(Path(rigwright.__file__).parent / "catalogue", package / "catalogue")
    monkeypatch.setattr(rigwright, "__file__", str(package / "__init__.py"))
    catalogue = package / "catalogue"
    (catalogue / "__pycache__").mkdir(exist_ok=True)
    compiled = catalogue / "__pycache__" / "drivers.branches.cpython-311.pickle"
    compiled.write_bytes(b"older")
    server._rehearse()
    compiled.write_bytes(b"newer and longer")
    (catalogue / "__pycache__" / "gpus.model.another.pickle").write_bytes(b"x")
    assert not server.has_changed()
    (catalogue / "rigs" / "another.yml").write_text("{}\n")
    assert server.has_changed(), "a rig was added"
    (catalogue / "rigs" / "another.yml").unlink()
    server._rehearse()
    assert not server.has_changed()
    (catalogue / "cuda.yml").touch()
    assert server.has_changed()


def test_a_rehearsal_binds_the_shipped_playbooks(server: prepared._Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake in it would cost time only, and nobody would see it."""
    bound: list[tuple[int, int]] = []
    original = playbook.bind_all

    def bind_all(*words: Any) -> Any:
        hosts, refused = original(*words)
        bound.append((len(hosts), len(refused)))
        return hosts, refused

    monkeypatch.setattr(playbook, "bind_all", bind_all)
    server._rehearse()
    assert bound == [(1, 0), (1, 0)]
    assert any(name.endswith("catalogue/cuda.yml") for name in server._files)


def test_modules_that_are_not_those_of_the_run(server: prepared._Server, box: ShellServer) -> None:
    assert not server.imports({"json": "/another/json/__init__.py"})
    assert not server.imports({"there_is_none_of_this_name": str(box.folder / "x.py")})


@pytest.mark.parametrize(
    ("sent", "files"),
    [
        (b"R\xff\xff\xff\xff", True),
        (_frame(b"[]"), True),
        (_frame(b'{"do": "run"'), True),
        (_frame(b'{"do": "run"}'), False),
        (_frame(b'{"do": 3}'), True),
        (b"A\0\0\0\x02{}", True),
    ],
)
def test_what_is_no_request(
    server: prepared._Server, monkeypatch: pytest.MonkeyPatch, sent: bytes, files: bool
) -> None:
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("it must not fork"))
    open_before = len(os.listdir("/proc/self/fd"))
    assert _asked(server, sent, files=files) == b""
    assert len(os.listdir("/proc/self/fd")) == open_before


def test_a_slow_client(server: prepared._Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared, "REQUEST_S", 0.2)
    assert _asked(server, b"R\0\0\0\x20{") == b""
    assert _asked(server, files=False) == b""
    assert not forked.is_fork
