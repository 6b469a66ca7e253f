"""Runs a command line with --keep in a fork of a prepared process (`rigwright.cli.prepared`), which has imported everything already.

The process that the person has started stays: it passes on signals, and ends as the fork ends. Its streams are those of the fork.
Programs import this module first, so it imports little.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from rigwright.core import forked
from rigwright.ssh import keeper_socket
from rigwright.ssh.keeper_socket import Wire

WAIT_S = 2.0
"""So long this process waits for a fork before it runs the command itself."""
OF_INTERPRETER = ("PYTHON", "LC_", "LANG", "LD_", "GLIBC_", "MALLOC_")
"""Variables that act when an interpreter starts begin with these: with others than the prepared process has, a command needs its own."""
_NOT_FORKED = ("--serial", "--resume", "--executor", "--watch", "--help", "--vault-password-file")
"""Options of commands that are not read-only for long, or that must not begin twice."""
_HARMLESS = ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def run(program: str) -> None:
    """Runs the command line of `program` (`invoke` or `rigwright`) in a fork, and ends this process as the fork ended.

    Returns where there is no prepared process, where the command line does not have --keep, and where the fork did nothing.
    """
    if forked.is_fork or not may_serve() or not _is_for_it(sys.argv[1:]):
        return
    wire = keeper_socket.connected(place())
    if wire is None:
        return
    fork = None
    with contextlib.suppress(OSError, EOFError, ValueError):
        request = _request(program)
        if len(json.dumps(request)) <= keeper_socket.MOST_FRAME:
            wire.send_files(0, 1, 2)
            pid = wire.ask(request, WAIT_S).get("pid")
            if isinstance(pid, int):
                fork = os.pidfd_open(pid)
                wire.send(keeper_socket.REQUEST, b"go")  # the fork does nothing without it
    if fork is not None:
        _follow(wire, fork)
    wire.close()


def may_serve() -> bool:
    """Whether a prepared process can serve this one: it is started without variables that change how Python works."""
    changed = any(name.startswith("PYTHON") and name not in _HARMLESS for name in os.environ)
    return keeper_socket.SUPPORTED and hasattr(os, "pidfd_open") and not changed


def place(make: bool = False) -> Path | None:
    """The path of the socket of a prepared process for this interpreter, its options and the environment that acts on it."""
    acts = {name: value for name, value in os.environ.items() if name.startswith(OF_INTERPRETER)}
    return keeper_socket.place(make, "run", sys.executable, sys.version, list(sys.flags), sys._xoptions, acts)


def _is_for_it(words: list[str]) -> bool:
    """Whether a command line may run in a fork: it has --keep with a time, and nothing that has to be done here."""
    options = [word.partition("=")[0] for word in words]
    if "--keep" not in options or "--keep=0" in words or words[options.index("--keep") + 1 :][:1] == ["0"]:
        return False
    return not any(option in _NOT_FORKED for option in options) and not any(
        "/dev/fd/" in word or "/proc/" in word for word in words
    )


def _request(program: str) -> dict[str, Any]:
    ignored = [number for number in (*PASSED_ON, signal.SIGPIPE) if signal.getsignal(number) is signal.SIG_IGN]
    mask = os.umask(0o077)
    os.umask(mask)
    return {
        "do": "run", "program": program, "argv": sys.argv, "orig_argv": sys.orig_argv, "folder": os.getcwd(),
        "environment": dict(os.environ), "umask": mask, "nice": os.getpriority(os.PRIO_PROCESS, 0), "ignored": ignored,
    }  # fmt: skip


def _follow(wire: Wire, fork: int) -> None:
    """Passes signals on to the fork (a pidfd) until it has ended, and then ends this process alike. Returns when the fork did nothing."""

    def pass_on(number: int, _frame: object) -> None:
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(fork, number)

    def stop(_number: int, _frame: object) -> None:
        pass_on(signal.SIGSTOP, None)
        os.kill(os.getpid(), signal.SIGSTOP)
        pass_on(signal.SIGCONT, None)

    handlers = {number: pass_on for number in PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN}
    before = {number: signal.signal(number, handler) for number, handler in {**handlers, signal.SIGTSTP: stop}.items()}
    try:
        ended = keeper_socket.document(wire.receive(None)[1])
        code, by = int(ended["code"]), int(ended["signal"])
    except (OSError, EOFError, ValueError, KeyError):
        sys.stderr.write(
            "error rigwright: the process in which this command ran has ended without a result\n  fix:      the same command without --keep\n"
        )
        code, by = 1, 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(fork)
    if by:
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(by, signal.SIG_DFL)
        os.kill(os.getpid(), by)
        os._exit(128 + by)
    if code != forked.NOT_HERE:
        os._exit(code)
