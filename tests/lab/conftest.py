"""Hosts for the lab tests, in the checkout's own .lab: names begin with `t-`, so a demo that is up is left alone."""

from __future__ import annotations

import itertools
import os
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest

from lab import commands, login, power

Ssh = Callable[..., "subprocess.CompletedProcess[str]"]

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
    name = "t-plain"
    commands.down(name=name, say=print)
    commands.up(name=name, say=print)
    yield name
    commands.down(name=name, say=print)


@pytest.fixture
def spare_host(lab_root: None) -> Iterator[str]:  # noqa: ARG001
    """The name of a fresh host for one test, to break as it likes (up in about a second)."""
    name = f"t-spare{next(_numbers)}"
    commands.down(name=name, say=print)
    commands.up(name=name, say=print)
    yield name
    commands.down(name=name, say=print)
