"""A virtual machine: its record, its disk over the release's image, and the QEMU process that runs it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import Literal

from lab.base.paths import SSH_KEY, STATE, TAG, folder, write
from lab.base.programs import VM_PROGRAMS, run
from lab.hardware import dmi
from lab.hardware.rigfile import describe
from lab.host import cgroups
from lab.vm import disk_layouts
from lab.vm.accelerator import accelerator
from rigwright.core.errors import HostError, UsageError

VMS = STATE / "vms"
MEMORY_MIB = 2560
START_S = 60.0
SOCKETS = Path("/run") / f"{TAG}-vm"
"""The folder of QMP sockets and process ids: a socket's path has at most 107 characters."""

LOGIN_KEY = SSH_KEY.with_name("vm_ed25519")
PROGRAMS = (*VM_PROGRAMS, "mmdebstrap", "ssh", "ssh-keygen", "unshare", "chroot")
"""The programs of this machine that virtual machines need."""

Firmware = Literal["bios", "uefi", "secureboot"]
FIRMWARES: tuple[Firmware, ...] = ("bios", "uefi", "secureboot")
OVMF = Path("/usr/share/OVMF")
CODE = {"uefi": "OVMF_CODE_4M.fd", "secureboot": "OVMF_CODE_4M.ms.fd"}
VARIABLES = {"uefi": "OVMF_VARS_4M.fd", "secureboot": "OVMF_VARS_4M.ms.fd"}


@dataclass(frozen=True)
class Machine:
    """One virtual machine. `image` is the read-only disk below its own; `port` reaches its sshd on the loopback
    address.

    `recording`: the folder of the recorded state that it started from; "" for one that booted.
    `layout`: how its disks are divided (disk_layouts.py).
    """

    name: str
    rig: str | None
    distro: str
    firmware: Firmware
    image: str
    port: int
    memory_mib: int = MEMORY_MIB
    recording: str = ""
    layout: str = disk_layouts.PLAIN

    @property
    def folder(self) -> Path:
        """The machine's folder, which only root can read: it has its ssh host keys."""
        return VMS / self.name

    @property
    def address(self) -> IPv4Address:
        """The loopback address: QEMU forwards its `port` to the machine's sshd."""
        return IPv4Address("127.0.0.1")

    @property
    def public_keys(self) -> list[str]:
        """The machine's public ssh host keys, "TYPE KEY"."""
        return [" ".join(path.read_text().split()[:2]) for path in sorted(self.folder.glob("ssh_host_*_key.pub"))]

    @property
    def key(self) -> Path:
        """The user's private key for the machine."""
        return LOGIN_KEY

    @property
    def disk(self) -> Path:
        """The machine's own disk: its changes over the image."""
        return self.folder / "disk.qcow2"

    @property
    def second_disk(self) -> Path | None:
        """The machine's own second disk, over the image's; None if the layout has one disk."""
        layout = disk_layouts.layout(self.layout)
        return self.folder / "disk-second.qcow2" if layout and layout.disks > 1 else None

    @property
    def variables(self) -> Path:
        """The firmware's variables (UEFI)."""
        return self.folder / "variables.fd"

    @property
    def console(self) -> Path:
        """The file with the output of the serial console of all boots."""
        return self.folder / "console.log"

    @property
    def keyboard(self) -> Path:
        """The socket of the serial console: what is written there is typed at the machine."""
        return SOCKETS / f"{self.name}.console"

    @property
    def qmp(self) -> Path:
        """The socket of QEMU's machine protocol."""
        return SOCKETS / f"{self.name}.qmp"

    @property
    def pid_file(self) -> Path:
        return SOCKETS / f"{self.name}.pid"


def load(name: str) -> Machine | None:
    """Returns the machine with that name; None when there is none, or when its creation is not complete."""
    path = VMS / f"{name}.json"
    return Machine(**json.loads(path.read_text())) if path.is_file() else None


def known() -> list[Machine]:
    """Returns every machine that was created and not removed, by name."""
    machines = (load(path.stem) for path in sorted(VMS.glob("*.json")))
    return [machine for machine in machines if machine is not None]


def save(machine: Machine) -> None:
    """Writes the machine's record. It is written last, so that an incomplete machine has no record."""
    write(VMS / f"{machine.name}.json", json.dumps(asdict(machine), indent=1) + "\n")


def free_port() -> int:
    """Returns a port of the loopback address that no program and no other machine of the lab uses."""
    taken = {machine.port for machine in known()}
    for _ in range(100):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port not in taken:
            return port
    raise HostError("lab", "no free port on 127.0.0.1", "one for the machine's sshd")


def create_disk(machine: Machine) -> None:
    """Makes the machine's folder, its empty disk over the image, and its firmware variables."""
    folder(VMS)
    run(["rm", "-rf", "--one-file-system", machine.folder], deadline=120)
    machine.folder.mkdir(mode=0o700)
    kind = "qcow2" if machine.image.endswith(".qcow2") else "raw"
    run(["qemu-img", "create", "-q", "-f", "qcow2", "-F", kind, "-b", machine.image, machine.disk])
    if machine.second_disk:
        below = disk_layouts.second(Path(machine.image))
        run(["qemu-img", "create", "-q", "-f", "qcow2", "-F", kind, "-b", below, machine.second_disk])
    if machine.firmware != "bios":
        source = OVMF / VARIABLES[machine.firmware]
        if machine.recording:
            source = Path(machine.recording) / "variables.fd"
        if not source.is_file():
            raise UsageError("lab.up", f"no {source}", "the firmware for UEFI", "sudo apt-get install ovmf")
        shutil.copy(source, machine.variables)


