"""The workers of a Dask scheduler as a `concurrent.futures.Executor`: `--executor tls://scheduler:8786` (docs/guide/rollouts.md)."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Executor, Future, InvalidStateError
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rigwright.core.errors import Unreachable, UsageError
from rigwright.core.shipped_files import folder

T = TypeVar("T")
CONNECT_S, POLL_S, NO_WORKER_S = 10, 2.0, 30.0
_INSTALL = ".venv/bin/pip install 'dask[distributed]>=2024.8', here and on every worker"
_CERTIFICATES = "docs/guide/rollouts.md, Certificates, has the commands"

_TLS = {
    "tls_ca_file": "DASK_DISTRIBUTED__COMM__TLS__CA_FILE",
    "tls_client_cert": "DASK_DISTRIBUTED__COMM__TLS__CLIENT__CERT",
    "tls_client_key": "DASK_DISTRIBUTED__COMM__TLS__CLIENT__KEY",
}
"""The settings of a client by the name that Dask's class Security gives them. The key may be in the file of the certificate."""

_TEXTS_ONLY = ["msgpack"]
"""Results of workers are read in this form, which has no pickles. Dask still unpickles exceptions and messages of the scheduler."""


def check(address: str, insecure: bool = False) -> None:
    """Raises UsageError when this is not the address of a scheduler, and for tcp:// without `insecure`."""
    if not re.fullmatch(r"(tcp|tls)://[^/\s]+:\d+", address):
        found = f"'{address}' is no address of a Dask scheduler"
        raise UsageError("--executor", found, "tls://HOST:PORT, or tcp://HOST:PORT", "dask scheduler says its own")
    if insecure and address.startswith("tls"):
        raise UsageError(
            "--insecure", f"is for tcp://, and {address} is encrypted", "one of them", "leave --insecure out"
        )
    if not insecure and address.startswith("tcp"):
        found = f"{address} has no TLS: whoever reaches it can run programs on the workers and here"
        fix = f"{_CERTIFICATES}; or add --insecure, in a network whose every machine you trust"
        raise UsageError("--executor", found, address.replace("tcp", "tls", 1), fix)


@contextmanager
def executor(address: str, insecure: bool = False) -> Iterator[Executor]:
    """An executor that submits to the workers of a scheduler. The scheduler is not changed or stopped.

    Hosts of a lost worker are given to another. `insecure`: over tcp://, without TLS. Raises UsageError (no Dask, no certificate, no
    worker, a worker with another rigwright) and Unreachable (no scheduler answers).
    """
    check(address, insecure)
    try:
        from distributed import Client
    except ImportError as error:
        raise UsageError("--executor", f"Dask is not installed ({error})", "dask[distributed]", _INSTALL) from None
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # the user gets its errors as UsageError or Unreachable
    from dask import config

    config.set({"distributed.admin.large-graph-warning-threshold": "1GiB"})  # an order of 200 hosts has some 10 MB
    security = None if insecure else _security()
    try:
        make: Any = Client  # has no annotations
        client = make(
            address,
            timeout=CONNECT_S,
            set_as_default=False,
            security=security,
            serializers=_TEXTS_ONLY,
            deserializers=_TEXTS_ONLY,
        )
    except (OSError, TimeoutError, ValueError, RuntimeError) as error:
        found = f"no Dask scheduler answers within {CONNECT_S} s ({type(error).__name__})"
        fix = "dask scheduler, on that machine"
        if not insecure:
            fix += f"; its certificate and yours must be of one certificate authority: {_CERTIFICATES}"
        raise Unreachable(f"--executor {address}", found, "a scheduler", fix) from None
    with client:
        workers, hashes = _asked(client)
        _require_same(address, workers, hashes)
        watched = _WatchedExecutor(client, len(workers))
        try:
            yield watched
        finally:
            watched.shutdown(wait=False, cancel_futures=True)


def _security() -> Any:
    """Dask's settings of TLS, which refuse a peer without TLS. Raises UsageError when one is missing or wrong."""
    from distributed.security import Security

    try:
        make: Any = Security
        security = make(require_encryption=True)
        missing = [name for key, name in _TLS.items() if key != "tls_client_key" and not getattr(security, key)]
        if missing:
            found = f"tls:// needs certificates, and {' and '.join(missing)} name{'s' * (len(missing) == 1)} none"
            raise UsageError("--executor", found, f"{', '.join(_TLS.values())}", _CERTIFICATES)
        for key, name in _TLS.items():
            file = getattr(security, key)
            if file and "\n" not in file and not os.access(file, os.R_OK):
                raise UsageError(
                    "--executor", f"{file}, which {name} names, cannot be read", "a PEM file", _CERTIFICATES
                )
        security.get_connection_args("client")
    except (OSError, ValueError, TypeError) as error:  # ssl.SSLError is an OSError
        found = f"the certificates of tls:// cannot be used ({type(error).__name__}: {error})"
        raise UsageError("--executor", found, f"PEM files in {', '.join(_TLS.values())}", _CERTIFICATES) from None
    return security


