"""The scheduler, a worker and the controller are killed while slices of hosts are changed: every host is changed once, by its own logs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rigwright.fleet import journal
from tests.fleet import disk_hosts, fake_fleet
from tests.paths import ROOT

pytestmark = pytest.mark.timeout(240)
HOSTS = tuple(f"gpu{number:02}" for number in range(1, 25))
SLICE = 6
CLOCK = "import time\nright = time.time\ntime.time = lambda: right() + {}\n"
"""Makes the clock of a process wrong from its beginning."""


class Site:
    """A fleet of folders, a scheduler with two workers, and a controller; each is a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        (folder / "hosts.yml").write_text("gpu:\n  hosts:\n" + "".join(f"    {name}:\n" for name in HOSTS))
        (folder / "play.yml").write_text(fake_fleet.PLAY)
        for name in HOSTS:
            disk_hosts.DiskHost(folder / "hosts" / name, {})
        self.processes: list[subprocess.Popen[bytes]] = []
        self.log = (folder / "log").open("ab")

    def _start(self, *words: str, **variables: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "XDG_STATE_HOME": str(self.folder / "state"), "PYTHONPATH": str(ROOT), **variables}
        started = subprocess.Popen(
            [sys.executable, "-m", *words], cwd=ROOT, env=environment, stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL
        )  # fmt: skip
        self.processes.append(started)
        return started

    def scheduler(self) -> subprocess.Popen[bytes]:
        """Starts the scheduler."""
        return self._start(
            "dask", "scheduler", "--host", "127.0.0.1", "--port", str(self.port), "--no-dashboard", "--no-jupyter"
        )

    def worker(self, clock_off_s: float = 0) -> subprocess.Popen[bytes]:
        """Starts a worker, which handles a slice at a time."""
        variables = {disk_hosts.PLACE: str(self.folder / "hosts")}
        if clock_off_s:
            (self.folder / "clock").mkdir()
            (self.folder / "clock" / "sitecustomize.py").write_text(CLOCK.format(clock_off_s))
            variables["PYTHONPATH"] = f"{self.folder / 'clock'}:{ROOT}"
        return self._start(
            "dask", "worker", f"tcp://127.0.0.1:{self.port}", "--host", "127.0.0.1", "--nthreads", "1", "--no-nanny",
            "--no-dashboard", "--local-directory", str(self.folder), "--preload", "tests.fleet.disk_hosts", **variables,
        )  # fmt: skip

    def ready(self, workers: int) -> None:
        """Waits for workers."""
        from distributed import Client

        with Client(f"tcp://127.0.0.1:{self.port}", timeout=60, set_as_default=False) as client:
            client.wait_for_workers(workers, timeout=60)

    def provision(self, *words: str) -> subprocess.Popen[bytes]:
        """Starts the controller."""
        given = ("--executor", f"tcp://127.0.0.1:{self.port}", "--insecure", "--slice", str(SLICE), "--yes")
        return self._start(
            "tests.fleet.disk_hosts", "provision", *given, "--json", str(self.folder / "out.json"), *words
        )

    def begin(self, *words: str) -> subprocess.Popen[bytes]:
        """Starts the controller of a new rollout of all hosts."""
        files = ("--inventory", str(self.folder / "hosts.yml"), "--playbook", str(self.folder / "play.yml"))
        return self.provision("--host", "gpu", *files, *words)

    def end_of(self, controller: subprocess.Popen[bytes]) -> tuple[int, dict[str, Any]]:
        """Waits for a controller; returns its exit code and the hosts of its document."""
        code = controller.wait(120)
        return code, json.loads((self.folder / "out.json").read_text())["hosts"]

    def made(self, name: str) -> list[str]:
        """Returns the runs whose command made the host's folder, as the host wrote them down."""
        file = self.folder / "hosts" / name / "state" / "made"
        return file.read_text().split() if file.exists() else []

    def said(self, name: str) -> list[str]:
        """Returns the system log of a host."""
        file = self.folder / "hosts" / name / "state" / "log"
        return file.read_text().splitlines() if file.exists() else []

    def until_made(self, count: int) -> None:
        """Waits until so many hosts have their folder."""
        until = time.monotonic() + 60
        while sum(bool(self.made(name)) for name in HOSTS) < count:
            assert time.monotonic() < until, (self.folder / "log").read_text(errors="replace")[-4000:]
            time.sleep(0.02)

    def close(self) -> None:
        """Ends all processes."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait(10)
        self.log.close()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Yields a scheduler with two workers; the clock of one of them is ten years late."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = Site(tmp_path)
    try:
        made.scheduler()
        made.worker()
        made.worker(-10 * 365 * 86_400)
        made.ready(2)
        yield made
    finally:
        made.close()


def require_once(site: Site) -> None:
    """Every host was changed once and released, by its own log; the lease's tokens rise."""
    assert {name: len(site.made(name)) for name in HOSTS} == dict.fromkeys(HOSTS, 1)
    for name in HOSTS:
        said = site.said(name)
        assert any("begins the step 'Room'" in line for line in said), said
        tokens = [int(line.rpartition("lease ")[2].rstrip(")")) for line in said if "(lease " in line]
        assert tokens == sorted(set(tokens)), said
        assert sum("all its steps are done" in line for line in said) >= 1, said
        assert not (site.folder / "hosts" / name / "var" / "lease").exists()


