"""How a host comes back from a boot that fails, by kind of failure: a new kernel parameter is tried, and the boot
fails.

sudo .venv/bin/python -m lab.bench.trials           every kind on a simulated host; prints a table of
docs/guide/trial.md (half an hour)
sudo .venv/bin/python -m lab.bench.trials no-gpus   this kind only
sudo .venv/bin/python -m lab.bench.trials --vm --firmware uefi driver-panic
    on a virtual machine, with a real GRUB and kernel; there the parameter itself is what makes the boot fail
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lab.base.paths import CHECKOUT
from lab.cli import commands
from lab.faults import inject
from lab.host import login
from lab.power import switch
from lab.vm import disk_layouts, machine

NAME, RIG = "trials", "servbadge"
CONFIRM_S = 60
"""The seconds for which a trial runs unconfirmed on these hosts; 600 is the default."""
WORD = "pci=realloc"
"""The kernel parameter that is tried."""


@dataclass(frozen=True)
class Kind:
    """A kind of failure: the lab's fault, what brings the host back, and words of the report that name the failure."""

    fault: str
    back_by: str
    says: str


KINDS = {
    "wrong root": Kind("new-no-root", "initramfs: 30 s, then panic=60", "never reached systemd"),
    "panic": Kind("new-panic", "kernel: panic=60", "never reached systemd"),
    "no network": Kind("new-no-network", f"unit: {CONFIRM_S} s", "it had no network"),
    "no ssh": Kind("new-no-ssh", f"unit: {CONFIRM_S} s", "no ssh server ran"),
    "no GPUs": Kind("new-no-gpus", "rigwright, over ssh", "0 of 4 GPUs"),
    "emergency shell": Kind("new-emergency", f"unit: {CONFIRM_S} s", "it ended in an emergency shell"),
}

KEPT_OUT = {
    "no sudo": Kind("new-no-sudo", f"unit: {CONFIRM_S} s", "the controller could not log in: sudo wanted a password"),
    "key revoked": Kind(
        "new-no-key", f"unit: {CONFIRM_S} s", "the controller could not log in: ssh refused the key of"
    ),
    "other address": Kind("new-other-address", f"unit: {CONFIRM_S} s", "the controller could not log in: no answer"),
}
"""Boots that are well but for their user or address, on simulated hosts only."""


VM_NAME = "trials-vm"
VM_CONFIRM_S = 120
"""The seconds for which a trial runs unconfirmed on virtual machines, whose boot takes a minute or two under software
emulation."""
VM_DEADLINE_S = 3600.0


@dataclass(frozen=True)
class VmKind:
    """A kind of failure of a virtual machine: the kernel parameter that makes the boot fail, and words of the report.

    `unit`: a unit of systemd that the machine gets before; it runs only where the parameter names it. `confirm_s`:
    confirm_within_s.
    """

    parameter: str
    back_by: str
    says: str
    unit: str = ""
    confirm_s: int = VM_CONFIRM_S


_PANICS = """[Unit]
Description=A driver that panics
After=basic.target network.target
[Service]
ExecStart=/bin/sh -c 'echo 1 >/proc/sys/kernel/sysrq; echo c >/proc/sysrq-trigger'
"""
_NO_GPUS = """[Unit]
Description=All GPUs leave the bus
Before=ssh.service
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'for gpu in /sys/bus/pci/devices/*; do ! grep -q 0x10de $$gpu/vendor || echo 1 >$$gpu/remove; done'
"""
VM_KINDS = {
    "wrong root": VmKind(
        "root=UUID=00000000-0000-4000-8000-000000000000", "initramfs: 30 s, then panic=60", "never reached systemd"
    ),
    "panic": VmKind("init=/bin/true", "kernel: panic=60", "never reached systemd"),
    "driver panic": VmKind("systemd.wants=lab-panics.service", "kernel: panic=60", "systemd was started, and", _PANICS),
    "no network": VmKind("module_blacklist=virtio_net", f"unit: {VM_CONFIRM_S} s", "it had no network"),
    "no ssh": VmKind("systemd.mask=ssh.service", f"unit: {VM_CONFIRM_S} s", "no ssh server ran"),
    "no GPUs": VmKind(
        "systemd.wants=lab-no-gpus.service", "rigwright, over ssh", "0 of 4 GPUs on the PCI bus", _NO_GPUS, 900
    ),
    "emergency shell": VmKind(
        "systemd.unit=emergency.target", f"unit: {VM_CONFIRM_S} s", "it ended in an emergency shell"
    ),
}
"""On a machine whose firmware has a place for a panic's message, `driver panic` also has the kernel's own line in the
report."""

