"""Hosts for the lab tests, in the checkout's .lab: names begin with `t-`, so the tests do not touch a running demo."""

from __future__ import annotations

import itertools
import os
import shlex
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab.cli import commands
from lab.faults import inject
from lab.host import login
from lab.power import switch
from tests.end_to_end.rw import until

Ssh = Callable[..., "subprocess.CompletedProcess[str]"]

WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
"""The name of the pytest worker. Test files run in parallel; names of hosts that several files use contain it."""
_numbers = itertools.count(1)


def ssh(name: str, command: str, deadline: float = 60) -> subprocess.CompletedProcess[str]:
    """Runs a command on the host over ssh as its sudoer. Raises TimeoutExpired after `deadline` seconds."""
    return login.ssh(switch.get(name), command, deadline)


def reboot(name: str) -> None:
    """Reboots the host and waits until login works in the next boot."""
    one = switch.get(name)
    before = one.boots.read_text()
    ssh(name, "sudo systemctl reboot", 20)
    until(lambda: one.boots.read_text() != before, f"{name} reboots", 120)
    login.wait(one)


@contextmanager
def secure_boot_host(name: str, distro: str) -> Iterator[None]:
    """Makes a servbadge of this name, in its second boot with Secure Boot; removes it at the end."""
    commands.down(name=name, say=print)
    commands.up(name=name, rig="servbadge", distro=distro, say=print)
    inject.fault(name, "secure-boot", "", print)
    reboot(name)
    yield
    commands.down(name=name, say=print)


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
    """Simulates a process that computes on GPU 0: NVML lists it, and a process holds the device file open.

    A regular file replaces the device file, because nothing can open the node.
    """
    ssh(name, f"sudo sh -c {shlex.quote(_TRAINS)}")
    file = switch.get(name).hw / "volatile" / "state"
    with file.open("a") as out:
        out.write("gpu0.procs=4242:1000:/usr/bin/python3 train.py\n")
    try:
        yield
    finally:
        file.write_text("".join(line for line in file.read_text().splitlines(True) if "procs" not in line))
        ssh(name, f"sudo sh -c {shlex.quote(_ENDS)}")


@pytest.fixture(name="ssh", scope="session")
def _ssh() -> Ssh:
    """Returns `ssh(name, command, deadline=60)`."""
    return ssh


@pytest.fixture(scope="session", autouse=True)
def _no_memory_of_ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Puts rigwright's state about the hosts into a temporary folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def lab_root(as_root: None) -> None:
    """The lab makes mounts and network namespaces, which needs root."""


@pytest.fixture(scope="session")
def snapshots(lab_root: None, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: ARG001
    """Returns a folder for disk snapshots that all workers of a test run share; pytest deletes old ones."""
    own = tmp_path_factory.getbasetemp()
    return (own.parent if WORKER else own) / "snapshots"


@pytest.fixture(scope="session")
def plain_host(lab_root: None) -> Iterator[str]:  # noqa: ARG001
    """Yields the name of a host without GPUs that runs for the whole test run; tests must leave it unchanged."""
    name = f"t-plain{WORKER}"
    commands.down(name=name, say=print)
    commands.up(name=name, say=print)
    yield name
    commands.down(name=name, say=print)


@pytest.fixture
def spare_host(lab_root: None) -> Iterator[str]:  # noqa: ARG001
    """Yields the name of a fresh host for one test, which may break it; it boots in about a second."""
    name = f"t-spare{WORKER}{next(_numbers)}"
    commands.down(name=name, say=print)
    commands.up(name=name, say=print)
    yield name
    commands.down(name=name, say=print)
