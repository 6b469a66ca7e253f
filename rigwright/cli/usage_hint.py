"""Adds a fix to Invoke's message about a wrong command line, and with `--json -` writes the error as a JSON document."""

from __future__ import annotations

import atexit
import itertools
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rigwright.core.program_name import program_name

if TYPE_CHECKING:
    from invoke.collection import Collection

_INFORMATIONAL = {"--help", "--list", "-l", "--version", "-V", "--complete", "--print-completion-script"}


def is_informational(words: Sequence[str]) -> bool:
    """Whether the words ask for help, a list, a version or a completion script. `-h` after a command is its `--host`."""
    return not words or words[0] == "-h" or not _INFORMATIONAL.isdisjoint(word.partition("=")[0] for word in words)


def expect(words: Sequence[str], namespace: Collection) -> None:
    """Prints the fix at the end of the process, unless `read` was called because a command started."""
    if not is_informational(words):
        atexit.register(_print_fix, words, namespace)


def read() -> None:
    """Marks the command line as correct: a command starts."""
    atexit.unregister(_print_fix)


def _print_fix(words: Sequence[str], namespace: Collection) -> None:
    program = program_name()
    name = next((word for word in words if word in namespace.task_names), "")
    first = next((word for word in words if not word.startswith("-")), "")
    command = f"{program} {name or 'TASK'} --help"
    fix = (command if name else f"{program} --list, then {command}") + _hint(words, name, first, namespace)
    print(f"  fix:      {fix}", file=sys.stderr)
    if "--json=-" in words or ("--json", "-") in itertools.pairwise(words):
        from rigwright.core.errors import UsageError
        from rigwright.report import json_document

        found = "the command line cannot be read: " + " ".join(words)
        error = UsageError("command line", found, "a command and its flags", fix)
        print(json_document.dumps(json_document.document(name or first, "", 1, error, [])))


def _hint(words: Sequence[str], name: str, first: str, namespace: Collection) -> str:
    """The probable mistake, as the end of the fix; "" when it is not known. `first` is the first word that is no flag."""
    from rigwright.core.yaml_source import did_you_mean

    if not name:
        return did_you_mean(first, namespace.task_names) if first else ""
    before, after = words[: words.index(name)], words[words.index(name) + 1 :]
    names = [flag for argument in namespace[name].get_arguments() for flag in argument.names if len(flag) > 1]
    flags = sorted("--" + flag.replace("_", "-") for flag in names)
    if before and before[0].partition("=")[0] in flags:
        return f"; flags stand after the command: {program_name()} {' '.join([name, *after, *before])}"
    unknown = next((word for word in after if word.startswith("--") and word.partition("=")[0] not in flags), "")
    if unknown:
        return did_you_mean(unknown.partition("=")[0], flags)
    if name == "explain":
        text = " ".join(after) or "Xid 79"
        return f"; a text of several words stands in quotes: {program_name()} explain '{text}'"
    stray = after[0] if after and not after[0].startswith("-") else ""
    return f"; a host is named with --host {stray}" if stray and "--host" in flags else ""
