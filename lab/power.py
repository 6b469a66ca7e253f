"""Owns the power button of a host: on, off at once, and whether it is on."""

from __future__ import annotations

import subprocess
import sys
import time

from lab import cgroups
from lab.host import Host, load
from lab.paths import CHECKOUT
from lab.supervise import pid_file
from rigwright.errors import HostError, UsageError

START_S = 15.0


def running(name: str) -> bool:
    """Whether the host has power and its supervisor is there to boot it again."""
    path = pid_file(name)
    text = path.read_text().strip() if path.exists() else ""
    return text.isdigit() and int(text) in cgroups.processes(name)


def on(host: Host) -> None:
    """The host has power: it boots from the disk it had. What an earlier crash left running of it is killed first."""
    if running(host.name):
        return
    cut(host.name)
    log = host.console
    with log.open("ab") as out:
        argv = ["setsid", "--fork", "sh", "lab/watch.sh", host.name, sys.executable]
        subprocess.run(
            argv, cwd=CHECKOUT, stdin=subprocess.DEVNULL, stdout=out, stderr=out, timeout=START_S, check=True
        )
    ends = time.monotonic() + START_S
    while not running(host.name):
        if time.monotonic() > ends:
            last = " / ".join(log.read_text(errors="replace").strip().splitlines()[-2:])
            raise HostError(host.name, f"its supervisor did not start: {last}", todo=f"read {log}")
        time.sleep(0.02)


def cut(name: str) -> None:
    """The power is cut: no process of the host is left, its disk as it was at that moment."""
    cgroups.kill(name)
    pid_file(name).unlink(missing_ok=True)


def the(name: str) -> Host:
    """The known host of that name; raises UsageError."""
    host = load(name)
    if host is None:
        raise UsageError("lab", f"no host {name!r}", todo=f"sudo .venv/bin/invoke lab.up --name {name}")
    return host
