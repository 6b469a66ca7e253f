"""Reading ahead: the commands with which the last run of a command read a host, sent as soon as the next run is
connected.

Most facts of a run are known only after its playbook is loaded and bound, and some only after others were read. So a
run records the commands that it read the host with, and the next run of the same command sends them at once, while it
loads the rest of itself. An answer counts once, for a fact with exactly the same command, before the run has sent
anything that may change the host, and for a few seconds; every other fact is read as always.

A record is a private file of the state directory, which is ignored when another user could have written it, or when
another release of rigwright did. It has no secrets: a command with a known secret in it is not recorded.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import rigwright
from rigwright.core.command import Command
from rigwright.core.errors import RigwrightError
from rigwright.core.files import state_dir
from rigwright.core.secrets import redacted

SCHEMA = 2
FOLDER = "read-ahead"
MOST_HOSTS = 8
"""With more hosts the processors of this machine are busy anyway; nothing is read ahead then."""
MOST_COMMANDS = 400
MOST_BYTES = 1 << 20


def recorded_commands(host: str, command: str) -> tuple[Command, ...]:
    """The commands with which the last run of a command read this host; () without a record that can be trusted.

    `command`: its name and all that makes it another one, such as the playbook: `provision playbooks/provision.yml`.
    """
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError, RigwrightError):
        path = _path(host, command)
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            about = os.fstat(file.fileno())
            mine = about.st_uid in (os.geteuid(), path.parent.stat().st_uid)
            if not (mine and stat.S_ISREG(about.st_mode)) or about.st_mode & 0o022 or about.st_size > MOST_BYTES:
                return ()
            document = json.loads(file.read(MOST_BYTES))
        if (document["schema"], document["release"]) == (SCHEMA, rigwright.__version__):
            return tuple(map(_command, document["commands"][:MOST_COMMANDS]))
    return ()


def record(host: str, command: str, commands: Sequence[Command]) -> None:
    """Records the commands that a run read this host with, where they are other ones than before. A failure is no
    error: nothing is read ahead then."""
    kept = tuple(each for each in dict.fromkeys(commands) if not _has_secret(each))[:MOST_COMMANDS]
    if kept == recorded_commands(host, command):
        return
    rows = [
        [list(each.argv), base64.b64encode(each.stdin).decode(), each.timeout_s, each.reads, each.cache_key]
        for each in kept
    ]
    document = {"schema": SCHEMA, "release": rigwright.__version__, "commands": rows}
    with contextlib.suppress(OSError, RigwrightError):
        state_dir.write(_path(host, command), json.dumps(document), lasting=False)


def _path(host: str, command: str) -> Any:
    which = hashlib.sha256(command.encode()).hexdigest()[:16]
    return state_dir.place(FOLDER, f"{quote(host, safe='')}.{command.partition(' ')[0]}.{which}.json")


def _command(row: Any) -> Command:
    argv, stdin, timeout_s, reads, cache_key = row
    if not argv or not all(isinstance(word, str) for word in (*argv, cache_key)) or not 0 < timeout_s < 3600:
        raise ValueError("no command")
    return Command(
        tuple(argv), base64.b64decode(stdin, validate=True), float(timeout_s), False, reads is True, cache_key
    )


def _has_secret(command: Command) -> bool:
    texts = (*command.argv, command.stdin.decode("utf-8", "replace"))
    return any(redacted(text) != text for text in texts)
