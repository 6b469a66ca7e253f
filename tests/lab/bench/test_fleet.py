"""scripts/bench --fleet: its arithmetic, its simulated latency, and a number of round trips independent of the plan."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from lab.bench import fleet as bench
from lab.bench.measured import Measured
from rigwright.core.command import Result
from rigwright.engine import plan
from rigwright.engine.playbook import Step
from rigwright.facts import Fact, FactStore
from rigwright.operations import file
from tests.paths import ROOT


def measured(wall_s: float, cpu_s: float = 0.0, peak_mib: float = 50.0) -> Measured:
    """Returns a command's measurement from one run."""
    return Measured("x", ("true",), wall_s=[wall_s], cpu_s=[cpu_s], peak_mib=[peak_mib])


def test_goals_say_what_was_met_and_what_was_not_measured() -> None:
    one = {"ssh": measured(0.2, 0.07), "rigwright": measured(0.41, 0.3)}
    many = {"ssh": measured(2.0, 1.0), "rigwright": measured(2.0, 0.5, 200)}
    many |= {"Ansible": measured(31), "pyinfra": measured(3.9)}
    goals = bench.goals({1: one, 16: many}, {"rigwright": 7.8, "ssh": 8.2})
    words = "MISSED met - met MISSED - - met MISSED met MISSED"
    assert [str(goal)[:6].strip() for goal in goals] == words.split()


@contextmanager
def _answering() -> Iterator[int]:
    """Yields the port of a server that sends a greeting and answers every line."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listening, listening.accept()[0] as client:
            client.sendall(b"hello")
            while data := client.recv(100):
                client.sendall(data.upper())

    threading.Thread(target=serve, daemon=True).start()
    yield listening.getsockname()[1]


def _answer_s(client: socket.socket) -> float:
    """Returns after how many seconds a question is answered."""
    began = time.monotonic()
    client.sendall(b"question")
    assert client.recv(100) == b"QUESTION"
    return time.monotonic() - began


def test_latency_is_added_to_every_round_trip() -> None:
    """The handshake and the greeting cost two round trips, as with a distant host; each question costs one."""
    with _answering() as port:
        argv = [sys.executable, "-m", "lab.bench.delay", "200", f"127.0.0.1:{port}"]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as proxy:
            assert proxy.stdout
            near = int(proxy.stdout.readline())
            began = time.monotonic()
            with socket.create_connection(("127.0.0.1", near), timeout=10) as client:
                assert client.recv(100) == b"hello"
                greeted = time.monotonic() - began
                answered = [_answer_s(client) for _ in range(5)]
            proxy.communicate("")
    assert greeted >= 0.4
    assert 0.2 <= min(answered) < 0.4


@pytest.mark.parametrize("count", [1, 200])
def test_rounds_do_not_grow_with_the_number_of_steps(count: int) -> None:
    asked: list[int] = []
    store = FactStore()

    def read(facts: Sequence[Fact[Any]]) -> None:
        asked.append(len(facts))
        store.learn((fact, Result(0, b"regular file|644|root|root|2\nx\n")) for fact in facts)

    steps = [
        Step(f"step {n}", "file.present", file.present, {"path": f"/etc/x{n}", "content": "x\n"}, f"play.yml:{n}")
        for n in range(count)
    ]
    assert {one.status for one in plan.plan_steps(steps, store, read)} == {"ok"}
    assert len(asked) == 1
