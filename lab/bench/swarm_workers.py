"""Workers for `scripts/bench --swarm --executor`: a Dask scheduler and workers on loopback, whose processor time is
measured.

They are as docs/guide/rollouts.md starts them, with `--insecure`: TLS of a loopback connection is not what is measured.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.base.paths import CHECKOUT

THREADS = 2
"""So many slices a worker handles at a time, as in docs/guide/rollouts.md."""

NO_PROFILER = {"DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False"}
"""Without it Python 3.11 and older can stop for ever (docs/guide/rollouts.md)."""


@dataclass(frozen=True)
class Workers:
    """A scheduler with workers: its address, and the process ids of the workers. `slice_size`: hosts of a slice, 0 for
    rigwright's choice."""

    address: str
    ids: Sequence[int]
    slice_size: int = 0

    def words(self) -> list[str]:
        """The options of a command that gives its hosts to these workers."""
        return [
            "--executor",
            self.address,
            "--insecure",
            *(["--slice", str(self.slice_size)] if self.slice_size else []),
        ]

    def cpu_s(self) -> float:
        """The processor time that all workers have used, with that of the commands that they have run."""
        ticks = 0
        for id in self.ids:
            after_name = Path(f"/proc/{id}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(int(number) for number in after_name[11:15])
        return ticks / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def running(count: int, slice_size: int, folder: Path) -> Iterator[Workers]:
    """Runs a scheduler and so many workers, each a process; `folder` gets their files and their output."""
    from distributed import Client

    folder.mkdir(parents=True, exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    address, local = f"tcp://127.0.0.1:{port}", ("--host", "127.0.0.1", "--no-dashboard")
    own = {
        "XDG_STATE_HOME": str(folder / "state"),
        "DASK_TEMPORARY_DIRECTORY": str(folder),
        "PYTHONPATH": str(CHECKOUT),
    }
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"} | own
    processes: list[subprocess.Popen[bytes]] = []
    with (folder / "log").open("wb") as log, contextlib.ExitStack() as ends:

        def start(*words: str) -> None:
            argv = [sys.executable, "-m", "dask", *words]
            process = subprocess.Popen(
                argv, cwd=CHECKOUT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
            processes.append(process)
            ends.callback(process.wait, 10)
            ends.callback(process.kill)

        start("scheduler", *local, "--port", str(port), "--no-jupyter")
        for _ in range(count):
            of_worker = ("--nthreads", str(THREADS), "--no-nanny", "--local-directory", str(folder))
            start("worker", address, *local, *of_worker)
        make: Any = Client  # has no annotations
        with make(address, timeout=60, set_as_default=False) as client:
            client.wait_for_workers(count, timeout=60)
        yield Workers(address, [process.pid for process in processes[1:]], slice_size)
