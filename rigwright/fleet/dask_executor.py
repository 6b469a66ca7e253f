"""The workers of a Dask scheduler as a `concurrent.futures.Executor`: `--executor tcp://scheduler:8786` (docs/rollouts.md)."""

from __future__ import annotations

import hashlib
import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from rigwright.core.errors import Unreachable, UsageError

T = TypeVar("T")
CONNECT_S, POLL_S, NO_WORKER_S = 10, 2.0, 30.0
_INSTALL = ".venv/bin/pip install 'dask[distributed]>=2024.8', here and on every worker"


def check(address: str) -> None:
    """Raises UsageError when this is not the address of a scheduler."""
    if not re.fullmatch(r"(tcp|tls)://[^/\s]+:\d+", address):
        found = f"'{address}' is no address of a Dask scheduler"
        raise UsageError("--executor", found, "tcp://HOST:PORT or tls://HOST:PORT", "dask scheduler says its own")


@contextmanager
def executor(address: str) -> Iterator[Executor]:
    """An executor that submits to the workers of a scheduler. The scheduler is not changed or stopped.

    Hosts of a lost worker are given to another. Raises UsageError (no Dask, no worker, a worker with another rigwright) and
    Unreachable (no scheduler answers).
    """
    check(address)
    try:
        from distributed import Client
    except ImportError as error:
        raise UsageError("--executor", f"Dask is not installed ({error})", "dask[distributed]", _INSTALL) from None
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # the user gets its errors as UsageError or Unreachable
    try:
        make: Any = Client  # has no annotations
        client = make(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        found = f"no Dask scheduler answers within {CONNECT_S} s ({type(error).__name__})"
        raise Unreachable(f"--executor {address}", found, "a scheduler", "dask scheduler, on that machine") from None
    with client:
        _require_same(address, client.run(sources, on_error="return"))
        watched = _WatchedExecutor(client)
        try:
            yield watched
        finally:
            watched.shutdown(wait=False, cancel_futures=True)


def sources() -> str:
    """A hash of the source files: equal on two machines with the same rigwright."""
    paths = sorted(Path(__file__).parents[1].rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:16]


def _require_same(address: str, hashes: Mapping[str, object]) -> None:
    """Raises UsageError unless there are workers and all have the same rigwright as this machine."""
    if not hashes:
        todo = f"dask worker {address} --nthreads 32, where rigwright is installed"
        raise UsageError("--executor", f"the scheduler {address} has no worker", "a worker at least", todo)
    for worker, digest in hashes.items():
        if digest != sources():
            problem = f"it has none: {digest}" if isinstance(digest, Exception) else "it has another"
            found = f"the worker {worker} must have the same rigwright as this machine, and {problem}"
            fix = "install this one there, restart the worker"
            raise UsageError("--executor", found, "one version everywhere", fix)


class _WatchedExecutor(Executor):
    """The executor of Dask, whose open futures fail when no worker is there for a while, instead of waiting for ever."""

    def __init__(self, client: Any) -> None:
        self._inner = client.get_executor(pure=False)
        self._client = client
        self._open: set[Future[Any]] = set()
        self._over = threading.Event()
        threading.Thread(target=self._poll, daemon=True).start()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = self._inner.submit(fn, *args, **kwargs)
        self._open.add(future)
        future.add_done_callback(self._open.discard)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._over.set()
        self._inner.shutdown(wait=wait and not cancel_futures)

    def _poll(self) -> None:
        no_worker_s = 0.0
        while not self._over.wait(POLL_S):
            try:
                no_worker_s = 0.0 if self._client.nthreads() else no_worker_s + POLL_S
            except Exception as error:  # Dask raises several types when its scheduler is gone
                self._fail_open(f"the scheduler is gone ({type(error).__name__})")
                return
            if no_worker_s >= NO_WORKER_S:
                self._fail_open(f"no worker has been there for {NO_WORKER_S:g} s")
                return

    def _fail_open(self, why: str) -> None:
        for future in list(self._open):
            if not future.done():
                future.set_exception(ConnectionError(why))
