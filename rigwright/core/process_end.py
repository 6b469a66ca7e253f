"""Ends the process of a command without freeing its modules one by one, which takes a fifth of the processor time of a short command."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Callable
from typing import NoReturn


def run(program: Callable[[], object]) -> NoReturn:
    """Runs a program, and ends this process with its exit code as Python does: functions of atexit are called, stdout and stderr written.

    Only the interpreter's own cleaning is left out, which the kernel does at once. Where a thread still works that Python would wait
    for, the end is the usual one. An exception of the program is raised.
    """
    code = _exit_code(program)
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        sys.exit(code)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


def _exit_code(program: Callable[[], object]) -> int:
    try:
        program()
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return int(ended.code or 0) & 0xFF
        print(ended.code, file=sys.stderr)
        return 1
    return 0
