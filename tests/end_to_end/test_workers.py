"""Plans hosts with the workers of a Dask scheduler on loopback; one worker is killed during the run."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Executor
from pathlib import Path

import pytest
import yaml

from lab.base.paths import CHECKOUT, KNOWN_HOSTS, SSH_KEY
from lab.power import switch
from rigwright import inventory
from rigwright.engine import playbook
from rigwright.engine.events import Event, HostFinished
from rigwright.engine.host_run import Options
from rigwright.fleet import actions, dask_executor, host_job, pool
from rigwright.fleet.host_job import HostJob
from tests.end_to_end.rw import document

pytestmark = [pytest.mark.lab, pytest.mark.timeout(120)]
COUNT = 12
PLAY = "- name: A play\n  hosts: all\n  tasks:\n    - name: Room\n      file.directory: {path: /srv/room}\n"
SECRET = "correct horse battery staple"


@pytest.fixture(scope="module")
def given(plain_host: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with a playbook and an inventory that lists one host under many names."""
    folder = tmp_path_factory.mktemp("workers")
    way = {
        "ansible_host": str(switch.get(plain_host).address),
        "ansible_user": "ubuntu",
        "ansible_ssh_private_key_file": str(SSH_KEY),
        "ssh_known_hosts": str(KNOWN_HOSTS),
        "ansible_become_password": SECRET,
    }
    names = {f"t-name{number:02}": {} for number in range(COUNT)}
    (folder / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": names, "vars": way}}))
    (folder / "play.yml").write_text(PLAY)
    return folder


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """Yields the address of a scheduler and its two workers; `log` has their output."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    dask, log = [sys.executable, "-m", "dask"], (tmp_path / "log").open("wb")
    port = address.rpartition(":")[2]
    one = subprocess.Popen(
        [*dask, "scheduler", "--host", "127.0.0.1", "--port", port, "--no-dashboard"], stderr=log, cwd=CHECKOUT
    )
    options = ("--nthreads", "1", "--no-nanny", "--no-dashboard", "--local-directory", str(tmp_path))
    others = [
        subprocess.Popen([*dask, "worker", address, *options], stdout=log, stderr=log, cwd=CHECKOUT) for _ in range(2)
    ]
    try:
        _await(address, 2)
        yield address, others
    finally:
        for each in (*others, one):
            each.kill()
            each.wait(10)
        log.close()


def _await(address: str, count: int) -> None:
    from distributed import Client

    with Client(address, timeout=30, set_as_default=False) as client:
        client.wait_for_workers(count, timeout=30)


def _work(folder: Path, executor: Executor, told: list[Event]) -> list[HostJob]:
    found = inventory.read(folder / "hosts.yml")
    bound = [playbook.bind(folder / "play.yml", found, one) for one in found.select("all")]
    return host_job.prepare(bound, Options("run-1"), told.append, executor=executor)


@pytest.mark.nightly
def test_one_worker_is_killed_half_way_and_every_host_ends_once(
    given: Path, scheduler: tuple[str, list[subprocess.Popen[bytes]]], tmp_path: Path
) -> None:
    address, processes = scheduler
    told: list[Event] = []

    def kill() -> None:
        while sum(isinstance(event, HostFinished) for event in list(told)) < COUNT // 4:
            time.sleep(0.02)
        processes[0].kill()

    with dask_executor.executor(address, insecure=True) as executor:
        work = _work(given, executor, told)
        killer = threading.Thread(target=kill)
        killer.start()
        pool.run_hosts(work, actions.plan_or_fail)
        killer.join()
    ended = Counter(event.host for event in told if isinstance(event, HostFinished))
    assert ended == {one.host.name: 1 for one in work}
    assert [(one.report.status, one.report.error) for one in work] == [("pending", None)] * COUNT
    assert processes[0].wait(10) == -9
    assert processes[1].poll() is None

    words = ("--inventory", str(given / "hosts.yml"), "--playbook", str(given / "play.yml"), "--host", "t-name0[0-2]")
    made = document("plan", *words, "--executor", address, "--insecure")
    assert {name: host["status"] for name, host in made["hosts"].items()} == {
        f"t-name0{n}": "pending" for n in range(3)
    }
    assert SECRET not in (tmp_path / "log").read_text(errors="replace")
