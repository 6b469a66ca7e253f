"""A scheduler of Dask with workers and a controller, each a process of its own that a test can kill."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.paths import ROOT

BEGINNING = """import os, time
right = time.time
time.time = lambda: right() + {}
if os.environ.get("DISK_HOSTS"):
    import tests.fleet.disk_hosts
"""
"""What each Python of a worker runs first: its clock may be wrong, and its hosts may be folders."""


class Site:
    """The processes; `folder` has the inventory hosts.yml and the playbook play.yml. `variables`: of the workers,
    besides the environment."""

    def __init__(self, folder: Path, slice_size: int, **variables: str) -> None:
        self.folder, self.slice_size, self.variables = folder, slice_size, variables
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.processes: list[subprocess.Popen[bytes]] = []
        self._log = (folder / "log").open("ab")

    @property
    def log(self) -> str:
        """Returns the end of the output of all processes."""
        return (self.folder / "log").read_text(errors="replace")[-4000:]

    def _start(self, *words: str, **variables: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "XDG_STATE_HOME": str(self.folder / "state"), "PYTHONPATH": str(ROOT), **variables}
        environment["DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED"] = "False"
        argv = [sys.executable, "-m", *words]
        started = subprocess.Popen(
            argv, cwd=ROOT, env=environment, stdout=self._log, stderr=self._log, stdin=subprocess.DEVNULL
        )
        self.processes.append(started)
        return started

    def scheduler(self) -> subprocess.Popen[bytes]:
        """Starts the scheduler."""
        return self._start(
            "dask", "scheduler", "--host", "127.0.0.1", "--port", str(self.port), "--no-dashboard", "--no-jupyter"
        )

    def worker(self, clock_off_s: float = 0) -> subprocess.Popen[bytes]:
        """Starts a worker, which handles a slice at a time."""
        beginning = self.folder / f"beginning{clock_off_s:g}"
        beginning.mkdir(exist_ok=True)
        (beginning / "sitecustomize.py").write_text(BEGINNING.format(clock_off_s))
        variables = {**self.variables, "PYTHONPATH": f"{beginning}:{ROOT}"}
        return self._start(
            "dask", "worker", f"tcp://127.0.0.1:{self.port}", "--host", "127.0.0.1", "--nthreads", "1", "--no-nanny",
            "--no-dashboard", "--local-directory", str(self.folder), **variables,
        )  # fmt: skip

    def ready(self, workers: int) -> None:
        """Waits for workers."""
        from distributed import Client

        with Client(f"tcp://127.0.0.1:{self.port}", timeout=60, set_as_default=False) as client:
            client.wait_for_workers(workers, timeout=60)

    def begin(self, *words: str) -> subprocess.Popen[bytes]:
        """Starts the controller of a new rollout of all hosts."""
        files = ("--inventory", str(self.folder / "hosts.yml"), "--playbook", str(self.folder / "play.yml"))
        return self.provision("--host", "all", *files, *words)

    def provision(self, *words: str) -> subprocess.Popen[bytes]:
        """Starts a controller."""
        given = ("--executor", f"tcp://127.0.0.1:{self.port}", "--insecure", "--slice", str(self.slice_size), "--yes")
        json_file = str(self.folder / "out.json")
        return self._start("tests.fleet.disk_hosts", "provision", *given, "--json", json_file, *words)

    def end_of(self, controller: subprocess.Popen[bytes]) -> tuple[int, dict[str, Any]]:
        """Waits for a controller; returns its exit code and the hosts of its document."""
        code = controller.wait(120)
        return code, json.loads((self.folder / "out.json").read_text())["hosts"]

    def until(self, reached: Callable[[], bool]) -> None:
        """Waits until something is so."""
        until = time.monotonic() + 60
        while not reached():
            assert time.monotonic() < until, self.log
            time.sleep(0.02)

    def close(self) -> None:
        """Ends all processes."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait(10)
        self._log.close()
