"""Virtual machines with every layout of disks: they boot, and the plan says whether a boot can be tried once there, or
why not.

Only with -m vm: five minutes for each under software emulation, and three to six more for the image of a layout, once.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.bench import trials
from lab.cli import commands
from lab.host import login
from lab.vm.disk_layouts import LAYOUTS, PLAIN
from tests.end_to_end import rw

pytestmark = [pytest.mark.vm, pytest.mark.timeout(3600), pytest.mark.usefixtures("as_root")]
NAME = "t-vm-disks"
SAYS = {
    PLAIN: "the new boot is tried once",
    "boot": "the new boot is tried once",
    "lvm": "the new boot cannot be tried once: /boot/grub is on LVM, which GRUB cannot write to",
    "btrfs": "the new boot cannot be tried once: /boot/grub is on btrfs, which GRUB cannot write to",
    "raid1": "the new boot cannot be tried once: /boot/grub is on software RAID, which GRUB cannot write to",
}


@pytest.mark.parametrize("layout", [PLAIN, *LAYOUTS])
def test_it_boots_and_the_plan_says_whether_a_boot_can_be_tried(layout: str, tmp_path: Path) -> None:
    commands.down(name=NAME, say=print)
    (made,) = commands.up_vm(name=NAME, disk_layout=layout, with_driver=False, say=print)
    print(
        login.ssh(
            made, "lsblk -o NAME,TYPE,FSTYPE,MOUNTPOINTS; sudo grub-probe --target=abstraction /boot/grub", 60
        ).stdout
    )
    (tmp_path / "play.yml").write_text(trials.VM_PLAY)
    inventory = trials.variables(tmp_path / "inventory", NAME, with_rig=False, kernel_cmdline=["pcie_aspm=off"])
    words = ("--host", NAME, "--inventory", inventory, "--playbook", str(tmp_path / "play.yml"))
    done = rw.invoke("plan", *words, deadline=900)
    print(done.stdout)
    assert SAYS[layout] in " ".join(done.stdout.split())
    commands.down(name=NAME, say=print)
