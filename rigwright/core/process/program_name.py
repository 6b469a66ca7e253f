"""The started program as it was typed, such as `.venv/bin/invoke`, so that a printed command can be pasted."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from functools import lru_cache
from pathlib import PurePath

from rigwright.core import features

COMMANDS = {"TASK", "--list"}
"""The words after `invoke` in messages. The options of a command add its name; features name theirs themselves."""
_MODULE = ("invoke", "__main__.py")
"""The end of the path of the program that `PYTHON -m invoke` runs."""


def program_name() -> str:
    """The words that start this program again in the current folder: a name that PATH has, a path, or `PYTHON -m
    invoke`; `invoke` if another program started this process, such as a test or a worker."""
    return _typed(sys.argv[0], sys.orig_argv[0], os.environ.get("PATH"))


def was_started() -> bool:
    """Whether this process was started as `invoke` or `rigwright`, not by a test or a worker."""
    return _is_program(PurePath(sys.argv[0]))


def _is_program(file: PurePath) -> bool:
    return file.name in ("rigwright", "invoke", "inv") or file.parts[-2:] == _MODULE


@lru_cache(maxsize=8)
def _typed(script: str, interpreter: str, path: str | None) -> str:
    file = PurePath(script)
    if not _is_program(file):
        return "invoke"
    if file.parts[-2:] == _MODULE:
        return f"{shlex.quote(interpreter)} -m invoke"
    return file.name if shutil.which(file.name, path=path) == script else shlex.quote(script)


def package_name() -> str:
    """`rigwright` or `invoke`, without a folder: for files that are read later and elsewhere."""
    return "rigwright" if os.path.basename(sys.argv[0]) == "rigwright" else "invoke"


def as_typed(text: str) -> str:
    """Replaces `invoke` in each `invoke COMMAND` of a text with the words that start this program.

    Messages, findings and the catalogue contain `invoke COMMAND`. The code that prints or saves them calls this
    function. Commands that this program does not have, such as those of the lab in `rigwright`, stay.
    """
    program = program_name()
    if program == "invoke" or "invoke " not in text:
        return text
    commands = "|".join(re.escape(name) for name in {*COMMANDS, *features.commands()})
    return re.sub(rf"(?<![\w/.-])(?<!-m )invoke (?=(?:{commands})(?![\w-]))", lambda _match: f"{program} ", text)
