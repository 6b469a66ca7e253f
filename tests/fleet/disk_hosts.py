"""Hosts as folders of this machine, which several processes can use: each needs a folder until it has made it.

The scripts of the lease and of the system log run in the real shell; `log` is the host's system log, and a line of
`made` says when a command has made the folder, in which run. A command is a process of its own: it goes on when the
process that began it is killed.

Imported by each Python of a worker, and by `provision` (`python -m tests.fleet.disk_hosts ...`): then every host of
the inventory is such a folder below DISK_HOSTS.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from rigwright.core.command import Command, Result
from rigwright.core.errors import Unreachable
from rigwright.engine import lease
from rigwright.facts import own_programs, system
from rigwright.fleet import pool
from rigwright.inventory.model import Host
from rigwright.ssh import open_transport
from tests.engine import shell_host

PLACE = "DISK_HOSTS"
MAKE_S = 0.4
"""So long the command takes that makes the folder."""
MAKE = f'sleep {MAKE_S}; mkdir -p "$STATE/room"; echo "$RIGWRIGHT_RUN" >>"$STATE/made"'


class DiskHost(shell_host.Host):
    """A host in `folder`, which is made when it does not exist. With a file `away` in it the host does not answer."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        if not (folder / "bin").exists():
            folder.mkdir(parents=True, exist_ok=True)
            super().__init__(folder)
            (folder / "bin" / "sleep").unlink()
        else:
            shell_host.Transport.__init__(self, Host(folder.name, (), {}))
            self.folder, self.after = folder, lambda result: result
        self.environment = dict(environment)

    def connect(self, timeout_s: float | None = None) -> None:  # noqa: ARG002
        if (self.folder / "away").exists():
            raise Unreachable(self.folder.name, "the connection was refused", "a running sshd", "is it up?")

    def _answer(self, cmd: Command) -> Result:
        text = " ".join(cmd.argv)
        if (self.folder / "away").exists():
            raise Unreachable(self.folder.name, "the connection was lost", "a running sshd", "is it up?")
        if (
            "lease.lock" in text
            or "logger -t rigwright" in text
            or "RIGWRIGHT_OWNER=" in text
            or cmd == lease.holder.command
        ):
            return super()._answer(cmd)
        if cmd == system.boot_id.command:
            return Result(0, b"11111111-first\n")
        if cmd in (system.simulated.command, own_programs.at_work.command):
            return Result(0, b"") if cmd == own_programs.at_work.command else Result(1, b"")
        if cmd.argv[-2:-1] == ("root:root",):  # the command that makes the directory
            variables = {**os.environ, **self.environment, "STATE": f"{self.folder}/state"}
            done = subprocess.Popen(["sh", "-c", MAKE], env=variables, start_new_session=True)
            return Result(done.wait(), b"")
        if cmd.argv[-1].startswith("/srv/") and cmd.argv[0] == "sh":
            there = (self.folder / "state" / "room").exists()
            return Result(0, b"directory|755|root|root|4096\n" if there else b"absent\n")
        return Result(0, b"")


def _opened(host: Host, environment: Mapping[str, str], _ask: object = None, _root: bool = True) -> DiskHost:
    return DiskHost(Path(os.environ[PLACE]) / host.name, environment)


def use() -> None:
    """Makes each host of an inventory a folder. DISK_HOSTS_AT_ONCE: so many hosts are at work at a time."""
    open_transport.open_transport = _opened  # type: ignore[assignment]
    pool.WORKERS = int(os.environ.get(f"{PLACE}_AT_ONCE", pool.WORKERS))


if os.environ.get(PLACE):
    use()

if __name__ == "__main__":
    from rigwright.cli import program

    sys.exit(program.main())
