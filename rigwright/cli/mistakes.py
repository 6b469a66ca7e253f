"""What Invoke says of a mistake on the command line is followed by what to type, and by one document with `--json -`."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Collection, Sequence

_ASKS = {"--help", "-h", "--list", "-l", "--version", "-V", "--complete", "--print-completion-script"}


def expect(words: Sequence[str], tasks: Collection[str]) -> None:
    """Unless a command begins before the program ends, its end says what to type in place of these words."""
    if words and not _ASKS & set(words):
        atexit.register(_told, words, tasks)


def read() -> None:
    """A command begins: its words were understood."""
    atexit.unregister(_told)


def _told(words: Sequence[str], tasks: Collection[str]) -> None:
    name = next((word for word in words if word in tasks or not word.startswith("-")), "")
    known = name in tasks
    todo = f"invoke {name} --help" if known else "invoke --list, then invoke TASK --help"
    stray = next((word for word in words[1:2] if not word.startswith("-")), "")
    hint = f"; a host is named with --host {stray}" if known and stray else ""
    if not known and name:
        from rigwright.yamlfile import did_you_mean

        hint = did_you_mean(name, tasks)
    if name == "explain":
        hint = f"; a text of several words stands in quotes: invoke explain '{' '.join(words[1:])}'"
    print(f"  do:     {todo}{hint}", file=sys.stderr)
    if any(
        one == "--json=-" or (one, two) == ("--json", "-") for one, two in zip(words, [*words[1:], ""], strict=True)
    ):
        import json

        found = "the command line cannot be read: " + " ".join(words)
        error = {"where": "command line", "found": found, "wanted": "a task and its flags", "todo": todo + hint}
        told = {"schema": 1, "command": name, "run": "", "exit_code": 1, "error": error, "hosts": {}}
        print(json.dumps(told, indent=2))
