"""The commands of the lab, which only a checkout has."""

from __future__ import annotations

from rigwright.cli.options import CommandOptions, option
from rigwright.core.errors import UsageError


class UpOptions(CommandOptions, command="lab.up", function="lab.cli.tasks:up"):
    """Boot simulated hosts on this machine (root): real systemd, sshd, apt, GRUB; with --rig simulated GPUs.

    sudo .venv/bin/invoke lab.up --rig servbadge
    sudo .venv/bin/invoke lab.up --name node --count 4 --distro debian12
    sudo .venv/bin/invoke lab.up --name rack --count 63 --copy-of servbadge
    sudo .venv/bin/invoke lab.up --vm --rig servbadge --firmware secureboot   # a virtual machine
    """

    name: str = option("the name of the host (default: that of the rig)")
    rig: str = option("a file of lab/hardware/rigs/ (default: no GPUs)")
    count: str = option("boot this many hosts, NAME1 to NAMEcount")
    distro: str = option("ubuntu2204 (default), ubuntu2404 or debian12; with --vm debian12 (default) or debian13")
    copy_of: str = option("start new hosts with a copy of this host's disk, and identifiers of their own")
    vm: bool = option("a virtual machine: a real kernel, GRUB, initramfs and disk, under QEMU", False)
    warm: bool = option("start a new virtual machine from a recorded state: seconds instead of a boot", False)
    firmware: str = option("of a virtual machine: bios (default), uefi or secureboot")
    disk: str = option("of a virtual machine: plain (default), boot, lvm, btrfs or raid1")


class DownOptions(CommandOptions, command="lab.down", function="lab.cli.tasks:down"):
    """Stop simulated hosts and remove everything they left on this machine (root)."""

    name: str = option("one host (default: all)")


class StatusOptions(CommandOptions, command="lab.status", function="lab.cli.tasks:status"):
    """List the simulated hosts: rig, address, state, boots, driver loaded and installed (for root), faults."""


class FaultOptions(CommandOptions, command="lab.fault", function="lab.cli.tasks:fault"):
    """Inject a fault into a running simulated host (root)."""

    host: str = option("a host of the lab (lab.status)")
    fault: str = option("a fault of docs/reference/lab-faults.md")
    gpu: str = option("the number of the GPU in the rig (default: 0)")


class HealOptions(CommandOptions, command="lab.heal", function="lab.cli.tasks:heal"):
    """Remove faults from a simulated host (root)."""

    host: str = option("a host of the lab (lab.status)")
    fault: str = option("one fault (default: all that it has)")


class SshConfigOptions(CommandOptions, command="lab.ssh-config", function="lab.cli.tasks:ssh_config"):
    """Print an ssh_config for `ssh -F FILE NAME` to every simulated host."""


COMMANDS: tuple[type[CommandOptions], ...] = (
    UpOptions,
    DownOptions,
    StatusOptions,
    FaultOptions,
    HealOptions,
    SshConfigOptions,
)


def up(options: UpOptions) -> None:
    from lab.cli import commands

    if options.count and not options.count.isdecimal():
        raise UsageError("lab.up", f"--count {options.count}", "a number of hosts", "invoke lab.up --help")
    number = int(options.count) if options.count else None
    if options.vm and options.copy_of:
        raise UsageError("lab.up", f"--copy-of {options.copy_of}", "no --vm: only light hosts can be copied")
    if options.vm:
        commands.up_vm(
            name=options.name or None,
            rig=options.rig or None,
            count=number,
            distro=options.distro or None,
            firmware=options.firmware or None,
            disk_layout=options.disk or None,
            warm=options.warm,
            say=print,
        )
        return
    if options.firmware:
        raise UsageError("lab.up", f"--firmware {options.firmware}", "--vm before it: light hosts have no firmware")
    if options.disk:
        raise UsageError("lab.up", f"--disk {options.disk}", "--vm before it: light hosts have no disk of their own")
    commands.up(
        name=options.name or None,
        rig=options.rig or None,
        count=number,
        distro=options.distro or None,
        copy_of=options.copy_of or None,
        say=print,
    )


def down(options: DownOptions) -> None:
    from lab.cli import commands

    commands.down(name=options.name or None, say=print)


def status(_options: StatusOptions) -> None:
    from lab.cli import commands

    for line in commands.status():
        print(line)


def fault(options: FaultOptions) -> None:
    from lab.faults import inject
    from lab.vm import inject as vm_inject, machine

    one = machine.load(options.host)
    if one is None:
        inject.fault(options.host, options.fault, options.gpu, print)
    else:
        vm_inject.fault(one, options.fault, options.gpu, print)


def heal(options: HealOptions) -> None:
    from lab.faults import inject
    from lab.vm import inject as vm_inject, machine

    one = machine.load(options.host)
    if one is None:
        inject.heal(options.host, options.fault, print)
    else:
        vm_inject.heal(one, options.fault, print)


def ssh_config(_options: SshConfigOptions) -> None:
    from lab.cli import commands

    print(commands.ssh_config(), end="")
