"""QEMU's machine protocol, spoken with a stand-in for QEMU: answers, errors, events between them, silence and an early
end."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

import pytest

from lab.vm.qmp import Qmp
from rigwright.core.errors import HostError

GREETING = '{"QMP": {"version": {"qemu": {"major": 7}}, "capabilities": []}}'


class Peer:
    """Listens as QEMU does; `answers` are the lines that it sends after each command; None closes the connection."""

    def __init__(self, path: Path, answers: list[list[str] | None]) -> None:
        self.asked: list[dict[str, object]] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._answers = answers
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        with self._listener, self._listener.accept()[0] as peer, peer.makefile("rw") as lines:
            lines.write(GREETING + "\n")
            lines.flush()
            for answer in (['{"return": {}}'], *self._answers):
                self.asked.append(json.loads(lines.readline() or "{}"))
                if answer is None:
                    return
                lines.write("".join(f"{line}\n" for line in answer))
                lines.flush()
            lines.readline()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "qmp"


def test_a_command_its_arguments_and_events_before_its_answer(path: Path) -> None:
    peer = Peer(path, [['{"event": "STOP"}', '{"return": {"status": "paused"}}'], ['{"return": {}}']])
    with Qmp(path) as qmp:
        assert qmp.execute("query-status") == {"status": "paused"}
        assert qmp.wait_event("STOP")["event"] == "STOP"
        qmp.execute("block_set_io_throttle", device="disk", bps_rd=0)
    peer.thread.join(5)
    assert peer.asked[-1] == {"execute": "block_set_io_throttle", "arguments": {"device": "disk", "bps_rd": 0}}


def test_an_error_has_the_words_of_qemu(path: Path) -> None:
    Peer(path, [['{"error": {"class": "GenericError", "desc": "Device \'x\\u001b[2J\' not found"}}']])
    with Qmp(path) as qmp, pytest.raises(HostError) as refused:
        qmp.execute("device_del", id="x")
    assert "not found" in str(refused.value.found)
    assert "\x1b" not in str(refused.value.found)


@pytest.mark.parametrize(
    ("answer", "words"), [(None, "it ended"), ([], "no answer"), (["[]"], "no object"), (["{]"], "no JSON")]
)
def test_a_qemu_that_ends_or_is_silent_or_answers_something_else(
    path: Path, answer: list[str] | None, words: str
) -> None:
    Peer(path, [answer])
    with Qmp(path) as qmp, pytest.raises(HostError) as refused:
        qmp.execute("stop", deadline=0.3)
    assert words in str(refused.value.found)


def test_a_machine_that_is_off(path: Path) -> None:
    with pytest.raises(HostError) as refused:
        Qmp(path)
    assert "lab.status" in str(refused.value.fix)
