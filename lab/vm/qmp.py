"""QEMU's machine protocol (QMP) over its Unix socket: commands with a deadline, and events.

QEMU's specification is docs/interop/qmp-spec.txt: JSON objects in lines; an answer has `return` or `error`, an event
has `event`.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from rigwright.core.control_characters import one_line
from rigwright.core.errors import HostError

DEADLINE_S = 20.0
MOST_BYTES = 4 << 20
"""The longest line of an answer."""


class Qmp:
    """A connection to the QEMU process that listens on `path`. Raises HostError when nothing answers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events: list[dict[str, Any]] = []
        self._buffer = b""
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(DEADLINE_S)
        try:
            self._socket.connect(str(path))
            self._line(DEADLINE_S)  # the greeting
        except OSError as error:
            self._socket.close()
            raise HostError(
                "QEMU", f"{path}: {error}", "a running machine", "sudo .venv/bin/invoke lab.status"
            ) from error
        self.execute("qmp_capabilities")

    def __enter__(self) -> Qmp:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def execute(self, command: str, deadline: float = DEADLINE_S, **arguments: Any) -> Any:
        """Runs a command and returns its result; an argument's `_` stands for `-`. Raises HostError with QEMU's
        words."""
        asked = {
            name.replace("_", "-") if name not in _UNDERSCORES else name: value for name, value in arguments.items()
        }
        self._send({"execute": command, "arguments": asked})
        ends = time.monotonic() + deadline
        while True:
            answer = self._line(ends - time.monotonic())
            if "event" in answer:
                self.events.append(answer)
            elif "error" in answer:
                raise HostError(
                    "QEMU",
                    f"{command}: {one_line(str(answer['error'].get('desc', '')))}",
                    "a command that QEMU carries out",
                )
            else:
                return answer.get("return")

    def wait_for(self, state: Callable[[], str], good: set[str], bad: set[str], deadline: float) -> None:
        """Waits until `state` returns one of `good`. Raises HostError for one of `bad` and at the deadline."""
        ends = time.monotonic() + deadline
        while (now := state()) not in good:
            if now in bad or time.monotonic() > ends:
                raise HostError(
                    "QEMU", f"{now} after {deadline:.0f} s" if now not in bad else now, " or ".join(sorted(good))
                )
            time.sleep(0.1)

    def wait_event(self, name: str, deadline: float = DEADLINE_S) -> dict[str, Any]:
        """Returns the next event with that name. Raises HostError at the deadline."""
        ends = time.monotonic() + deadline
        while True:
            found = next((event for event in self.events if event["event"] == name), None)
            if found is not None:
                self.events.remove(found)
                return found
            answer = self._line(ends - time.monotonic())
            if "event" in answer:
                self.events.append(answer)

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._socket.settimeout(DEADLINE_S)
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise HostError(
                "QEMU", f"{self.path}: {error}", "a running machine", "sudo .venv/bin/invoke lab.status"
            ) from error

    def _line(self, within: float) -> dict[str, Any]:
        """Returns the next object. Raises HostError when none comes in time, or QEMU ends."""
        ends = time.monotonic() + within
        while b"\n" not in self._buffer:
            left = ends - time.monotonic()
            if left <= 0 or len(self._buffer) > MOST_BYTES:
                raise HostError("QEMU", f"{self.path}: no answer in {within:.0f} s", "an answer")
            self._socket.settimeout(left)
            try:
                more = self._socket.recv(65536)
            except TimeoutError:
                continue
            except OSError as error:
                raise HostError("QEMU", f"{self.path}: {error}", "an answer") from error
            if not more:
                raise HostError(
                    "QEMU", f"{self.path}: it ended", "a running machine", "sudo .venv/bin/invoke lab.status"
                )
            self._buffer += more
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            found = json.loads(line)
        except ValueError as error:
            raise HostError("QEMU", f"{self.path}: an answer that is no JSON", "an object") from error
        if not isinstance(found, dict):
            raise HostError("QEMU", f"{self.path}: an answer that is no object", "an object")
        return found


_UNDERSCORES = frozenset({"bps_rd", "bps_wr", "iops_rd", "iops_wr", "numa_node", "bus_nr"})
"""Arguments whose names have an underscore in QEMU."""
