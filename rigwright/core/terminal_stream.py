"""The way out of this process to a terminal: stdout and stderr replace what would control the terminal.

`guard` puts a filter before both, so everything that is printed passes it: errors, questions, help, warnings, log
records and tracebacks. Only two writers pass by it: the console of `report/console.py`, which filters each text before
it adds colours, and `write_document` for JSON, which has no control characters.
"""

from __future__ import annotations

import contextlib
import sys
from typing import IO, Any, cast

from rigwright.core.control_characters import harmless


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
