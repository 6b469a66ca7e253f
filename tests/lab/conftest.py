"""Hosts for the lab tests, in the checkout's own .lab: names begin with `t-`, so a demo that is up is left alone."""

from __future__ import annotations

import itertools
import os
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from lab import commands, login, power

Ssh = Callable[..., "subprocess.CompletedProcess[str]"]

WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
"""Test files run side by side; hosts that more than one file uses have this in their names."""
_numbers = itertools.count(1)


def ssh(name: str, command: str, deadline: float = 30) -> subprocess.CompletedProcess[str]:
    """The command run on the host over ssh as its sudoer; killed, and TimeoutExpired raised, after `deadline` seconds."""
    return login.ssh(power.the(name), command, deadline)


def reboot(name: str) -> None:
    """The host is in its next boot, and one can log in."""
    one = power.the(name)
    before, ends = one.boots.read_text(), time.monotonic() + 60
    ssh(name, "sudo systemctl reboot", 20)
    while one.boots.read_text() == before:
        assert time.monotonic() < ends, f"{name} did not reboot within 60 s"
        time.sleep(0.05)
    login.wait(one, 60)


_TRAINS = """
mv /dev/nvidia0 /dev/kept 2>/dev/null; : >/dev/nvidia0
systemd-run -q --unit=training sh -c 'exec sleep 600 </dev/nvidia0'
"""
_ENDS = """
systemctl stop training 2>/dev/null
[ -c /dev/nvidia0 ] || rm -f /dev/nvidia0
mv /dev/kept /dev/nvidia0 2>/dev/null; :
"""


@contextmanager
def training(name: str) -> Iterator[None]:
    """A process computes on GPU 0: NVML tells of it, and one has the device open (a file in its place: nothing opens the node)."""
    ssh(name, f"sudo sh -c {shlex.quote(_TRAINS)}")
    file = power.the(name).hw / "volatile" / "state"
    with file.open("a") as out:
        out.write("gpu0.procs=4242:1000:/usr/bin/python3 train.py\n")
    try:
        yield
    finally:
        file.write_text("".join(line for line in file.read_text().splitlines(True) if "procs" not in line))
        ssh(name, f"sudo sh -c {shlex.quote(_ENDS)}")


@pytest.fixture(name="ssh", scope="session")
def _ssh() -> Ssh:
    """`ssh(name, command, deadline=30)`."""
    return ssh


@pytest.fixture(scope="session", autouse=True)
def _no_memory_of_ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What rigwright remembers of the hosts stands in a folder of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def lab_root() -> None:
    """Lab tests make mounts and namespaces: without root they fail, they are never skipped."""
    if os.geteuid() != 0:
        pytest.fail("lab tests need root: sudo .venv/bin/pytest tests/lab")


@pytest.fixture(scope="session")
def plain_host(lab_root: None) -> Iterator[str]:  # noqa: ARG001
    """The name of a host without GPUs, up for the whole test run; leave it as it was."""
    name = f"t-plain{WORKER}"
    commands.down(name=name, say=print)
    commands.up(name=name, say=print)
    yield name
    commands.down(name=name, say=print)


@pytest.fixture
def spare_host(lab_root: None) -> Iterator[str]:  # noqa: ARG001
    """The name of a fresh host for one test, to break as it likes (up in about a second)."""
    name = f"t-spare{WORKER}{next(_numbers)}"
    commands.down(name=name, say=print)
    commands.up(name=name, say=print)
    yield name
    commands.down(name=name, say=print)
