"""Switches a host on and off, and reports whether it is on."""

from __future__ import annotations

import subprocess
import sys
import time

from lab.base.paths import CHECKOUT
from lab.host import cgroups
from lab.host.disk import Host, load
from lab.power.supervise import pid_file
from rigwright.core.errors import HostError, UsageError

START_S = 15.0


def running(name: str) -> bool:
    """Returns whether the host is on, which means that its supervisor runs.

    The supervisor also boots it after a reboot.
    """
    path = pid_file(name)
    text = path.read_text().strip() if path.exists() else ""
    return text.isdigit() and int(text) in cgroups.processes(name)


def on(host: Host) -> None:
    """Switches the host on; it boots from its disk.

    Kills first any processes that a crash left in its control group.
    """
    if running(host.name):
        return
    cut(host.name)
    log = host.console
    with log.open("ab") as out:
        argv = ["setsid", "--fork", "sh", "lab/power/watch.sh", host.name, sys.executable]
        subprocess.run(
            argv, cwd=CHECKOUT, stdin=subprocess.DEVNULL, stdout=out, stderr=out, timeout=START_S, check=True
        )
    ends = time.monotonic() + START_S
    while not running(host.name):
        if time.monotonic() > ends:
            last = " / ".join(log.read_text(errors="replace").strip().splitlines()[-2:])
            raise HostError(host.name, f"its supervisor did not start: {last}", fix=f"read {log}")
        time.sleep(0.02)


def cut(name: str) -> None:
    """Cuts the power: kills every process of the host. The disk stays as it was at that moment."""
    cgroups.kill(name)
    pid_file(name).unlink(missing_ok=True)


def get(name: str) -> Host:
    """Returns the host with this name. Raises UsageError when there is none."""
    host = load(name)
    if host is None:
        raise UsageError("lab", f"no host {name!r}", fix=f"sudo .venv/bin/invoke lab.up --name {name}")
    return host