VM_PLAY = """- name: A new boot
  hosts: all
  tasks:
    - name: Kernel command line
      grub.cmdline:
    - name: Reboot
      reboot.if_needed: {with_driver: false}
"""


@dataclass(frozen=True)
class Ended:
    """How a trial ended: the document of the run, and the seconds from the reboot until the host was back and the error
    told."""

    document: dict[str, Any]
    seconds: float

    @property
    def found(self) -> str:
        """What the error says."""
        (host,) = self.document["hosts"].values()
        return str((host["error"] or {}).get("found", ""))

    @property
    def notes(self) -> list[str]:
        """What the run noted."""
        (host,) = self.document["hosts"].values()
        return [event["text"] for event in host["events"] if event["event"] == "note"]


def variables(folder: Path, name: str, *, with_rig: bool = True, **changed: Any) -> str:
    """Writes an inventory of the lab's host with changed variables (None removes one); returns its path.

    Without `with_rig` it has only what a connection needs.
    """
    given = CHECKOUT / ".lab" / "inventory"
    groups = yaml.safe_load((given / "hosts.yml").read_text())["all"]["children"]
    hosts = {**groups["plain"]["hosts"], **groups["gpu"]["hosts"]}
    own = given / "host_vars" / f"{name}.yml"
    values = {**hosts[name], **(yaml.safe_load(own.read_text()) if with_rig and own.is_file() else {}), **changed}
    values["ssh_known_hosts"] = str(CHECKOUT / ".lab" / "known_hosts")
    folder.mkdir(parents=True, exist_ok=True)
    written = {key: value for key, value in values.items() if value is not None}
    (folder / "hosts.yml").write_text(yaml.safe_dump({"gpu": {"hosts": {name: written}}}))
    return str(folder)


