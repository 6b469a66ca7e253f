"""`--executor` fails without Dask, a scheduler, a worker, or with another rigwright version, and does not wait for lost
workers.
"""

from __future__ import annotations

import socket
import sys
import time

import pytest

from rigwright.cli import option_values
from rigwright.core.errors import Unreachable, UsageError
from rigwright.fleet import dask_workers


@pytest.mark.parametrize(
    "address", ["scheduler:8786", "http://scheduler:8787", "tcp://scheduler", "tcp://:8786x", "tcp:///x:1"]
)
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(UsageError, match="no address of a Dask scheduler"):
        option_values.SCHEDULER.value("--executor", address)


def test_without_dask_it_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with (
        pytest.raises(UsageError, match=r"pip install 'dask\[distributed\]") as found,
        dask_workers.connect("tcp://x:8786", insecure=True),
    ):
        pass
    assert "Dask is not installed" in found.value.found


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_workers, "CONNECT_S", 0.5)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        with (
            pytest.raises(Unreachable, match="no Dask scheduler answers"),
            dask_workers.connect(address, insecure=True),
        ):
            pass


class Asked:
    """A client of a scheduler: its workers, and what they answer, or the error of asking them."""

    def __init__(self, workers: list[str], answers: dict[str, str] | Exception) -> None:
        self.workers, self.answers = workers, answers

    def nthreads(self) -> dict[str, int]:
        return dict.fromkeys(self.workers, 2)

    def run(self, function: object, on_error: str) -> dict[str, str]:
        assert (function, on_error) == (dask_workers.sources, "ignore")
        if isinstance(self.answers, Exception):
            raise self.answers
        return self.answers


WORKER = "tcp://10.0.0.9:4000"


@pytest.mark.parametrize(
    ("workers", "answers", "found"),
    [
        ([], {}, "has no worker"),
        ([WORKER], {WORKER: "0123"}, f"worker {WORKER} has another rigwright"),
        ([WORKER], {}, "has no rigwright that answers"),
        ([WORKER], TypeError("Data serialized with pickle"),
         "gives no answer that can be read about its version (TypeError)"),
    ],
    ids=["none", "another", "not there", "a pickle"],
)  # fmt: skip
def test_workers_must_be_the_same(workers: list[str], answers: dict[str, str] | Exception, found: str) -> None:
    with pytest.raises(UsageError) as error:
        dask_workers._require_same("tcp://x:8786", Asked(workers, answers))
    assert found in error.value.found
    dask_workers._require_same("tcp://x:8786", Asked([WORKER], {WORKER: dask_workers.sources()}))


class Alone:
    """A scheduler's client whose workers, or the scheduler itself, are gone once `there` is False."""

    def __init__(self, gone: bool) -> None:
        self.gone, self.there = gone, True

    def nthreads(self) -> dict[str, int]:
        if self.there:
            return {WORKER: 2}
        if self.gone:
            raise OSError("closed")
        return {}


@pytest.mark.parametrize(("gone", "why"), [(False, "no worker has been there"), (True, "the scheduler is gone")])
def test_workers_that_are_gone_are_noticed(monkeypatch: pytest.MonkeyPatch, gone: bool, why: str) -> None:
    monkeypatch.setattr(dask_workers, "POLL_S", 0.01)
    monkeypatch.setattr(dask_workers, "NO_WORKER_S", 0.05)
    client = Alone(gone)
    workers = dask_workers.Workers(client)
    assert (workers.count, workers.threads, workers.lost) == (1, 2, "")
    client.there = False
    until = time.monotonic() + 60
    while not workers.lost:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert workers.lost.startswith(why)
