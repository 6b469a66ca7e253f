"""Commands, their results, secrets; the only module that quotes for a shell."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field


class Secret:
    """A text that is shown as `(secret)` wherever it is printed, formatted or put into JSON, and that cannot be pickled."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself; for the one place that sends it on a stdin."""
        return self._text

    def __reduce__(self) -> str:
        raise TypeError("a secret is not sent anywhere")

    def __repr__(self) -> str:
        return "(secret)"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)


@dataclass(frozen=True)
class Command:
    """One program with its arguments. Never a string for a shell to split.

    `stdin` is given to it (else /dev/null); `timeout_s` is a hard limit; a `long` command runs as a detached job
    that survives the connection and the controller. One that `reads` writes no file anywhere, not even a cache: what
    it prints is then limited as the size of a file, which costs the host two processes less than a pipe.
    """

    argv: tuple[str, ...]
    stdin: bytes = field(default=b"", repr=False)
    timeout_s: float = 120.0
    long: bool = False
    reads: bool = False

    def __str__(self) -> str:
        return quote(self.argv)


@dataclass(frozen=True)
class Result:
    """What a command answered. `code` 124 or 137: it ran past its limit. `cut`: more than 4 MiB came."""

    code: int
    stdout: bytes
    stderr: bytes = b""
    cut: bool = False

    @property
    def text(self) -> str:
        """stdout as text; bytes that are not UTF-8 become U+FFFD."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def error_text(self) -> str:
        """stderr as text, stripped."""
        return self.stderr.decode("utf-8", "replace").strip()


def command(
    *argv: str, stdin: bytes = b"", timeout_s: float = 120.0, long: bool = False, reads: bool = False
) -> Command:
    """A command from its words."""
    return Command(tuple(argv), stdin, timeout_s, long, reads)


def script(
    text: str, *args: str, stdin: bytes = b"", timeout_s: float = 120.0, long: bool = False, reads: bool = False
) -> Command:
    """A command that runs a fixed shell text; values reach it only as `$1`, `$2`, ... and are never parsed by a shell."""
    return Command((*_SCRIPT, text, "sh", *args), stdin, timeout_s, long, reads)


_SCRIPT = ("sh", "-c")


def in_shell(cmd: Command) -> str:
    """Shell text that runs the command; a script runs in a subshell of the shell that reads it, which is one program less."""
    if cmd.argv[:2] == _SCRIPT and cmd.argv[3:4] == ("sh",):
        return f"( set -- {quote(cmd.argv[4:])}; eval {quote(cmd.argv[2:3])} )"
    return quote(cmd.argv)


def quote(argv: Sequence[str]) -> str:
    """The words as one line that a POSIX shell splits into exactly these words again.

    Raises ValueError for a NUL byte, which no argument can hold.
    """
    for word in argv:
        if "\0" in word:
            raise ValueError("an argument holds a NUL byte")
    return shlex.join(argv)


def with_stdin(cmd: Command, redirect: str = "") -> str:
    """Shell text that runs the command with its stdin (a here-document of base64) or with none; `redirect` is ours."""
    if not cmd.stdin:
        return f"{quote(cmd.argv)} </dev/null {redirect}".rstrip()
    text = base64.encodebytes(cmd.stdin).decode("ascii")
    return f"base64 -d <<'.' | {quote(cmd.argv)} {redirect}\n{text}."