def arguments(machine: Machine, gpus: Sequence[str]) -> list[str]:
    """Returns QEMU's arguments for the machine; `gpus` are those of its simulated GPUs."""
    q35 = "q35,sata=off,smbus=off,vmport=off" + (",smm=on" if machine.firmware == "secureboot" else "")
    argv = ["qemu-system-x86_64", "-name", f"{TAG}-{machine.name}", "-machine", q35, *accelerator().options]
    argv += ["-nodefaults", "-display", "none", "-vga", "none"]
    if machine.firmware != "bios":
        code = f"if=pflash,format=raw,unit=0,readonly=on,file={OVMF / CODE[machine.firmware]}"
        argv += ["-drive", code, "-drive", f"if=pflash,format=raw,unit=1,file={machine.variables}"]
    if machine.firmware == "secureboot":
        argv += ["-global", "driver=cfi.pflash01,property=secure,value=on"]
    argv += ["-device", "intel-iommu,intremap=off", "-device", "virtio-rng-pci,addr=2", "-rtc", "base=utc"]
    argv += ["-drive", f"file={machine.disk},format=qcow2,if=none,id=disk,discard=unmap"]
    argv += ["-device", "virtio-blk-pci,drive=disk,id=vda,bootindex=0,addr=3"]
    if machine.second_disk:
        argv += ["-drive", f"file={machine.second_disk},format=qcow2,if=none,id=disk2,discard=unmap"]
        argv += ["-device", "virtio-blk-pci,drive=disk2,id=vdb,bootindex=1"]
    argv += [
        "-netdev",
        f"user,id=net,hostfwd=tcp:127.0.0.1:{machine.port}-:22",
        "-device",
        "virtio-net-pci,netdev=net,id=nic,romfile=,addr=4",
    ]
    argv += [
        "-chardev",
        f"socket,id=console,path={machine.keyboard},server=on,wait=off,logfile={machine.console},logappend=on",
        "-serial",
        "chardev:console",
    ]
    argv += ["-fw_cfg", f"name=opt/rigwright/identity,file={machine.folder / 'identity.tar'}"]
    argv += _smbios(machine)
    argv += gpus
    argv += ["-qmp", f"unix:{machine.qmp},server=on,wait=off", "-pidfile", str(machine.pid_file), "-daemonize"]
    return argv


def _smbios(machine: Machine) -> list[str]:
    """Returns the options for the names in the firmware's tables: those of the rig."""
    serial, identity = dmi.identity_of(machine.name, machine.rig or "")
    argv = ["-uuid", str(identity)]
    if machine.rig is None:
        return argv
    names = {key: value.replace(",", ",,") for key, value in describe(machine.rig)["dmi"].items()}
    maker, product, board = names["sys_vendor"], names["product_name"], names["board_name"]
    argv += ["-smbios", f"type=0,vendor=American Megatrends Inc.,version={names['bios_version']},date={dmi.DATE}"]
    argv += ["-smbios", f"type=1,manufacturer={maker},product={product},serial={serial},uuid={identity}"]
    argv += ["-smbios", f"type=2,manufacturer={maker},product={board},serial={serial}"]
    return argv


def running(name: str) -> bool:
    """Returns whether the machine's QEMU process runs."""
    path = SOCKETS / f"{name}.pid"
    text = path.read_text().strip() if path.exists() else ""
    return text.isdigit() and int(text) in cgroups.processes(name)


def start(machine: Machine, gpus: Sequence[str], environment: Mapping[str, str], incoming: str = "") -> None:
    """Switches the machine on; it boots from its disk, or goes on from the recorded state that the command `incoming`
    prints.

    Raises HostError with QEMU's own words when it does not start.
    """
    if running(machine.name):
        return
    cut(machine.name)
    SOCKETS.mkdir(mode=0o700, exist_ok=True)
    argv = [*cgroups.entering(machine.name), *arguments(machine, gpus)]
    argv += ["-incoming", f"exec:{incoming}"] if incoming else []
    env = {**os.environ, **environment}
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=START_S, env=env, check=False
    )
    if done.returncode != 0:
        last = " / ".join(done.stderr.strip().splitlines()[-3:])
        raise HostError(
            machine.name, f"QEMU: {last}", "a machine that starts", "correct the cause; then run the same command again"
        )


def cut(name: str) -> None:
    """Cuts the machine's power at this moment: what its kernel had not written to the disk is lost."""
    cgroups.kill(name)
    for kind in ("pid", "qmp", "console"):
        (SOCKETS / f"{name}.{kind}").unlink(missing_ok=True)


def delete(name: str) -> None:
    """Switches the machine off and removes everything of it."""
    cut(name)
    (VMS / f"{name}.json").unlink(missing_ok=True)
    run(["rm", "-rf", "--one-file-system", VMS / name], deadline=120)
    if SOCKETS.is_dir() and not any(SOCKETS.iterdir()):
        SOCKETS.rmdir()
