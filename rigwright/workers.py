"""Workers of a Dask scheduler as a `concurrent.futures.Executor`: `--executor tcp://scheduler:8786` (docs/rollouts.md)."""

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

from rigwright.errors import Unreachable, UsageError

T = TypeVar("T")
CONNECT_S, LOOK_S, ALONE_S = 10, 2.0, 30.0
_INSTALL = ".venv/bin/pip install 'dask[distributed]>=2024.8', here and on every worker"


def check(address: str) -> None:
    """Raises UsageError for what is no address of a scheduler."""
    if not re.fullmatch(r"(tcp|tls)://[^/\s]+:\d+", address):
        found = f"'{address}' is no address of a Dask scheduler"
        raise UsageError("--executor", found, "tcp://HOST:PORT or tls://HOST:PORT", "dask scheduler says its own")


@contextmanager
def executor(address: str) -> Iterator[Executor]:
    """What gives work to the workers of that scheduler, which stays as it was afterwards.

    A worker that is lost has its hosts given to another. Raises UsageError (no Dask, no worker, one with another rigwright) and
    Unreachable (nobody answers there).
    """
    check(address)
    try:
        from distributed import Client
    except ImportError as error:
        raise UsageError("--executor", f"Dask is not installed ({error})", "dask[distributed]", _INSTALL) from None
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # what it would say reaches the user as an error
    try:
        make: Any = Client
        client = make(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        found = f"no Dask scheduler answers within {CONNECT_S} s ({type(error).__name__})"
        raise Unreachable(f"--executor {address}", found, "a scheduler", "dask scheduler, on that machine") from None
    with client:
        _same(address, client.run(sources, on_error="return"))
        made = _Given(client)
        try:
            yield made
        finally:
            made.shutdown(wait=False, cancel_futures=True)


def sources() -> str:
    """What tells whether two installations of rigwright are the same."""
    found = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


def _same(address: str, told: Mapping[str, object]) -> None:
    """Raises UsageError unless there are workers, all with this rigwright."""
    if not told:
        todo = f"dask worker {address} --nthreads 32, where rigwright is installed"
        raise UsageError("--executor", f"the scheduler {address} has no worker", "a worker at least", todo)
    for worker, one in told.items():
        if one != sources():
            what = f"it has none: {one}" if isinstance(one, Exception) else "it has another"
            found = f"the worker {worker} must have the same rigwright as this machine, and {what}"
            raise UsageError(
                "--executor", found, "one version everywhere", "install this one there, restart the worker"
            )


class _Given(Executor):
    """Dask's own executor; when no worker has been there for a while, what is open fails instead of waiting for ever."""

    def __init__(self, client: Any) -> None:
        self._inner = client.get_executor(pure=False)
        self._client = client
        self._open: set[Future[Any]] = set()
        self._over = threading.Event()
        threading.Thread(target=self._look, daemon=True).start()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = self._inner.submit(fn, *args, **kwargs)
        self._open.add(future)
        future.add_done_callback(self._open.discard)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._over.set()
        self._inner.shutdown(wait=wait and not cancel_futures)

    def _look(self) -> None:
        alone_s = 0.0
        while not self._over.wait(LOOK_S):
            try:
                alone_s = 0.0 if self._client.nthreads() else alone_s + LOOK_S
            except Exception as error:  # whatever Dask says when its scheduler is gone
                self._lose(f"the scheduler is gone ({type(error).__name__})")
                return
            if alone_s >= ALONE_S:
                self._lose(f"no worker has been there for {ALONE_S:g} s")
                return

    def _lose(self, why: str) -> None:
        for future in list(self._open):
            if not future.done():
                future.set_exception(ConnectionError(why))
