"""A prepared process: it has imported what a command needs, and runs each command line with --keep in a fork of itself.

A run spends most of its time on imports. A run with --keep starts this process at its end with the modules that it has imported itself
(`start_one`); the next run connects to it (`rigwright.cli.prepared_client`). It runs nothing before the fork, has one thread, and ends after the time of --keep, or
when a file that it has read has changed.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import rigwright
from rigwright.cli import prepared_client, start
from rigwright.core import detached_process, forked, terminal_stream
from rigwright.ssh import keeper_socket
from rigwright.ssh.keeper_socket import ANSWER, REQUEST, Listening, Wire

REQUEST_S = 2.0
PROGRAMS = ("invoke", "inv", "rigwright")
TITLE = "(prepared to run rigwright)"
"""The last word of the command line of the prepared process; `scripts/bench` finds it by this."""
_PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); from rigwright.cli import prepared; prepared.main()"
_OWN = ("__main__", "__mp_main__", "tasks", "sitecustomize", "usercustomize")
"""Modules that each command has of its own."""
_SIGNALS = (*prepared_client.PASSED_ON, signal.SIGPIPE, signal.SIGCHLD, signal.SIGTSTP)


def start_one(keep_s: float) -> None:
    """Starts a prepared process that imports the modules of this one, a program; does nothing where there is one. Waits for nothing."""
    wanted = not forked.is_fork and Path(sys.argv[0]).name in PROGRAMS and prepared_client.may_serve()
    place = prepared_client.place(make=True) if wanted else None
    if place is None or _is_there(place):
        return
    modules = {
        name: str(module.__file__)
        for name, module in tuple(sys.modules.items())
        if name not in _OWN and getattr(module, "__file__", None) and getattr(module, "__spec__", None)
    }
    text = json.dumps({"place": str(place), "keep_s": keep_s, "modules": modules}).encode()
    environment = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(prepared_client.OF_INTERPRETER) or name in keeper_socket.ENVIRONMENT
    }
    options = ["-B"] if sys.flags.dont_write_bytecode else []
    detached_process.start(_PROGRAM, TITLE, text, environment, options)


def _is_there(place: Path) -> bool:
    wire = keeper_socket.connected(place)
    if wire:
        wire.close()
    return wire is not None


def main() -> None:
    """The process: takes the modules from stdin, and serves; in a fork it returns after the command."""
    os.umask(0o077)
    for number in prepared_client.PASSED_ON[:1]:
        signal.signal(number, signal.SIG_IGN)
    given = keeper_socket.document(sys.stdin.buffer.read(keeper_socket.MOST_FRAME))
    listening = Listening.on(Path(given["place"]))
    if listening is None:
        return
    server = _Server(listening, float(given["keep_s"]))
    try:
        if server.imports(given["modules"]):
            request = server.serve()
            if request is not None:
                _run(request)
                return
    finally:
        if not forked.is_fork:
            listening.end()


class _Server:
    """Forks for requests. `serve` returns in the process that was started when its time is over, and in each fork with its request."""

    def __init__(self, listening: Listening, keep_s: float) -> None:
        self._listening = listening
        self._keep_s = keep_s
        self._until = keeper_socket.now() + keep_s
        self._files: dict[str, tuple[int, ...]] = {}
        self._running: dict[int, tuple[int, Wire]] = {}
        """The process and the client of each fork, by the number of its pidfd."""

    def imports(self, modules: dict[str, str]) -> bool:
        """Imports the modules; returns whether all of them are the files that they are for the run that asks for it."""
        for name, file in modules.items():
            self._files[file] = _state(file)
            try:
                module = importlib.import_module(name)
            except Exception:  # a package that can be imported in another order only
                return False
            if getattr(module, "__file__", None) != file:
                return False
        self._rehearse()
        gc.collect()
        gc.freeze()
        return True

    def _rehearse(self) -> None:
        """Binds the shipped playbooks for a host that does not exist, so that forks find the catalogue and the classes for it made."""
        from rigwright.core import shipped_files
        from rigwright.engine import playbook
        from rigwright.inventory.model import Host, Inventory

        playbooks, templates = shipped_files.folder("playbooks"), shipped_files.folder("templates")
        for folder in (Path(rigwright.__file__).parent / "catalogue", playbooks, templates):
            self._files.update({str(path): _state(str(path)) for path in _sources(folder)})
        limits = {"persistence": True, "power_limit_w": 200}
        variables = {"rig": "servbadge", "driver": {"branch": "535"}, "cuda": {"toolkit": "12.2"}, "limits": limits}
        host = Host("example", ("gpu",), {"ansible_host": "192.0.2.1", "kernel_cmdline": ["iommu=pt"], **variables})
        inventory = Inventory(Path("/nonexistent"), {host.name: host}, {"all": (host.name,), "gpu": (host.name,)})
        for name in ("bench", "provision"):
            with contextlib.suppress(Exception):
                playbook.bind_all(playbooks / f"{name}.yml", inventory, [host], frozenset(), True, frozenset())

    def has_changed(self) -> bool:
        """Whether a file that it has read has changed, or one was added that it would have read."""
        return any(_state(file) != state for file, state in self._files.items())

    def serve(self) -> dict[str, Any] | None:
        """Answers requests. Returns None at the end, and in a fork its request."""
        opened = self._listening.socket
        while self._running or self._until > keeper_socket.now():
            poll = select.poll()
            for number in (opened.fileno(), *self._running):
                poll.register(number, select.POLLIN)
            wait_s = 3600.0 if self._running else max(0.0, self._until - keeper_socket.now())
            for number, _ in poll.poll(wait_s * 1000):
                if number in self._running:
                    self._tell_end(number)
                    continue
                with contextlib.suppress(OSError, EOFError, ValueError, TypeError, KeyError):
                    connection, _ = opened.accept()
                    if not keeper_socket.of_mine(connection):
                        connection.close()
                    elif request := self._answer(connection):
                        return request
        return None

    def _answer(self, connection: socket.socket) -> dict[str, Any] | None:
        """Forks for a request; returns it in the fork."""
        files: list[int] = []
        wire = Wire(connection)
        try:
            files = wire.receive_files(3, REQUEST_S)
            kind, content = wire.receive(REQUEST_S)
            request = keeper_socket.document(content)
            if kind != REQUEST or request["do"] != "run" or not files:
                if request.get("do") == "close":
                    self._until = 0.0
                    wire.send(ANSWER, b'{"hosts": []}')
                wire.close()
                return None
            if self.has_changed():
                self._until = 0.0
                wire.close()
                return None
            pid = os.fork()
            if pid == 0:
                try:
                    self._become(request, files, wire)
                except BaseException:
                    os._exit(forked.NOT_HERE)
                return request
            self._until = keeper_socket.now() + self._keep_s
            self._running[os.pidfd_open(pid)] = (pid, wire)
            wire.send(ANSWER, json.dumps({"pid": pid}).encode())
            return None
        except BaseException:
            wire.close()
            raise
        finally:
            for file in files if not forked.is_fork else ():
                os.close(file)

    def _tell_end(self, number: int) -> None:
        pid, wire = self._running.pop(number)
        os.close(number)
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        with contextlib.suppress(OSError):
            wire.send(ANSWER, json.dumps({"code": max(0, code), "signal": max(0, -code)}).encode())
        wire.close()
        self._until = keeper_socket.now() + self._keep_s

    def _become(self, request: dict[str, Any], files: list[int], wire: Wire) -> None:
        """Makes this fork the process of a command: its streams, environment, folder and signals, and nothing of the server."""
        forked.is_fork = True
        os.setsid()
        self._listening.forget()
        for number, (_, other) in self._running.items():
            os.close(number)
            other.forget()
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        ignored = set(request["ignored"])
        for number in _SIGNALS:
            default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            default = signal.SIG_IGN if number == signal.SIGPIPE else default  # as Python has it
            signal.signal(number, signal.SIG_IGN if number in ignored else default)
        os.environ.clear()
        os.environ.update(request["environment"])
        time.tzset()
        os.umask(request["umask"])
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, request["nice"])
        os.chdir(request["folder"])
        sys.argv, sys.orig_argv = request["argv"], request["orig_argv"]
        if wire.receive(None) != (REQUEST, b"go"):
            raise EOFError("the client has not waited")
        terminal_stream.reopen()
        threading.Thread(target=_end_with, args=(wire,), daemon=True).start()


def _end_with(wire: Wire) -> None:
    """Interrupts this process, as the end of a terminal does, when the process that the person has started is gone."""
    with contextlib.suppress(OSError, EOFError):
        wire.receive(None)
    for _ in range(
        20
    ):  # Python can miss one that arrives just before the main thread begins to wait; those within 2 s count once
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGHUP)
        time.sleep(0.5)


def _run(request: dict[str, Any]) -> None:
    """Runs the command line, as its program does, and ends this process."""
    if request["program"] == "rigwright":
        start.rigwright()
    start.invoke()


def _sources(folder: Path) -> Iterator[Path]:
    """The files below a folder, and its folders without modules, whose time changes when a file is added. What Python and the catalogue compile
    is left out: any process may write it, and it is of the sources."""
    for here, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        if not any(name.endswith(".py") for name in names):  # no __pycache__ will be made here
            yield Path(here)
        yield from (Path(here, name) for name in names)


def _state(file: str) -> tuple[int, ...]:
    """What changes when a file is written or replaced; () for one that is gone."""
    with contextlib.suppress(OSError):
        about = os.stat(file)
        return about.st_mtime_ns, about.st_size, about.st_ino
    return ()
