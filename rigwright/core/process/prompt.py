"""Questions at the terminal. Only this module reads from the terminal."""

from __future__ import annotations

import select
import sys

from rigwright.core.errors import ConsentError


def on_terminal() -> bool:
    """Whether stdin is a terminal."""
    return sys.stdin.isatty()


def answer(question: str = "") -> str:
    """Prints the question and returns the typed answer, stripped; "" for Ctrl-D, and when the terminal is gone."""
    print(question, end="", flush=True)
    # A signal that arrives just before `input` blocks would be handled only after the answer.
    while on_terminal() and not select.select([sys.stdin], [], [], 0.25)[0]:
        pass
    try:
        return input().strip()
    except (EOFError, OSError):
        return ""


def insist(where: str, question: str, todo: str, otherwise: str) -> None:
    """Asks for consent. Raises ConsentError when there is no terminal, or for an answer other than yes.

    `todo` is the fix when there is no terminal. `otherwise` is the message for an answer other than yes.
    """
    if not on_terminal():
        raise ConsentError(where, "there is no terminal to say yes at", "a yes", todo)
    if answer(f"{question} [y/N] ").lower() not in ("y", "yes"):
        raise ConsentError(where, otherwise, "a yes")


def password(host: str) -> str:
    """Asks for the sudo password of a host without echo, and returns it."""
    import getpass

    # getpass writes its question to /dev/tty itself, beside the filter of stdout and stderr, unless it gets a stream.
    return getpass.getpass(f"sudo password on {host}: ", stream=sys.stderr)
