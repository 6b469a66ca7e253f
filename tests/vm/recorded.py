"""The recorded virtual machines of tests/vm/test_recorded.py: how each is made, and which of them this machine has.

`sudo scripts/test --vm` makes the recordings; they are in /var/cache/rigwright-lab, which every checkout uses.
"""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass

from lab.cli import commands
from lab.vm import commands as vm, recording
from lab.vm.machine import Firmware, Machine
from rigwright.core import features
from tests.paths import ROOT


def _driver_installed() -> str:
    """The state of a machine that this checkout provisioned: the programs and templates that provision puts on a host
    are a part of it."""
    digest = hashlib.sha256()
    for file in sorted([*features.host_programs().values(), *(ROOT / "templates").rglob("*.j2")]):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return f"driver-installed-{digest.hexdigest()[:12]}"


@dataclass(frozen=True)
class Recorded:
    """A machine with the rig servbadge. `state`: what was done on it before it was recorded."""

    name: str
    firmware: Firmware
    memory_mib: int
    state: str = recording.FRESH

    def machine(self) -> Machine:
        """Returns the machine as it would be made."""
        return vm.described(self.name, "servbadge", vm.kind("debian12", self.firmware, memory_mib=self.memory_mib))

    def is_there(self) -> bool:
        """Returns whether this machine has the recording, for its QEMU and this checkout's recipe."""
        return shutil.which("qemu-system-x86_64") is not None and recording.place(self.machine(), self.state).is_dir()

    def up(self) -> None:
        """Starts the machine from its recording."""
        commands.down(name=self.name, say=print)
        commands.resume_vm(self.machine(), self.state, print)


SMALL = Recorded("t-vm-small", "bios", 1536)
"""With 1536 MiB of memory, of which /run gets a tenth."""
SIGNED = Recorded("t-vm-signed", "secureboot", 2560)
DRIVER = Recorded("t-vm-driver", "bios", 2560, _driver_installed())
"""Provisioned with NVIDIA's real driver by test_real_driver.py, and recorded there."""
MACHINES = (SMALL, SIGNED, DRIVER)


def missing() -> tuple[str, ...]:
    """Returns the names of the machines without a recording."""
    return tuple(one.name for one in MACHINES if not one.is_there())
