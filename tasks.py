"""The commands of rigwright and of its lab. `invoke --list` lists all, `invoke TASK --help` explains one.

A command is a class in rigwright/cli/options.py or lab/cli/tasks.py, and a function (CONTRIBUTING.md, "Add a command").
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

needed = ("fabric", "jinja2", "msgspec", "paramiko", "pynvml", "rich", "yaml")
missing = [name for name in needed if find_spec(name) is None]
if missing or sys.version_info < (3, 10):
    found = f"has no {', '.join(missing)}" if missing else "is older than 3.10"
    expected = "  expected: Python 3.10 or newer, with the packages of requirements/rigwright.lock\n"
    sys.exit(f"error invoke: {sys.executable} {found}\n{expected}  fix:      scripts/setup, then type .venv/bin/invoke")

# Invoke turns the cache of compiled modules off, and each start would compile them all.
sys.dont_write_bytecode = bool(sys.flags.dont_write_bytecode)

from invoke import task  # noqa: E402, F401  # for tasks of your own

import rigwright  # noqa: E402, F401
from lab.cli.tasks import COMMANDS as LAB_COMMANDS  # noqa: E402
from rigwright.cli import program  # noqa: E402
from rigwright.core.process import program_name  # noqa: E402

ns = program.collection(program.commands(LAB_COMMANDS))

# Tasks of your own stand here (docs/guide/own_tasks.md), such as:
#
#     @task(help={"host": "a host of the inventory"})
#     def scratch(c, host="servbadge", size_gb=8):
#         """Mount memory as /scratch on a host."""
#         rigwright.connect(host).sudo(f"mount -m -t tmpfs -o size={size_gb}g scratch /scratch")
#
#     ns.add_task(scratch)

if program_name.was_started():
    program.start(ns)  # explains a mistake on the command line