def _asked(client: Any) -> tuple[Collection[str], Mapping[str, object]]:
    """The addresses of all workers, and the hash of the sources of each that has rigwright.

    Raises UsageError when a worker does not answer in time, or with something else than a text.
    """
    answer: Future[tuple[Collection[str], Mapping[str, object]]] = Future()

    def ask() -> None:
        try:
            answer.set_result((client.nthreads(), client.run(sources, on_error="ignore")))
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=ask, daemon=True).start()  # Dask waits for all workers without a limit
    try:
        return answer.result(timeout=NO_WORKER_S)
    except Exception as error:
        why = (
            f"within {NO_WORKER_S:g} s"
            if isinstance(error, TimeoutError)
            else f"that can be read ({type(error).__name__})"
        )
        found = f"a worker gives no answer {why} about its version"
        raise UsageError("--executor", found, "workers with the same rigwright", "look at the workers' logs") from None


def sources() -> str:
    """A hash of the source files, templates and playbooks: equal on two machines with the same rigwright, one in a checkout and one installed."""
    package = Path(__file__).parents[1]
    folders = [(package, ""), *((folder(name), f"{name}/") for name in ("onhost", "playbooks", "templates"))]
    files = {
        f"{prefix}{path.relative_to(place).as_posix()}": path
        for place, prefix in folders
        for path in place.rglob("*")
        if path.suffix in (".py", ".yml", ".csv", ".j2") and "__pycache__" not in path.parts
    }
    digest = hashlib.sha256()
    for name in sorted(files):
        content = files[name].read_bytes()
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


def _require_same(address: str, workers: Collection[str], hashes: Mapping[str, object]) -> None:
    """Raises UsageError unless there are workers and all have the same rigwright as this machine; one without a hash has none."""
    if not workers:
        todo = f"dask worker {address} --nthreads 2, where rigwright is installed"
        raise UsageError("--executor", f"the scheduler {address} has no worker", "a worker at least", todo)
    for worker in workers:
        if hashes.get(worker) != sources():
            problem = "it has another" if worker in hashes else "it has none that answers"
            found = f"the worker {worker} must have the same rigwright as this machine, and {problem}"
            fix = "install this one there, restart the worker"
            raise UsageError("--executor", found, "one version everywhere", fix)


class _WatchedExecutor(Executor):
    """Submits to the workers of a client, as many at a time as they have threads.

    So a future that waits here has not begun and can be cancelled, and one that was submitted counts as running. All futures fail when
    no worker is there for a while, instead of waiting for ever.
    """

    def __init__(self, client: Any, workers: int = 1) -> None:
        self._client = client
        self._threads, self._workers = 0, workers
        self._lost = ""
        """Why no future is settled any more."""
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._running: dict[Future[Any], Any] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()
        threading.Thread(target=self._poll, daemon=True).start()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        self._waiting.append((future, partial(self._client.submit, fn, *args, **kwargs, pure=False)))
        self._begin()
        if self._lost:
            self._fail(self._lost)
        return future

    @property
    def workers(self) -> int:
        """How many workers there are, at least 1."""
        return max(1, self._workers)

    def ask_all(self, function: Callable[..., str], *arguments: str) -> list[object]:
        """Calls a function in every worker process, beside its work; returns what those that answer said. Waits without a limit."""
        answers: Mapping[str, object] = self._client.run(function, *arguments, on_error="ignore")
        return list(answers.values())

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        self._over.set()
        if cancel_futures:
            for future, _ in list(self._waiting):
                future.cancel()
            for of_dask in list(self._running.values()):
                of_dask.cancel()

    def _begin(self) -> None:
        """Submits what waits, as far as the workers have threads for it."""
        with self._lock:
            while self._waiting and not self._lost and len(self._running) < self._threads:
                future, submit = self._waiting.popleft()
                if not future.set_running_or_notify_cancel():
                    continue
                self._running[future] = of_dask = submit()
                of_dask.add_done_callback(partial(self._settle, future))

    def _settle(self, future: Future[Any], of_dask: Any) -> None:
        """Gives a future the result or the error of a future of Dask. Called in a thread of Dask for callbacks."""
        with suppress(InvalidStateError):  # it has failed because no worker was there
            try:
                result = of_dask.result()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
        self._running.pop(future, None)
        self._begin()  # after the callbacks of the future, which may cancel what waits

    def _poll(self) -> None:
        no_worker_s = 0.0
        while True:
            try:
                threads = self._client.nthreads()
                self._threads, self._workers = sum(threads.values()), len(threads)
                self._begin()
            except Exception as error:  # Dask raises several types when its scheduler is gone
                self._fail(f"the scheduler is gone ({type(error).__name__})")
                return
            no_worker_s = 0.0 if self._threads else no_worker_s + POLL_S
            if no_worker_s > NO_WORKER_S:
                self._fail(f"no worker has been there for {NO_WORKER_S:g} s")
                return
            if self._over.wait(POLL_S):
                return

    def _fail(self, why: str) -> None:
        self._lost = why
        with self._lock:
            futures = [*self._running, *(future for future, _ in self._waiting)]
            self._waiting.clear()
        for future in futures:
            with suppress(InvalidStateError):  # it has ended meanwhile
                future.set_exception(ConnectionError(why))
