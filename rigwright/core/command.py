"""Commands and their results. Only this module quotes text for a shell."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Sequence

from msgspec import Struct

from rigwright.core import host_text
from rigwright.core.secrets import redacted

LOGIN = "RIGWRIGHT_LOGIN"
"""The environment variable of commands on a host: `ssh`, and in base64 the public key that the login accepted."""


class Command(Struct, frozen=True):
    """One program with its arguments, which no shell splits.

    The program reads `stdin`, or /dev/null if it is empty. `timeout_s` is a hard limit in seconds. A `long` command
    runs as a detached job that continues after the connection or the controller ends. A command with `reads` writes no
    file, not even a cache, so the file size limit can limit its output, which needs two processes less than a pipe.

    `cache_key`: shell text for a command that changes nothing; "": its answer is not kept. The host keeps the answer of
    a successful command for root until the next boot. It gives this answer, without the command, while the text prints
    the same as before and after the command. So the text prints all that the answer depends on.
    """

    argv: tuple[str, ...]
    stdin: bytes = b""
    timeout_s: float = 120.0
    long: bool = False
    reads: bool = False
    cache_key: str = ""

    def __hash__(self) -> int:
        return hash(self.argv)  # few commands differ in nothing else, and all fields take longer

    def __str__(self) -> str:
        return redacted(quote(self.argv))

    def __repr__(self) -> str:
        return f"Command({self})"  # stdin may hold secrets


class Result(Struct, frozen=True):
    """The result of a command. `cut`: its output exceeded 4 MiB."""

    code: int
    stdout: bytes
    stderr: bytes = b""
    cut: bool = False

    @property
    def too_late(self) -> bool:
        """Whether the command exceeded its time limit (124, 137), or its script did before the command ended (-1)."""
        return self.code in (-1, 124, 137)

    @property
    def text(self) -> str:
        """stdout as text; bytes that are not UTF-8 become U+FFFD."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def lines(self) -> list[str]:
        """The lines of stdout. Raises ValueError as `host_text.lines`."""
        return host_text.lines(self.text)

    @property
    def error_text(self) -> str:
        """stderr as text, stripped."""
        return self.stderr.decode("utf-8", "replace").strip()


def command(
    *argv: str,
    stdin: bytes = b"",
    timeout_s: float = 120.0,
    long: bool = False,
    reads: bool = False,
    cache_key: str = "",
) -> Command:
    """The command with these words."""
    return Command(argv, stdin, timeout_s, long, reads, cache_key)


def script(
    text: str,
    *args: str,
    stdin: bytes = b"",
    timeout_s: float = 120.0,
    long: bool = False,
    reads: bool = False,
    cache_key: str = "",
) -> Command:
    """A command that runs a fixed shell script. Values are passed only as `$1`, `$2`, ...; no shell parses them.

    An argument that is a path belongs to its cache key: the answer may depend on that file.
    """
    paths = [word for word in args if word.startswith("/")]
    if cache_key and paths:
        cache_key += f"; {state_of(quote(paths))}"
    return Command((*_SCRIPT, text, "sh", *args), stdin, timeout_s, long, reads, cache_key)


_SCRIPT = ("sh", "-c")


def in_shell(cmd: Command) -> str:
    """Shell text that runs the command. A script runs in a subshell of the current shell, which saves one process."""
    if cmd.argv[:2] == _SCRIPT and cmd.argv[3:4] == ("sh",):
        return f"( set -- {quote(cmd.argv[4:])}; eval {quote(cmd.argv[2:3])} )"
    return quote(cmd.argv)


def state_of(*paths: str) -> str:
    """A cache key: device, inode, size and times of the files of these paths, which may have wildcards."""
    return f"stat -L -c '%n %d %i %s %y %z' {' '.join(paths)}"


def quote(argv: Sequence[str]) -> str:
    """Joins words to text that a POSIX shell splits into the same words. Raises ValueError for a NUL byte."""
    for word in argv:
        if "\0" in word:
            raise ValueError("an argument holds a NUL byte")
    return shlex.join(argv)


def with_stdin(cmd: Command, redirect: str = "") -> str:
    """Shell text that runs the command with its stdin as a base64 here-document, or with /dev/null if stdin is empty.

    `redirect` is appended unquoted, so it must come from rigwright's own code.
    """
    if not cmd.stdin:
        return f"{quote(cmd.argv)} </dev/null {redirect}".rstrip()
    text = base64.encodebytes(cmd.stdin).decode("ascii")
    return f"base64 -d <<'.' | {quote(cmd.argv)} {redirect}\n{text}."
