"""The layouts of virtual machines' disks: their partition tables as sfdisk makes them, and their shell files."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from lab.vm import disk_layouts, image, machine
from lab.vm.disk_layouts import LAYOUTS, DiskLayout
from lab.vm.machine import Machine
from rigwright.core.errors import UsageError

EACH = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=lambda layout: layout.name)


@EACH
def test_sfdisk_makes_the_partitions(layout: DiskLayout, tmp_path: Path) -> None:
    """The table of the image is what sfdisk reads back: types, sizes, and no overlap; the last partition ends with the
    disk."""
    disk = tmp_path / "disk"
    image._partition(disk, layout.table())
    said = subprocess.run(["sfdisk", "--json", disk], capture_output=True, text=True, check=True).stdout
    table = json.loads(said)["partitiontable"]
    mib = (1 << 20) // table["sectorsize"]
    found = [(one["type"], one["start"] / mib, one["size"] / mib) for one in table["partitions"]]
    assert [kind for kind, *_ in found] == [one.type for one in layout.partitions]
    assert all(start % 1 == 0 for _, start, _ in found)
    assert [size for *_, size in found[:-1]] == [one.size_mib for one in layout.partitions[:-1]]
    ends = [start + size for _, start, size in found]
    assert all(end <= start for end, (_, start, _) in zip(ends, found[1:], strict=False))
    assert (disk_layouts.DISK_GIB << 10) - 2 <= ends[-1] <= disk_layouts.DISK_GIB << 10


@EACH
def test_the_shell_file_has_what_the_first_boot_calls(layout: DiskLayout) -> None:
    """It uses the last partition, and it names no partition that the layout lacks."""
    script = f"{layout.script}\nfor name in prepare entries finish; do type $name; done"
    said = subprocess.run(["sh", "-euc", script], capture_output=True, text=True, check=False)
    assert (said.returncode, said.stderr, said.stdout.count("function")) == (0, "", 3)
    used = set(re.findall(r"/dev/vd([ab])(\d)", layout.script))
    assert ("a", str(len(layout.partitions))) in used
    assert {disk for disk, _ in used} == {"a", "b"}.intersection("ab"[: layout.disks])
    assert all(3 <= int(number) <= len(layout.partitions) for _, number in used)


@pytest.mark.parametrize("name", [None, "plain", *LAYOUTS])
def test_a_machine_has_the_disks_of_its_layout(name: str | None) -> None:
    """QEMU gets a second disk only for the mirror, and boots from the first."""
    found = disk_layouts.layout(name)
    one = Machine("vm1", None, "debian12", "bios", "/images/a.raw", 2222, layout=found.name if found else "plain")
    drives = [word for word in machine.arguments(one, []) if word.startswith("file=") and "format=qcow2" in word]
    assert len(drives) == (2 if name == "raid1" else 1)
    assert str(one.disk) in drives[0]
    assert disk_layouts.second(Path(one.image)) == Path("/images/a-second.raw")


def test_the_first_boot_is_shell_and_an_unknown_layout_is_refused() -> None:
    done = subprocess.run(["sh", "-n", disk_layouts.FILES / "first-boot"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    with pytest.raises(UsageError) as refused:
        disk_layouts.layout("zfs")
    assert (refused.value.found, refused.value.expected) == ("--disk zfs", "plain or boot or lvm or btrfs or raid1")
