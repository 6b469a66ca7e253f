"""Jobs on this machine, in a temporary folder, with a systemd that runs a unit at once, and a machine that reboots."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from rigwright.core.command import Result, script
from rigwright.core.errors import HostError, Unreachable
from rigwright.engine import jobs, lease
from tests.engine.shell_host import Host

WORK = script("echo works", long=True, timeout_s=60)


def run(host: Host, lines: list[str], after: Callable[[Result], None] = lambda _result: None) -> Result:
    """Runs a job under a lease; `after` is called after each command of the job."""
    owner = lease.take(host, "host", "1").owner
    host.after = after
    return jobs.run(host, owner, "Driver installed", 0, WORK, lines.append)


def test_a_job_ends_with_its_result(tmp_path: Path) -> None:
    lines: list[str] = []
    assert run(Host(tmp_path), lines).code == 0
    assert lines == ["works"]


def test_a_job_whose_unit_is_gone_has_no_result(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.state("never-ends", "")
    with pytest.raises(HostError, match="the job ended without a result"):
        run(host, [], lambda _result: host.state("unit", "dead\n"))


def test_a_reboot_by_hand_is_told_with_its_time(tmp_path: Path) -> None:
    """The unit ends before the connection does: the machine is stopping. Then it does not answer, then it has booted."""
    host, calls = Host(tmp_path), iter(range(9))

    def after(_result: Result) -> None:
        match next(calls):
            case 0:  # the job was started
                host.state("unit", "stop-sigterm\n")
                host.state("system", "stopping\n")
            case 2:
                host.boot("22222222-second")
                host.state("unit", "dead\n")
                host.state("system", "running\n")
                raise Unreachable("host", "the connection was lost")

    host.state("never-ends", "")
    with pytest.raises(HostError, match="the machine went down in the middle of it") as caught:
        run(host, [], after)
    assert re.search(r"and booted again at 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d [A-Z]+$", caught.value.found)
    assert "run the same command again" in caught.value.fix


def test_a_reboot_before_the_first_look_is_told_too(tmp_path: Path) -> None:
    host = Host(tmp_path)

    def after(_result: Result) -> None:
        host.boot("22222222-second")
        host.state("unit", "dead\n")

    host.state("never-ends", "")
    with pytest.raises(HostError, match="booted again at"):
        run(host, [], after)


def test_a_host_that_does_not_answer_is_said_to_be_asked_again(tmp_path: Path) -> None:
    host, calls = Host(tmp_path), iter(range(9))
    lines: list[str] = []

    def after(_result: Result) -> None:
        if next(calls) == 1:
            raise Unreachable("host", "the connection was lost")

    assert run(host, lines, after).code == 0
    assert lines[:2] == [
        "the host does not answer; a job that runs there goes on; trying again for 1 minute",
        "the host answers again",
    ]
