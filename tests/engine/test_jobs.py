"""Jobs on this machine, in a temporary folder, with a systemd that runs a unit at once, and a machine that reboots."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from rigwright.core.command import Command, Result, script
from rigwright.core.errors import HostError, Unreachable
from rigwright.engine import jobs

SYSTEMCTL = """#!/bin/sh
case $1 in
  show) cat "$STATE/unit" 2>/dev/null || echo dead;;
  is-system-running) cat "$STATE/system" 2>/dev/null || echo running;;
esac
"""
SYSTEMD_RUN = """#!/bin/sh
while [ "$1" != sh ]; do shift; done
if [ -e "$STATE/never-ends" ]; then echo running >"$STATE/unit"; else "$@"; fi
"""
WORK = script("echo works", long=True, timeout_s=60)


class Host:
    """This machine with temporary folders, and a boot id that can be changed. `after` is called after each command."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("bin", "state", "var", "run"):
            (folder / name).mkdir()
        for name, text in (("systemctl", SYSTEMCTL), ("systemd-run", SYSTEMD_RUN)):
            (folder / "bin" / name).write_text(text)
            (folder / "bin" / name).chmod(0o755)
        self.boot("11111111-first")
        self.after: Callable[[], object] = int

    def boot(self, boot_id: str) -> None:
        (self.folder / "boot_id").write_text(f"{boot_id}\n")

    def state(self, name: str, text: str) -> None:
        (self.folder / "state" / name).write_text(text)

    def connect(self, timeout_s: float = 0) -> None:
        """The host answers again."""

    def run(self, commands: Sequence[Command], *, together: bool = False) -> list[Result]:  # noqa: ARG002
        return [self._answer(cmd) for cmd in commands]

    def _answer(self, cmd: Command) -> Result:
        places = {
            "/var/lib/rigwright": f"{self.folder}/var",
            "/run/rigwright": f"{self.folder}/run/rigwright",
            "/proc/sys/kernel/random/boot_id": f"{self.folder}/boot_id",
        }
        argv = list(cmd.argv)
        for place, own in places.items():
            argv = [word.replace(place, own) for word in argv]
        env = {**os.environ, "PATH": f"{self.folder}/bin:{os.environ['PATH']}", "STATE": f"{self.folder}/state"}
        done = subprocess.run(argv, input=cmd.stdin, capture_output=True, timeout=30, check=False, env=env)
        self.after()
        return Result(done.returncode, done.stdout, done.stderr)


def run(host: Host, lines: list[str]) -> Result:
    return jobs.run(host, "1", "Driver installed", 0, WORK, lines.append)  # type: ignore[arg-type]


def test_a_job_ends_with_its_result(tmp_path: Path) -> None:
    lines: list[str] = []
    assert run(Host(tmp_path), lines).code == 0
    assert lines == ["works"]


def test_a_job_whose_unit_is_gone_has_no_result(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.state("never-ends", "")
    host.after = lambda: host.state("unit", "dead\n")
    with pytest.raises(HostError, match="the job ended without a result"):
        run(host, [])


def test_a_reboot_by_hand_is_told_with_its_time(tmp_path: Path) -> None:
    """The unit ends before the connection does: the machine is stopping. Then it does not answer, then it has booted."""
    host, calls = Host(tmp_path), iter(range(9))

    def after() -> None:
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
    host.after = after
    with pytest.raises(HostError, match="the machine went down in the middle of it") as caught:
        run(host, [])
    assert re.search(r"and booted again at 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d [A-Z]+$", caught.value.found)
    assert "run the same command again" in caught.value.fix


def test_a_reboot_before_the_first_look_is_told_too(tmp_path: Path) -> None:
    host = Host(tmp_path)

    def after() -> None:
        host.boot("22222222-second")
        host.state("unit", "dead\n")

    host.state("never-ends", "")
    host.after = after
    with pytest.raises(HostError, match="booted again at"):
        run(host, [])
