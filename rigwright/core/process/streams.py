"""Usable stdin, stdout and stderr of this process, and a filter for control characters.

A closed stream, a full disk, a pipe without a reader and a lost terminal end no run (`secure`). What is printed
passes a filter (`guard`): errors, questions, help, warnings, log records and tracebacks. Only two writers avoid it:
the console of `report/console.py`, which filters each text before it adds colours, and `write_document` for JSON,
which has no control characters."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from typing import IO, Any, TextIO, cast

from rigwright.core.control_characters import harmless

_NO_READER = (errno.EPIPE, errno.EIO, errno.EBADF)
"""Errors of an output that nobody reads any more: `| head -1`, a closed terminal, `>&-`."""


class SafeStream:
    """A text stream whose writes never fail: after the first failure (`lost`) it writes to /dev/null."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.lost: OSError | None = None

    def write(self, text: str) -> int:
        """Writes the text, or nothing after a failure."""
        try:
            return self._stream.write(text)
        except OSError as error:
            self._lose(error)
        return len(text)

    def flush(self) -> None:
        """Writes what is in the buffer, or nothing after a failure."""
        try:
            self._stream.flush()
        except OSError as error:
            self._lose(error)

    def _lose(self, error: OSError) -> None:
        self.lost = self.lost or error
        with contextlib.suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._stream.fileno())  # also for what is in the buffer: the interpreter writes it at its end
            os.close(null)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


def secure() -> None:
    """Makes all three usable. A closed stream becomes /dev/null, so that no later file gets its number."""
    for number, mode in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, mode)
            if null != number:
                os.dup2(null, number)
                os.close(null)
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            stream = open(number, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        if not hasattr(stream, "lost"):
            setattr(sys, name, cast(TextIO, SafeStream(stream)))


def failure(stream: IO[str]) -> OSError | None:
    """The failure after which nothing more was written to a secured stream; None without one."""
    stream.flush()
    return getattr(stream, "lost", None)


def write_problem() -> str:
    """Why stdout could not be written, such as a full disk; "" if it could be written, or if its reader ended."""
    error = failure(sys.stdout)
    return "" if error is None or error.errno in _NO_READER else str(error.strerror)


def exit_if_full() -> None:
    """Ends the process with exit code 1 and a message if stdout could not be written, such as to a full disk."""
    if problem := write_problem():
        print(f"error stdout: cannot be written: {problem}", file=sys.stderr, flush=True)
        os._exit(1)


class HarmlessStream:
    """A text stream that writes harmless text to another one. `unfiltered` is that other stream."""

    def __init__(self, unfiltered: IO[str]) -> None:
        self.unfiltered = unfiltered

    def write(self, text: str) -> int:
        """Writes the text without control characters; returns its length."""
        self.unfiltered.write(harmless(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Writes each of the texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unfiltered, name)


def guard() -> None:
    """Puts the filter before stdout and stderr of this process. A character that their encoding lacks becomes `?`."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None or isinstance(stream, HarmlessStream):
            continue
        with contextlib.suppress(AttributeError, ValueError):  # a stream of a test, or one that is closed
            stream.reconfigure(errors="replace")
        setattr(sys, name, cast(IO[str], HarmlessStream(stream)))


def unfiltered(stream: IO[str]) -> IO[str]:
    """The stream without the filter, for a writer that filters itself."""
    return stream.unfiltered if isinstance(stream, HarmlessStream) else stream


def write_document(text: str) -> None:
    """Prints a JSON document of `json_document.dumps` to stdout, whole: its lines are not cut."""
    print(text, file=unfiltered(sys.stdout))
