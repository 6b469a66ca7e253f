"""Owns the way into a running host that needs neither its network nor its sshd: its namespaces, entered by the machine's root."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

from lab import cgroups
from lab.host import Host
from rigwright.errors import HostError, UsageError

ENVIRONMENT = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C.UTF-8",
    "HOME": "/root",
    "DEBIAN_FRONTEND": "noninteractive",
}


_NOT = "-sys_module,-sys_rawio,-syslog,-sys_time,-sys_boot"


def first_process(host: Host) -> int:
    """The host's own process 1, as the machine numbers it. Raises UsageError when the host is not up."""
    for pid in cgroups.processes(host.name):
        with contextlib.suppress(OSError):
            status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
            if status["NSpid"].split()[-1] == "1" and status["Name"] == "systemd":
                return pid
    raise UsageError(host.name, "it is not up", "a running host", f"sudo .venv/bin/invoke lab.up --name {host.name}")


def run(host: Host, script: str, *arguments: str, deadline: float = 60, check: bool = True) -> str:
    """What a shell script prints that runs in the host as root. Raises HostError when it fails and `check`.

    The machine's kernel is out of its reach, as for the host's own processes.
    """
    argv = ["nsenter", "--target", str(first_process(host)), "--all", "setpriv", f"--bounding-set={_NOT}"]
    argv += ["sh", "-euc", script, "fault", *arguments]
    try:
        done = subprocess.run(
            argv, env=ENVIRONMENT, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=deadline, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as late:
        raise HostError(host.name, f"no end after {deadline:.0f} s: {script.splitlines()[0]}") from late
    if check and done.returncode:
        last = " / ".join((done.stderr or done.stdout).strip().splitlines()[-3:])
        raise HostError(host.name, f"exit {done.returncode}: {last}")
    return done.stdout
