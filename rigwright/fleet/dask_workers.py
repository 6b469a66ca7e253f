"""The workers of a Dask scheduler: `--executor tls://scheduler:8786` (docs/guide/rollouts.md)."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rigwright.core.errors import Unreachable, UsageError
from rigwright.core.files.shipped_files import folder

CONNECT_S, POLL_S, NO_WORKER_S = 10, 2.0, 30.0
_INSTALL = ".venv/bin/pip install 'dask[distributed]>=2024.8', here and on every worker"
_CERTIFICATES = "docs/guide/rollouts.md, Certificates, has the commands"

_TLS = {
    "tls_ca_file": "DASK_DISTRIBUTED__COMM__TLS__CA_FILE",
    "tls_client_cert": "DASK_DISTRIBUTED__COMM__TLS__CLIENT__CERT",
    "tls_client_key": "DASK_DISTRIBUTED__COMM__TLS__CLIENT__KEY",
}
"""The settings of a client by their name in Dask's class Security. The file of the certificate may have the key too."""

_TEXTS_ONLY = ["msgpack"]
"""Results are read in this form, without pickles. Dask still unpickles exceptions and messages of the scheduler."""


def check(address: str, insecure: bool = False) -> None:
    """Raises UsageError for tcp:// without `insecure`, and for tls:// with it."""
    if insecure and address.startswith("tls"):
        problem = f"is for tcp://, and {address} is encrypted"
        raise UsageError("--insecure", problem, "tls:// without --insecure", "leave --insecure out")
    if not insecure and address.startswith("tcp"):
        problem = f"{address} has no TLS: whoever reaches it can run programs on the workers and here"
        fix = f"{_CERTIFICATES}; or add --insecure, in a network whose every machine you trust"
        raise UsageError("--executor", problem, address.replace("tcp", "tls", 1), fix)


@contextmanager
def connect(address: str, insecure: bool = False) -> Iterator[Workers]:
    """The workers of a scheduler. Dask gives the work of a lost worker to another one.

    `insecure`: over tcp://, without TLS. Raises UsageError (no Dask, no certificate, no worker, a worker with another
    rigwright) and Unreachable (no scheduler answers).
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
    texts = {"serializers": _TEXTS_ONLY, "deserializers": _TEXTS_ONLY}
    make: Any = Client  # has no annotations
    try:
        client = make(address, timeout=CONNECT_S, set_as_default=False, security=security, **texts)
    except (OSError, TimeoutError, ValueError, RuntimeError) as error:
        problem = f"no Dask scheduler answers within {CONNECT_S} s ({type(error).__name__})"
        fix = "dask scheduler, on that machine"
        if not insecure:
            fix += f"; its certificate and yours must be of one certificate authority: {_CERTIFICATES}"
        raise Unreachable(f"--executor {address}", problem, "a scheduler", fix) from None
    with client:
        _require_same(address, client)
        yield Workers(client)


def _security() -> Any:
    """Dask's settings of TLS, which refuse a peer without TLS. Raises UsageError when one is missing or wrong."""
    from distributed.security import Security

    try:
        make: Any = Security
        security = make(require_encryption=True)
        missing = [name for key, name in _TLS.items() if key != "tls_client_key" and not getattr(security, key)]
        if missing:
            problem = f"tls:// needs certificates; not set: {', '.join(missing)}"
            expected = ", ".join(f"{name}=/path/file.pem" for name in _TLS.values())
            raise UsageError("--executor", problem, expected, _CERTIFICATES)
        for key, name in _TLS.items():
            file = getattr(security, key)
            if file and "\n" not in file and not os.access(file, os.R_OK):
                problem = f"{file}, which {name} names, cannot be read"
                raise UsageError("--executor", problem, "a PEM file", _CERTIFICATES)
        security.get_connection_args("client")
    except (OSError, ValueError, TypeError) as error:  # ssl.SSLError is an OSError
        problem = f"the certificates of tls:// cannot be used ({type(error).__name__}: {error})"
        raise UsageError("--executor", problem, f"PEM files in {', '.join(_TLS.values())}", _CERTIFICATES) from None
    return security


def sources() -> str:
    """A hash of the source files, templates and playbooks: equal in a checkout and in an installation of it."""
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


def _require_same(address: str, client: Any) -> None:
    """Raises UsageError unless there are workers and all have the same rigwright as this machine."""
    workers = client.nthreads()
    if not workers:
        todo = f"dask worker {address} --nthreads 2, where rigwright is installed"
        raise UsageError("--executor", f"the scheduler {address} has no worker", "a worker at least", todo)
    expected, fix = "workers with the same rigwright as this machine", "look at the workers' logs"
    try:
        hashes = client.run(sources, on_error="ignore")
    except Exception as error:
        unreadable = f"a worker gives no answer that can be read about its version ({type(error).__name__})"
        raise UsageError("--executor", unreadable, expected, fix) from None
    for worker in workers:
        if hashes.get(worker) != sources():
            problem = "has another rigwright" if worker in hashes else "has no rigwright that answers"
            fix = "install this rigwright there, then restart the worker"
            raise UsageError("--executor", f"the worker {worker} {problem}", expected, fix)


class Workers:
    """The workers of a client: their `count`, and the number of `threads`, each for one slice at a time.

    `lost`: why no answer can come any more, or "". All three are updated every POLL_S seconds.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self.count, self.threads, self.lost = 0, 0, ""
        self._update()
        threading.Thread(target=self._keep_updating, daemon=True).start()

    def _update(self) -> None:
        try:
            threads = self._client.nthreads()
            self.count, self.threads = len(threads), sum(threads.values())
        except Exception as error:  # Dask raises several types when its scheduler is gone
            self.lost = f"the scheduler is gone ({type(error).__name__})"

    def _keep_updating(self) -> None:
        no_worker_s = 0.0
        while not self.lost:
            time.sleep(POLL_S)
            self._update()
            no_worker_s = 0.0 if self.count else no_worker_s + POLL_S
            if no_worker_s > NO_WORKER_S:
                self.lost = f"no worker has been there for {NO_WORKER_S:g} s"

    def submit(self, function: Callable[..., str], *arguments: str) -> Any:
        """A future of Dask with what the function returns on one of the workers."""
        return self._client.submit(function, *arguments, pure=False)

    def call_all(self, function: Callable[..., object], *arguments: str) -> None:
        """Calls a function on every worker, beside its work, without waiting for the end of the call."""

        def call() -> None:
            with suppress(Exception):  # the scheduler is gone: `lost` says so
                self._client.run(function, *arguments, on_error="ignore")

        threading.Thread(target=call, daemon=True).start()
