"""A transport that begins to connect and to read before it is asked to."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from rigwright.core.command import Command, Result, command
from rigwright.core.errors import Interrupted, Unreachable
from rigwright.facts import files, merging
from rigwright.inventory.model import Host
from rigwright.ssh import transport
from rigwright.ssh.transport import Ssh

ONE, TWO, THREE = (command(name, reads=True) for name in ("one", "two", "three"))


class Box(Ssh):
    """A host that answers each command with its name and the number of the batch. `error`: of its connection."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__(Host("box", (), {}))
        self.error = error
        self.batches: list[tuple[Command, ...]] = []
        self.may_answer = threading.Event()
        self.may_answer.set()

    def _connect(self, timeout_s: float) -> None:  # noqa: ARG002
        if self.error:
            raise self.error

    def _run_script(self, commands: Sequence[Command], together: bool) -> list[Result]:  # noqa: ARG002
        assert self.may_answer.wait(20)
        self.batches.append(tuple(commands))
        return [Result(0, f"{cmd.argv[0]} {len(self.batches)}".encode()) for cmd in commands]


def texts(box: Box, *commands: Command, together: bool = True) -> list[str]:
    """Runs commands and returns their answers."""
    return [result.text for result in box.run(commands, together=together)]


def test_answers_that_came_ahead_need_no_round_trip() -> None:
    box = Box()
    box.begin((ONE, TWO))
    box.connect()
    assert texts(box, TWO, ONE) == ["two 1", "one 1"]
    assert (box.batches, box.round_trips) == ([(ONE, TWO)], 1)


def test_what_was_not_read_ahead_is_read_in_one_more() -> None:
    box = Box()
    box.begin((ONE, TWO))
    box.connect()
    assert texts(box, THREE, ONE) == ["three 2", "one 1"]
    assert texts(box, TWO) == ["two 1"]
    assert (box.batches, box.round_trips) == ([(ONE, TWO), (THREE,)], 2)


def test_an_answer_counts_once() -> None:
    box = Box()
    box.begin((ONE,))
    assert [texts(box, ONE), texts(box, ONE)] == [["one 1"], ["one 2"]]


def test_no_answer_from_before_a_change_counts_after_it() -> None:
    box = Box()
    box.begin((ONE, TWO))
    assert texts(box, THREE, together=False) == ["three 2"]
    assert box.acted
    assert texts(box, ONE) == ["one 3"]


def test_an_old_answer_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "FRESH_S", -1.0)
    box = Box()
    box.begin((ONE,))
    assert texts(box, ONE) == ["one 2"]


@pytest.mark.parametrize("error", [Unreachable("box", "the connection was refused"), Interrupted("box", "interrupted")])
def test_the_error_of_the_connection_is_that_of_connect(error: Exception) -> None:
    box = Box(error)
    box.begin((ONE,))
    with pytest.raises(type(error)):
        box.connect()
    box.error = None
    box.connect()
    assert texts(box, ONE) == ["one 1"]


def test_the_connection_is_there_before_the_answers() -> None:
    box = Box()
    box.may_answer.clear()
    box.begin((ONE,))
    box.connect()
    assert box.batches == []
    box.may_answer.set()
    assert texts(box, ONE) == ["one 1"]


def test_what_a_merged_answer_did_not_tell_is_not_read_ahead() -> None:
    box = Box()
    two = files.file("/a").command, files.file("/b").command
    box.begin((ONE, *two))
    box.connect()
    assert texts(box, two[0], ONE, two[1]) == ["sh 3", "one 1", "sh 3"]
    [together] = merging.merged(two)
    assert (box.batches, box.round_trips) == ([(ONE, together.command), (together.command,), two], 3)
