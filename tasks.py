"""The commands of rigwright and of its lab. `invoke TASK --help` explains a command, `invoke --list` lists all."""

from __future__ import annotations

import sys
from pathlib import Path

# Invoke turns the bytecode cache off, which makes a command a third slower; program.start does the same for rigwright.
sys.dont_write_bytecode = bool(sys.flags.dont_write_bytecode)

from lab.cli.tasks import COMMANDS as LAB_COMMANDS  # noqa: E402
from rigwright.cli import program  # noqa: E402

ns = program.collection(program.commands(LAB_COMMANDS))

_called = Path(sys.argv[0])
if _called.name in ("invoke", "inv") or _called.parts[-2:] == ("invoke", "__main__.py"):
    program.start(ns)
