"""Jobs on this machine, in a temporary folder, with a systemd that runs a unit at once, and a machine that reboots."""

from __future__ import annotations

import itertools
import re
import time
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


def test_a_silent_job_is_said_to_be_at_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DKMS prints nothing while it compiles. Here a minute passes at each look at the clock, and the unit goes after
    some looks."""
    host, looks, lines = Host(tmp_path), iter(range(99)), list[str]()
    clock = itertools.count(0, 60)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))

    def after(_result: Result) -> None:
        if next(looks) == 8:
            host.state("unit", "dead\n")

    host.state("never-ends", "")
    owner = lease.take(host, "host", "1").owner
    host.after = after
    work = script("echo works", long=True, timeout_s=6000)
    with pytest.raises(HostError, match="the job ended without a result"):
        jobs.run(host, owner, "Driver installed", 0, work, lines.append)
    assert [line for line in lines if re.fullmatch(r"at work for \d+ minutes, and silent for the last 2", line)]


def test_a_pipe_ends_its_writer_as_in_a_shell(tmp_path: Path) -> None:
    """systemd ignores SIGPIPE in services unless told otherwise; then dkms complains of broken pipes (`echo: write
    error`)."""
    host = Host(tmp_path)
    begun: list[str] = []
    real = host._answer
    host._answer = lambda cmd: (begun.append(str(cmd)), real(cmd))[1]  # type: ignore[method-assign]
    run(host, [])
    assert any("systemd-run" in text and "IgnoreSIGPIPE=no" in text for text in begun)


def test_a_job_whose_unit_is_gone_has_no_result(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.state("never-ends", "")
    with pytest.raises(HostError, match="the job ended without a result"):
        run(host, [], lambda _result: host.state("unit", "dead\n"))


def test_a_reboot_by_hand_is_told_with_its_time(tmp_path: Path) -> None:
    """The unit ends before the connection does: the machine is stopping. Then it does not answer, then it has
    booted."""
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


@pytest.mark.parametrize("left", ["", "\0" * 36 + "\n"], ids=["empty", "zeros"])
def test_a_power_cut_that_lost_the_job_s_boot_id_is_no_job_that_runs(tmp_path: Path, left: str) -> None:
    """What was not synced is an empty file, or zeros, after the boot."""
    host, calls = Host(tmp_path), iter(range(9))

    def after(_result: Result) -> None:
        if next(calls) == 1:
            (boot,) = tmp_path.rglob("rigwright-job-driver-installed-0/boot")
            boot.write_text(left)
            host.boot("22222222-second")
            host.state("unit", "dead\n")

    host.state("never-ends", "")
    began = time.monotonic()
    with pytest.raises(HostError, match="the machine went down in the middle of it"):
        run(host, [], after)
    assert time.monotonic() - began < 60


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
