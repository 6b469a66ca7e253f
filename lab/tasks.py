"""Commands for simulated hosts."""

from __future__ import annotations

from rigwright.cli.command import command
from rigwright.errors import UsageError

_FAULT = {"host": "a host of the lab (lab.status)", "fault": "a fault of docs/lab-faults.md"}


@command(
    help={
        "name": "the host's name (default: the rig's)",
        "rig": "a file of lab/rigs/ (default: no GPUs)",
        "count": "so many hosts, NAME1 to NAMEcount",
        "distro": "ubuntu2204 (default), ubuntu2404 or debian12",
    }
)
def up(name: str = "", rig: str = "", count: str = "", distro: str = "") -> None:
    """Boot simulated hosts on this machine (root): real systemd, sshd, apt, GRUB; with --rig simulated GPUs."""
    from lab import commands

    if count and not count.isdecimal():
        raise UsageError("lab.up", f"--count {count}", "a number of hosts", "invoke lab.up --help")
    number = int(count) if count else None
    commands.up(name=name or None, rig=rig or None, count=number, distro=distro or None, say=print)


@command(help={"name": "one host (default: all of them)"})
def down(name: str = "") -> None:
    """Stop simulated hosts and remove all that they left on this machine (root)."""
    from lab import commands

    commands.down(name=name or None, say=print)


@command()
def status() -> None:
    """The simulated hosts: rig, address, state, boots, driver loaded and installed (for root), faults."""
    from lab import commands

    for one in commands.status():
        print(one)


@command(help={**_FAULT, "gpu": "the GPU, as the rig counts them (default: 0)"})
def fault(host: str = "", fault: str = "", gpu: str = "") -> None:
    """Break a simulated host on purpose, while it runs (root)."""
    from lab import fault as faults

    faults.fault(host, fault, gpu, print)


@command(help={**_FAULT, "fault": "one fault (default: all that it has)"})
def heal(host: str = "", fault: str = "") -> None:
    """Take faults out of a simulated host again (root)."""
    from lab import fault as faults

    faults.heal(host, fault, print)


@command()
def ssh_config() -> None:
    """An ssh_config for `ssh -F FILE NAME` to every simulated host."""
    from lab import commands

    print(commands.ssh_config(), end="")
