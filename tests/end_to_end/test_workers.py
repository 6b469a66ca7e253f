"""Plans and changes hosts with the workers of a Dask scheduler on loopback; a worker, the scheduler or the controller
is killed during the run."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from lab.base.paths import CHECKOUT
from lab.cli import commands
from tests.end_to_end.conftest import Ssh
from tests.end_to_end.rw import argv, login_variables
from tests.fleet.dask_site import Site

pytestmark = [pytest.mark.lab, pytest.mark.timeout(120)]
COUNT = 12
PLAY = "- name: A play\n  hosts: all\n  tasks:\n    - name: Room\n      file.directory: {path: /srv/room}\n"
SECRET = "correct horse battery staple"


@pytest.fixture(scope="module")
def given(plain_host: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with a playbook and an inventory that lists one host under many names."""
    folder = tmp_path_factory.mktemp("workers")
    hosts = {
        f"t-name{number:02}": login_variables(plain_host, ansible_become_password=SECRET) for number in range(COUNT)
    }
    (folder / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts}}))
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


def _children(pid: int) -> set[str]:
    """Returns the process ids of the children of a process."""
    return {child for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()}


@pytest.mark.nightly
def test_one_worker_is_killed_half_way_and_every_host_ends_once(
    given: Path, scheduler: tuple[str, list[subprocess.Popen[bytes]]], tmp_path: Path
) -> None:
    address, processes = scheduler
    words = ("--inventory", str(given / "hosts.yml"), "--playbook", str(given / "play.yml"), "--host", "all")
    by_workers = ("--executor", address, "--insecure", "--slice", "2", "--json", str(tmp_path / "out.json"))
    run = subprocess.Popen(argv("plan", *words, *by_workers), cwd=CHECKOUT, stdout=subprocess.PIPE, text=True)
    slices, until = set[str](), time.monotonic() + 60
    while len(slices) < 2:  # the worker is at work on its second slice
        assert time.monotonic() < until
        slices |= _children(processes[0].pid)
        time.sleep(0.01)
    processes[0].kill()
    said, _ = run.communicate(timeout=60)
    assert (run.returncode, processes[0].wait(10), processes[1].poll()) == (2, -9, None), said
    ended = Counter(line.split()[0] for line in said.splitlines() if "  inventory " in line)
    assert ended == dict.fromkeys((f"t-name{number:02}" for number in range(COUNT)), 1)
    hosts = json.loads((tmp_path / "out.json").read_text())["hosts"]
    assert [(host["status"], host["error"]) for host in hosts.values()] == [("pending", None)] * COUNT
    assert SECRET not in (tmp_path / "log").read_text(errors="replace")


SITE = tuple(f"t-site{number}" for number in range(1, 5))
STEPS = 12


@pytest.fixture(scope="module")
def _site_hosts(lab_root: None) -> Iterator[None]:  # noqa: ARG001
    """Starts the hosts of SITE."""
    commands.up(name="t-site", count=len(SITE), say=print)
    yield
    for name in SITE:
        commands.down(name=name, say=print)


def _said(ssh: Ssh, name: str) -> list[str]:
    return ssh(name, "sudo journalctl -q -t rigwright -o cat --no-pager").stdout.splitlines()


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("_site_hosts")
@pytest.mark.parametrize("killed", ["worker", "scheduler", "controller"])
def test_who_is_killed_every_host_does_each_step_and_says_so(ssh: Ssh, tmp_path: Path, killed: str) -> None:
    """Real hosts, with their own system logs. A step that was cut may be begun again, by the next attempt; none is
    after it was done."""
    (tmp_path / "hosts.yml").write_text(
        yaml.safe_dump({"all": {"hosts": {name: login_variables(name) for name in SITE}}})
    )
    tasks = [{"name": f"Room {n:02}", "file.directory": {"path": f"/srv/{killed}{n:02}"}} for n in range(STEPS)]
    (tmp_path / "play.yml").write_text(yaml.safe_dump([{"name": "P", "hosts": "all", "tasks": tasks}], sort_keys=False))
    before = {name: len(_said(ssh, name)) for name in SITE}
    site = Site(tmp_path, 2)
    try:
        processes = {"scheduler": site.scheduler(), "worker": site.worker(), "other": site.worker(-3600)}
        site.ready(2)
        processes["controller"] = site.begin()
        site.until(
            lambda: any("begins the step 'Room 01'" in " ".join(_said(ssh, name)[before[name] :]) for name in SITE)
        )
        processes[killed].kill()
        if killed == "worker":
            code, made = site.end_of(processes["controller"])
        else:
            processes["controller"].wait(120)
            if killed == "scheduler":
                site.scheduler()
                site.worker()
                site.worker()
                site.ready(2)
            code, made = site.end_of(site.provision("--resume"))
        assert code == 0, site.log
        assert {host["status"] for host in made.values()} <= {"ok", "changed"}
    finally:
        site.close()
    begun_again = 0
    for name in SITE:
        said = _said(ssh, name)[before[name] :]
        begun = Counter(re.findall(r"begins the step '(Room \d\d)'", "\n".join(said)))
        assert sorted(begun) == [task["name"] for task in tasks], said
        again = {step for step, times in begun.items() if times > 1}
        assert len(again) <= 1, said
        begun_again += len(again)
        tokens = [int(token) for token in re.findall(r"\(lease (\d+)\)", "\n".join(said))]
        assert tokens == sorted(set(tokens)), said
        assert sum("all its steps are done" in line for line in said) >= 1, said
        assert ssh(name, f"ls -d /srv/{killed}* | wc -l").stdout.strip() == str(STEPS)
        assert ssh(name, "sudo ls /var/lib/rigwright").stdout.split().count("lease") == 0
    assert begun_again <= len(SITE)
