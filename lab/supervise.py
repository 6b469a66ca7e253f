"""Owns one running host, as a process of its own (`python -m lab.supervise HOST`): the firmware that boots it again.

It ends when the host powers off or cannot boot. When it is killed the host's power is cut: nothing runs unwatched.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from lab import bootlog, cgroups, hwstate, network
from lab.boot import BootEntry
from lab.firmware import firmware
from lab.grubparse import GrubError
from lab.hardware import hardware
from lab.host import Host, load, mount
from lab.kernelfs import serve as kernelfs
from lab.paths import RUN, TAG, write
from lab.standing import booted

HANGS = """#!/bin/sh
echo 'Keyboard error or no keyboard present'
echo 'Press F1 to continue'
exec sleep infinity
"""
"""A firmware that waits for somebody: the fault no-return."""

REBOOT = 133
"""How systemd-nspawn with --keep-unit ends when its host asked for a reboot; 0 is a poweroff."""


def main(name: str) -> int:
    """Boots the host, again after each reboot; 0 when it powered off."""
    host = load(name)
    if host is None:
        print(f"no host {name}", file=sys.stderr)
        return 1
    cgroups.enter(name)
    write(pid_file(name), f"{os.getpid()}\n")
    mount(host)
    while True:
        network.attach(name, host.number)
        try:
            entry = firmware(host.root)
        except GrubError as failed:
            _console(host, f"GRUB: {failed}")
            return 1
        status = _boot(host, entry)
        _console(host, f"lab: {name} ended, status {status}")
        if status != REBOOT:
            return status


def pid_file(name: str) -> Path:
    """Where the supervisor's process id stands; only a hint, true while that process is in the host's group."""
    return RUN / f"{name}.pid"


def _boot(host: Host, entry: BootEntry) -> int:
    """One boot, from power on to the end; the exit status of systemd-nspawn."""
    _console(host, f"GRUB: {entry.title}: {entry.command_line}")
    line = host.folder / "cmdline"
    line.write_text(entry.command_line + "\n")
    clocks = {"boottime": time.CLOCK_BOOTTIME, "monotonic": time.CLOCK_MONOTONIC}
    zero = {clock: int(time.clock_gettime(number)) for clock, number in clocks.items()}
    kernelfs.reset(host.name, zero["monotonic"])
    if host.rig is not None:
        said = hardware().power_on(host.rig, host.root, host.hw, entry)
    else:
        hwstate.switch_on(host.hw)
        said = list(bootlog.start(os.uname().release, entry.command_line, "", 0))
    if hwstate.read(host.hw, hwstate.NVRAM).get("boot.hang", "0") != "0":
        (host.hw / "boot").write_text(HANGS)
        (host.hw / "boot").chmod(0o755)
    elif host.rig is None:
        (host.hw / "boot").unlink(missing_ok=True)
    booted(host.name)
    kernelfs.log(host.name, said)
    with host.boots.open("a") as boots:
        boots.write(f"{time.time():.2f}\n")
    with host.console.open("ab") as console:
        return subprocess.call(
            _argv(host, line, zero), stdin=subprocess.DEVNULL, stdout=console, stderr=console, env=_ENVIRONMENT
        )


_ENVIRONMENT = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C.UTF-8",
    "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1",
    "SYSTEMD_NSPAWN_API_VFS_WRITABLE": "network",
}


def _argv(host: Host, line: Path, zero: dict[str, int]) -> list[str]:
    """systemd-nspawn in a time namespace that begins at zero and a process namespace that dies with the supervisor."""
    clocks = [f"--{clock}=-{seconds}" for clock, seconds in zero.items()]
    machine_id = (host.root / "etc/machine-id").read_text().strip()
    argv = ["setpriv", "--pdeathsig", "KILL", "unshare", "--time", *clocks, "--pid", "--mount-proc", "--fork"]
    argv += ["--kill-child=SIGKILL", "systemd-nspawn", "--quiet", "--settings=no", "--register=no", "--keep-unit"]
    argv += [f"--directory={host.root}", f"--machine={TAG}-{host.name}", f"--hostname={host.name}"]
    argv += [f"--uuid={machine_id}"] if machine_id else []
    argv += [f"--network-namespace-path={network.namespace(host.name)}", "--capability=CAP_NET_ADMIN"]
    argv += ["--kill-signal=SIGRTMIN+3", "--console=pipe", "--link-journal=no", "--resolv-conf=off", "--timezone=off"]
    argv += [f"--bind-ro={host.folder / 'init'}:/run/lab/init", f"--bind-ro={line}:/run/lab/cmdline"]
    argv += [f"--bind={host.hw}:/run/lab/hw"]
    if kernelfs.available():
        argv += [f"--bind={kernelfs.MOUNT / host.name}:/run/lab/hw/{kernelfs.FOLDER}"]
    return [*argv, "/run/lab/init"]


def _console(host: Host, text: str) -> None:
    with host.console.open("a") as console:
        console.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
