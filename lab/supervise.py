"""Owns one boot of a host, as a process of its own (`python -m lab.supervise HOST WATCHER`), which then is the host.

lab/watch.sh calls it again after each reboot. When the watcher is killed the host's power is cut: nothing runs unwatched.
"""

from __future__ import annotations

import os
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


def main(name: str, watcher: str) -> int:
    """Boots the host in this process, whose exit status is then that of systemd-nspawn; 1 when it cannot boot."""
    host = load(name)
    if host is None:
        print(f"no host {name}", file=sys.stderr)
        return 1
    cgroups.enter(name, watcher)
    cgroups.enter(name)
    write(pid_file(name), f"{watcher}\n")
    mount(host)
    network.attach(name, host.number)
    try:
        entry = firmware(host.root)
    except GrubError as failed:
        _console(host, f"GRUB: {failed}")
        return 1
    _boot(host, entry)
    return 1


def pid_file(name: str) -> Path:
    """Where the watcher's process id stands; only a hint, true while that process is in the host's group."""
    return RUN / f"{name}.pid"


def _boot(host: Host, entry: BootEntry) -> None:
    """One boot, from power on to the end; does not return."""
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
    argv = _argv(host, line, zero)
    os.execvpe(argv[0], argv, _ENVIRONMENT)


_ENVIRONMENT = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C.UTF-8",
    "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1",
    "SYSTEMD_NSPAWN_API_VFS_WRITABLE": "network",
}


def _argv(host: Host, line: Path, zero: dict[str, int]) -> list[str]:
    """systemd-nspawn in a time namespace that begins at zero and a process namespace that dies with the watcher."""
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
    sys.exit(main(*sys.argv[1:]))
