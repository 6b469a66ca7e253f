"""Boots a host in a separate process (`python -m lab.power.supervise HOST WATCHER`), which becomes the host.

lab/power/watch.sh calls it again after each reboot. When the watcher is killed, the host is killed too, so that no host
runs without a watcher.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from lab.base.paths import CACHE, RUN, TAG, write
from lab.hardware import boot_messages, hw_state
from lab.host import cgroups, network
from lab.host.active_faults import booted
from lab.host.boot import BootEntry
from lab.host.disk import Host, load, mount
from lab.host.firmware import firmware
from lab.host.grub_parser import GrubError
from lab.power import new_boot
from lab.simulators.kernelfs import serve as kernelfs
from rigwright.core.errors import HostError

HANGS = """#!/bin/sh
echo 'Keyboard error or no keyboard present'
echo 'Press F1 to continue'
exec sleep infinity
"""
"""The boot script of a firmware that waits for input and never boots: the fault no-return."""


def main(name: str, watcher: str) -> int:
    """Boots the host in this process, whose exit status becomes that of systemd-nspawn.

    Returns 1 when it cannot boot.
    """
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
        entry = firmware(host.root, hw_state.read(host.hw, hw_state.NVRAM).get("boot.grubenv", "") != "read-only")
    except GrubError as failed:
        _console(host, f"GRUB: {failed}")
        return 1
    _boot(host, entry)
    return 1


def pid_file(name: str) -> Path:
    """Returns the path of the file with the watcher's process id.

    The id is valid only if its process is in the host's group.
    """
    return RUN / f"{name}.pid"


def _boot(host: Host, entry: BootEntry) -> None:
    """Starts one boot, from power on. It does not return: this process becomes systemd-nspawn."""
    _console(host, f"GRUB: {entry.title}: {entry.command_line}")
    line = host.folder / "cmdline"
    line.write_text(entry.command_line + "\n")
    clocks = {"boottime": time.CLOCK_BOOTTIME, "monotonic": time.CLOCK_MONOTONIC}
    zero = {clock: int(time.clock_gettime(number)) for clock, number in clocks.items()}
    kernelfs.reset(host.name, zero["monotonic"])
    fails = new_boot.failure(host, entry.command_line)
    _prepare_failure(host, fails)
    if host.rig is not None:
        from lab.power.rig import power_on  # every boot runs this program, and not every host has a rig

        said = power_on(host.rig, host.root, host.hw, entry)
    else:
        hw_state.switch_on(host.hw)
        said = list(boot_messages.start(os.uname().release, entry.command_line, "", 0))
    if hw_state.read(host.hw, hw_state.NVRAM).get("boot.hang", "0") != "0" or fails == "hang":
        (host.hw / "boot").write_text(HANGS)
        (host.hw / "boot").chmod(0o755)
    elif host.rig is None:
        (host.hw / "boot").unlink(missing_ok=True)
    booted(host.name)
    kernelfs.log(host.name, said)
    with host.boots.open("a") as boots:
        boots.write(f"{time.time():.2f}\n")
    if host.rig is not None:
        from lab.simulators.bmc import controller

        try:
            controller.start(host.name, host.hw, zero["monotonic"], CACHE)
        except HostError as failed:
            _console(host, str(failed))
    argv = _argv(host, line, zero)
    os.execvpe(argv[0], argv, _ENVIRONMENT)


def _prepare_failure(host: Host, fails: str) -> None:
    """Prepares how this boot fails, one of new_boot.KINDS, or that it does not."""
    for name in ("dies", "lost-root", "parameters", "hidden"):
        (host.hw / name).unlink(missing_ok=True)
    if fails == "panic":
        (host.hw / "dies").write_text("Fatal exception in interrupt\n")
    elif fails == "no-root":
        (host.hw / "lost-root").touch()
    elif fails == "no-network":
        network.unplug(host.name)
    elif fails == "other-address":
        network.move(host.name)
    elif fails == "no-gpus":
        gpus = range(int(hw_state.read(host.hw, hw_state.BOARD).get("gpus", 0)))
        hw_state.edit(host.hw, nvram={f"{hw_state.ONCE}gpu{number}.absent": 1 for number in gpus})
    if words := new_boot.parameters(fails):
        (host.hw / "parameters").write_text(" ".join(words) + "\n")
    if hidden := new_boot.hidden(fails):
        (host.hw / "hidden").write_text("".join(f"{seconds} {path}\n" for path, seconds in hidden.items()))


_ENVIRONMENT = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C.UTF-8",
    "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1",
    "SYSTEMD_NSPAWN_API_VFS_WRITABLE": "network",
}


def _argv(host: Host, line: Path, zero: dict[str, int]) -> list[str]:
    """Returns the systemd-nspawn command, in a time namespace that starts at zero.

    Its process namespace ends when the watcher does.
    """
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
