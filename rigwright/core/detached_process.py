"""Starts a Python process that stays after this one: a session of its own, no streams but its stdin, and the modules of this rigwright."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import rigwright


def start(program: str, title: str, text: bytes, environment: Mapping[str, str], options: Sequence[str] = ()) -> None:
    """Starts `program`, which reads `text` from stdin; it gets the folder of the package and `title` as its words.

    `options`: further options of the interpreter. A process that cannot be started is no error: what it keeps only saves time.
    """
    folder = str(Path(rigwright.__file__).resolve().parent.parent)
    argv = [sys.executable, "-I", *options, "-c", program, folder, title]
    with contextlib.suppress(OSError):
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=quiet,
            stderr=quiet,
            cwd="/",
            env=dict(environment),
            start_new_session=True,
        )
        process.returncode = 0  # nobody waits for it
        assert process.stdin
        with process.stdin as stdin:
            stdin.write(text)
