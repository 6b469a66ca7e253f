"""`--executor` fails without Dask, a scheduler, a worker, or with another rigwright version, and does not wait for lost
workers.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from rigwright.core.errors import Unreachable, UsageError
from rigwright.fleet import dask_executor


@pytest.mark.parametrize(
    "address", ["scheduler:8786", "http://scheduler:8787", "tcp://scheduler", "tcp://:8786x", "tcp:///x:1"]
)
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(UsageError, match="no address of a Dask scheduler"):
        dask_executor.check(address, insecure=True)


def test_without_dask_it_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with (
        pytest.raises(UsageError, match=r"pip install 'dask\[distributed\]") as found,
        dask_executor.executor("tcp://x:8786", insecure=True),
    ):
        pass
    assert "Dask is not installed" in found.value.found


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_executor, "CONNECT_S", 0.5)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        with (
            pytest.raises(Unreachable, match="no Dask scheduler answers"),
            dask_executor.executor(address, insecure=True),
        ):
            pass


@pytest.mark.parametrize(
    ("workers", "told", "found"),
    [
        ([], {}, "has no worker"),
        (["tcp://10.0.0.9:4000"], {"tcp://10.0.0.9:4000": "0123"}, "worker tcp://10.0.0.9:4000 must have the same rigwright as this machine, and it has another"),
        (["tcp://10.0.0.9:4000"], {}, "it has none that answers"),
    ],
    ids=["none", "another", "not there"],
)  # fmt: skip
def test_workers_must_be_the_same(workers: list[str], told: dict[str, object], found: str) -> None:
    with pytest.raises(UsageError) as error:
        dask_executor._require_same("tcp://x:8786", workers, told)
    assert found in error.value.found
    dask_executor._require_same("tcp://x:8786", ["tcp://10.0.0.9:1"], {"tcp://10.0.0.9:1": dask_executor.sources()})


class Odd:
    """A client whose worker answers with a pickle, which is not read, or never."""

    def __init__(self, answer: Callable[[], object]) -> None:
        self.answer = answer

    def nthreads(self) -> dict[str, int]:
        return {"tcp://10.0.0.9:1": 1}

    def run(self, function: object, on_error: str) -> object:
        assert (function, on_error) == (dask_executor.sources, "ignore")
        return self.answer()


def test_a_worker_that_does_not_say_its_version_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_executor, "NO_WORKER_S", 0.05)
    over = threading.Event()

    def pickled() -> object:
        raise TypeError("Data serialized with pickle")

    for answer, found in ((pickled, "that can be read (TypeError)"), (over.wait, "within 0.05 s")):
        with pytest.raises(UsageError) as error:
            dask_executor._asked(Odd(answer))
        assert f"a worker gives no answer {found} about its version" in error.value.found
    over.set()


class Alone:
    """A scheduler's client whose workers, or the scheduler itself, are gone."""

    def __init__(self, gone: bool) -> None:
        self.gone = gone

    def submit(self, *_: object, pure: bool) -> Future[Any]:
        assert not pure
        return Future()

    def nthreads(self) -> dict[str, int]:
        if self.gone:
            raise OSError("closed")
        return {}


@pytest.mark.parametrize(("gone", "why"), [(False, "no worker has been there"), (True, "the scheduler is gone")])
def test_nothing_waits_for_workers_that_are_gone(monkeypatch: pytest.MonkeyPatch, gone: bool, why: str) -> None:
    monkeypatch.setattr(dask_executor, "POLL_S", 0.01)
    monkeypatch.setattr(dask_executor, "NO_WORKER_S", 0.05)
    given = dask_executor._WatchedExecutor(Alone(gone))
    with pytest.raises(ConnectionError, match=why):
        given.submit(print).result(timeout=60)
    given.shutdown(cancel_futures=True)


class OneThread:
    """A client whose only worker has one thread; `begun` are the futures that it was given."""

    def __init__(self) -> None:
        self.begun: list[Future[Any]] = []

    def nthreads(self) -> dict[str, int]:
        return {"tcp://10.0.0.9:1": 1}

    def submit(self, *_: object, pure: bool) -> Future[Any]:
        assert not pure
        self.begun.append(Future())
        return self.begun[-1]


def test_only_what_has_not_begun_can_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_executor, "POLL_S", 0.01)
    client = OneThread()
    given = dask_executor._WatchedExecutor(client)
    first, second, third = (given.submit(print) for _ in range(3))
    until = time.monotonic() + 10
    while not first.running():
        assert time.monotonic() < until
        time.sleep(0.01)
    assert (first.cancel(), second.cancel(), len(client.begun)) == (False, True, 1)
    client.begun[0].set_result("done")
    assert (first.result(timeout=10), third.running(), len(client.begun)) == ("done", True, 2)
    given.shutdown(cancel_futures=True)
    assert client.begun[1].cancelled()