@pytest.mark.parametrize(
    "killed", [1, pytest.param(2, marks=pytest.mark.nightly)], ids=["the one with the right clock", "the other one"]
)
def test_a_worker_is_killed(site: Site, killed: int) -> None:
    controller = site.begin()
    site.until_made(3)
    site.processes[killed].kill()
    code, hosts = site.end_of(controller)
    assert code == 0, (site.folder / "log").read_text(errors="replace")[-4000:]
    assert {host["status"] for host in hosts.values()} <= {"changed", "ok"}
    assert sorted(hosts) == list(HOSTS)
    require_once(site)


def test_the_scheduler_is_killed(site: Site) -> None:
    controller = site.begin()
    site.until_made(3)
    site.processes[0].kill()
    code, hosts = site.end_of(controller)
    assert code == 1
    assert {host["status"] for host in hosts.values()} <= {"changed", "ok", "failed", "not_attempted"}
    assert any("gave no answer" in (host["error"] or {}).get("found", "") for host in hosts.values())
    assert set(journal.stopped().left) >= {name for name, host in hosts.items() if host["status"] == "failed"}
    site.scheduler()
    site.worker()
    site.worker()
    site.ready(2)
    code, hosts = site.end_of(site.provision("--resume"))
    assert code == 0, (site.folder / "log").read_text(errors="replace")[-4000:]
    require_once(site)


def test_the_controller_is_killed(site: Site) -> None:
    controller = site.begin()
    site.until_made(3)
    controller.kill()
    controller.wait(10)
    stopped = journal.stopped()
    assert stopped.left
    assert stopped.begun
    code, hosts = site.end_of(site.provision("--resume"))
    assert code == 0, (site.folder / "log").read_text(errors="replace")[-4000:]
    assert set(hosts) == set(stopped.left)
    require_once(site)


def test_half_of_the_hosts_are_away(site: Site) -> None:
    away = HOSTS[::2]
    for name in away:
        (site.folder / "hosts" / name / "away").touch()
    code, hosts = site.end_of(site.begin("--max-fail", "12"))
    assert code == 3
    assert {name for name, host in hosts.items() if host["status"] == "unreachable"} == set(away)
    assert {hosts[name]["status"] for name in HOSTS if name not in away} == {"changed"}
    for name in away:
        (site.folder / "hosts" / name / "away").unlink()
    code, hosts = site.end_of(site.provision("--resume"))
    assert (code, sorted(hosts)) == (0, sorted(away))
    require_once(site)
