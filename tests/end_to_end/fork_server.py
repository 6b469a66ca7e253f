"""Runs command lines in forks of one process that has imported rigwright (`python -m tests.end_to_end.fork_server FD`).

A command spends half a second of a processor core on its imports, and the tests of hosts run hundreds of commands. A
fork has them already. It is a process of its own, with the environment, the working directory and the streams of its
command, and it runs `invoke` as `python -m invoke` does; it differs in the command line and the environment that /proc
shows, which are those of this program.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence

from tests.paths import ROOT

OF_INTERPRETER = ("PYTHON", "LC_", "LANG", "LD_")
"""Variables that act at the start of an interpreter begin with these: a command with others than this process needs a
new one."""
_NOT_IMPORTED = ("rigwright.fleet.dask", "rigwright.onhost")
_REQUEST_BYTES = 1 << 20


class ForkServer:
    """The program, as its user sees it."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _REQUEST_BYTES)
        self._environment = _of_interpreter(os.environ)
        self._lock = threading.Lock()
        argv = [sys.executable, "-m", "tests.end_to_end.fork_server", str(theirs.fileno())]
        self._process = subprocess.Popen(
            argv, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
        )
        theirs.close()

    def serves(self, environment: Mapping[str, str]) -> bool:
        """Whether a command with this environment can run in a fork."""
        return _of_interpreter(environment) == self._environment

    def run(
        self, words: Sequence[str], environment: Mapping[str, str], deadline_s: float
    ) -> subprocess.CompletedProcess[str]:
        """Runs `invoke WORDS` in the checkout without terminal and stdin; returns its output and exit code.

        Raises TimeoutExpired after `deadline_s` seconds.
        """
        until = time.monotonic() + deadline_s
        ours, theirs = socket.socketpair()
        with ours, theirs, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as error:
            request = json.dumps({"words": list(words), "environment": dict(environment)}).encode()
            files = array.array("i", [out.fileno(), error.fileno(), theirs.fileno()])
            with self._lock:
                self._ours.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
            theirs.close()
            with ours.makefile("r") as told:
                pid = int(told.readline())
                ours.settimeout(max(0.001, until - time.monotonic()))
                try:
                    code = int(told.readline())
                except TimeoutError:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                    raise subprocess.TimeoutExpired(list(words), deadline_s) from None
            texts = []
            for file in (out, error):
                file.seek(0)
                texts.append(file.read().decode())
        return subprocess.CompletedProcess(list(words), code, *texts)

    def close(self) -> None:
        """Ends the program."""
        self._ours.close()
        self._process.wait(30)


@functools.cache
def shared() -> ForkServer:
    """Returns the one server of this process, which ends with it."""
    made = ForkServer()
    atexit.register(made.close)
    return made


def _of_interpreter(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(OF_INTERPRETER)}


def _import_all() -> None:
    """Imports all modules of rigwright, and with them the packages that they use."""
    import invoke.main

    import rigwright
    from lab.cli import tasks

    assert invoke.main
    assert tasks
    for module in pkgutil.walk_packages(rigwright.__path__, "rigwright."):
        if not module.name.startswith(_NOT_IMPORTED) and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    gc.freeze()


def _serve(requests: socket.socket) -> list[str] | None:
    """Forks for each request, and tells its socket the process id and, at the end, the exit code.

    Returns None at the end of the requests, and in a fork the words of its command.
    """
    woken, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    running: dict[int, socket.socket] = {}
    while True:
        ready = select.select([requests, woken], [], [])[0]
        if woken in ready:
            os.read(woken, 4096)
            _tell_ends(running)
        if requests not in ready:
            continue
        request, files, _, _ = socket.recv_fds(requests, _REQUEST_BYTES, 3)
        if not request:
            return None
        out, error, told = files
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for one in (requests, *running.values()):
                one.close()
            os.dup2(out, 1)
            os.dup2(error, 2)
            for one in (*files, woken, wakes):
                os.close(one)
            asked = json.loads(request)
            os.environ.clear()
            os.environ.update(asked["environment"])
            time.tzset()
            words: list[str] = asked["words"]
            return words
        for one in (out, error):
            os.close(one)
        running[pid] = socket.socket(fileno=told)
        running[pid].sendall(b"%d\n" % pid)


def _tell_ends(running: dict[int, socket.socket]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with running.pop(pid) as told, contextlib.suppress(OSError):
            told.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _import_all()
    words = _serve(socket.socket(fileno=int(sys.argv[1])))
    if words is not None:
        sys.argv[1:] = words
        runpy.run_module("invoke", run_name="__main__", alter_sys=True)
