"""Runs programs in a host through its namespaces, as the machine's root.

The host needs neither network nor sshd for it.
"""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

from lab.host import cgroups
from lab.host.disk import Host
from rigwright.core.errors import HostError, UsageError

ENVIRONMENT = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C.UTF-8",
    "HOME": "/root",
    "DEBIAN_FRONTEND": "noninteractive",
}


_NOT = "-sys_module,-sys_rawio,-syslog,-sys_time,-sys_boot"


def first_process(host: Host) -> int:
    """Returns the machine's process id of the host's process 1. Raises UsageError when the host is not up."""
    for pid in cgroups.processes(host.name):
        with contextlib.suppress(OSError):
            status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
            if status["NSpid"].split()[-1] == "1" and status["Name"] == "systemd":
                return pid
    raise UsageError(host.name, "it is not up", "a running host", f"sudo .venv/bin/invoke lab.up --name {host.name}")


def run(host: Host, script: str, *arguments: str, deadline: float = 60, check: bool = True) -> str:
    """Runs a shell script in the host as root and returns its output.

    Raises HostError when it fails and `check` is set. The script cannot change the machine's kernel, like the host's
    own processes.
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
