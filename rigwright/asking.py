"""Questions at the terminal: the only module that reads answers from it."""

from __future__ import annotations

import sys

from rigwright.errors import ConsentError


def on_terminal() -> bool:
    """Whether somebody is there to answer."""
    return sys.stdin.isatty()


def answer(question: str = "") -> str:
    """What is typed, without the space around it; Ctrl-D is nothing."""
    print(question, end="", flush=True)
    try:
        return input().strip()
    except EOFError:
        return ""


def insist(where: str, question: str, todo: str, otherwise: str) -> None:
    """Somebody said yes. Raises ConsentError: no terminal (with `todo`), or another answer (`otherwise`)."""
    if not on_terminal():
        raise ConsentError(where, "there is no terminal to say yes at", "a yes", todo)
    if answer(f"{question} [y/N] ").lower() not in ("y", "yes"):
        raise ConsentError(where, otherwise, "a yes")


def password(host: str) -> str:
    """The sudo password of a host, typed unseen."""
    import getpass

    return getpass.getpass(f"sudo password on {host}: ")
