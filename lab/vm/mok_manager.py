"""The person at MokManager: confirms mokutil's request on the console of a virtual machine, with its keyboard (QMP's
send-key)."""

from __future__ import annotations

import time

from lab.vm.console import Console
from lab.vm.machine import Machine
from lab.vm.qmp import Qmp
from rigwright.core.errors import HostError

SCREENS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Press any key to perform MOK", ("ret",)),
    ("Enroll MOK", ("down", "ret")),
    ("View key 0", ("down", "ret")),
    ("Enroll the key(s)?", ("down", "ret")),
)
"""A text of each screen of MokManager 16.1, in their order, and the keys that choose the way to the password."""
KEY_S, SCREEN_S, BOOT_S = 1.2, 60.0, 600.0
"""Seconds: between two keys, for a screen to appear, and for the machine to come to MokManager, under software
emulation."""


def confirm(made: Machine, console: Console, password: str) -> None:
    """Enrolls the staged key; the machine then boots again. `console`: of the boot that comes to MokManager.

    Raises HostError when a screen does not appear.
    """
    with Qmp(made.qmp) as qmp:
        seen = 0
        for number, (text, keys) in enumerate(SCREENS):
            seen = _await(made, console, text, seen, SCREEN_S if number else BOOT_S)
            _press(qmp, *keys)
        seen = _await(made, console, "Password:", seen, SCREEN_S)
        _press(qmp, *(f"shift+{letter.lower()}" if letter.isupper() else letter for letter in password), "ret")
        _await(made, console, "Reboot", seen, SCREEN_S)
        _press(qmp, "ret")


def _await(made: Machine, console: Console, text: str, seen: int, deadline: float) -> int:
    """Waits until a text is on the console behind the place `seen`; returns its place."""
    ends = time.monotonic() + deadline
    while (place := console.text().find(text.encode(), seen)) < 0:
        if time.monotonic() > ends:
            raise HostError(made.name, f"MokManager does not show '{text}'", "its screen", f"sudo less {made.console}")
        time.sleep(0.5)
    time.sleep(2)  # the screen is drawn to its end
    return place


def _press(qmp: Qmp, *keys: str) -> None:
    for key in keys:
        qmp.execute("send-key", keys=[{"type": "qcode", "data": part} for part in key.split("+")])
        time.sleep(KEY_S)