def provision(name: str, inventory: str, *more: str, deadline_s: float = 900) -> dict[str, Any]:
    """Runs `invoke provision --yes` on the host, with more words; returns its document. Exits when it prints none."""
    words = ["--host", name, "--inventory", inventory, "--yes", *more, "--json", "-"]
    done = subprocess.run(
        [sys.executable, "-m", "invoke", "provision", *words],
        cwd=CHECKOUT, env=os.environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=deadline_s,
        check=False,
    )  # fmt: skip
    if not done.stdout.startswith("{"):
        sys.exit(f"error provision: exit {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    if name not in found["hosts"]:
        sys.exit(f"error provision: {found['error']}")
    return found


def tried(name: str, kind: Kind, folder: Path, **changed: Any) -> Ended:
    """Injects the fault of a kind, provisions with a new kernel parameter, and heals the fault. Raises RuntimeError for
    another end."""
    values = {"kernel_cmdline": ["iommu=pt", WORD], "reboot": {"confirm_within_s": CONFIRM_S}, "p2p_wheels": "none"}
    inject.fault(name, kind.fault, "", print)
    try:
        document = provision(name, variables(folder, name, **{**values, **changed}))
    finally:
        inject.heal(name, kind.fault, print)
    return _ended(name, document, kind.says, kind.fault)


def command_line(name: str) -> str:
    """Returns /proc/cmdline of a host."""
    return login.ssh(machine.load(name) or switch.get(name), "cat /proc/cmdline", 60).stdout.strip()


def up_vm(name: str, firmware: str, layout: str, rig: str | None) -> None:
    """Boots a virtual machine for tried_on_vm. It is not prepared for a driver, and nouveau does not load: no kind
    needs one."""
    commands.up_vm(name=name, rig=rig, firmware=firmware, disk_layout=layout, with_driver=False, say=print)
    lines = ["echo 'blacklist nouveau' >/etc/modprobe.d/no-nouveau.conf"]
    for kind in VM_KINDS.values():
        if kind.unit:
            path = f"/etc/systemd/system/{kind.parameter.partition('=')[2]}"
            lines.append(f"printf %s {shlex.quote(kind.unit)} >{path}")
    # What update-grub makes in the running machine is the grub.cfg that a trial must leave.
    _in_vm(name, "\n".join((*lines, "systemctl daemon-reload", "update-grub 2>/dev/null", "sync")), 900)


def _in_vm(name: str, text: str, deadline_s: float = 300) -> str:
    """Runs a shell script as root in a virtual machine. Raises RuntimeError when it fails."""
    made = machine.load(name)
    if made is None:
        raise RuntimeError(f"no virtual machine {name}")
    done = login.ssh(made, f"sudo sh -ec {shlex.quote(text)}", deadline_s)
    if done.returncode != 0:
        raise RuntimeError(f"{name}: {done.stderr}")
    return done.stdout


def tried_on_vm(name: str, kind: VmKind, folder: Path) -> Ended:
    """Provisions a virtual machine with the kernel parameter of a kind, which fails. Raises RuntimeError for another
    end."""
    (folder / "play.yml").write_text(VM_PLAY)
    reboot = {"trial": True, "confirm_within_s": kind.confirm_s}
    inventory = variables(
        folder / "inventory", name, with_rig=False, p2p_wheels=None, kernel_cmdline=[kind.parameter], reboot=reboot
    )
    before = _in_vm(name, "sha256sum /boot/grub/grub.cfg")
    document = provision(name, inventory, "--playbook", str(folder / "play.yml"), deadline_s=VM_DEADLINE_S)
    ended = _ended(name, document, kind.says, kind.parameter)
    if kind.parameter in command_line(name).split() or _in_vm(name, "sha256sum /boot/grub/grub.cfg") != before:
        raise RuntimeError(f"{kind.parameter}: the machine is not as before: {command_line(name)}")
    return ended


def _ended(name: str, document: dict[str, Any], says: str, what: str) -> Ended:
    events = document["hosts"][name]["events"]
    began = [event["at_s"] for event in events if event["event"] == "note" and event["text"].startswith("rebooting")]
    ended = Ended(document, document["hosts"][name]["seconds"] - began[0] if began else 0.0)
    if not began or says not in ended.found:
        raise RuntimeError(f"{what}: {ended.found or 'no error'}, in place of '{says}'; {ended.notes}")
    return ended


def main(words: list[str]) -> None:
    """Makes a host, tries every kind of failure on it, and prints the table."""
    parser = argparse.ArgumentParser(prog="lab.bench.trials", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("kinds", nargs="*", help="kinds of failure, such as no-gpus; every kind without one")
    parser.add_argument("--vm", action="store_true", help="a virtual machine")
    parser.add_argument("--firmware", choices=machine.FIRMWARES, default="bios", help="of the virtual machine")
    parser.add_argument("--keep", action="store_true", help="use a virtual machine that is there, and leave it there")
    parser.add_argument("--disk", choices=(disk_layouts.PLAIN, *disk_layouts.LAYOUTS), default=disk_layouts.PLAIN)
    given = parser.parse_args(words)
    names: Iterable[str] = VM_KINDS if given.vm else (*KINDS, *KEPT_OUT)
    known = {name.lower().replace(" ", "-"): name for name in names}
    unknown = [kind for kind in given.kinds if kind not in known]
    if unknown:
        parser.error(f"no kind {unknown[0]!r}; there are {', '.join(known)}")
    chosen = [known[kind] for kind in given.kinds or known]
    with tempfile.TemporaryDirectory() as folder:
        rows = _on_vm(chosen, given, Path(folder)) if given.vm else _on_light_host(chosen, Path(folder))
    print("| failure | ended by | s | reported |\n|---|---|---|---|", *rows, sep="\n")


def _row(title: str, back_by: str, ended: Ended) -> str:
    row = f"| {title} | {back_by} | {ended.seconds:.0f} | {ended.found.partition(': ')[2]} |"
    print(row, *ended.notes, sep="\n  ", flush=True)
    return row


def _on_vm(chosen: list[str], given: argparse.Namespace, folder: Path) -> list[str]:
    if not given.keep:
        commands.down(name=VM_NAME, say=print)
    try:
        up_vm(VM_NAME, given.firmware, given.disk, RIG if "no GPUs" in chosen else None)
        rows = []
        for title in chosen:
            kind = VM_KINDS[title]
            rows.append(_row(title, kind.back_by, tried_on_vm(VM_NAME, kind, folder)))
        return rows
    finally:
        if not given.keep:
            commands.down(name=VM_NAME, say=print)


def _on_light_host(chosen: list[str], folder: Path) -> list[str]:
    commands.down(name=NAME, say=print)
    commands.up(name=NAME, rig=RIG, say=print)
    try:
        made = provision(NAME, variables(folder, NAME, p2p_wheels="none"))
        if made["hosts"][NAME]["error"]:
            sys.exit(f"error provision: {made['hosts'][NAME]['error']}")
        rows, kinds = [], {**KINDS, **KEPT_OUT}
        for title in chosen:
            rows.append(_row(title, kinds[title].back_by, tried(NAME, kinds[title], folder)))
            line = command_line(NAME)
            if WORD in line or "iommu=pt" not in line:
                sys.exit(f"error {title}: the host runs with {line}")
        return rows
    finally:
        commands.down(name=NAME, say=print)


if __name__ == "__main__":
    main(sys.argv[1:])
