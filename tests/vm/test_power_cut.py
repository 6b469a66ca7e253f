"""A virtual machine loses its power in the middle of update-grub: what its kernel had not written to the disk is lost.

The same command then makes the host what it should be. Only with -m vm: a quarter of an hour under software emulation.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.bench import trials
from lab.cli import commands
from lab.host import login
from lab.vm import machine
from lab.vm.hardware import power_on
from tests.end_to_end import rw
from tests.paths import ROOT

pytestmark = [pytest.mark.vm, pytest.mark.timeout(5400), pytest.mark.usefixtures("as_root")]
NAME, WORD = "t-vm-cut", "pcie_aspm=off"
BOOT_S = 900.0
RUNS = "until pgrep -f '/usr/sbin/[g]rub-mkconfig' >/dev/null; do sleep 0.2; done"


@pytest.fixture(scope="module")
def host() -> Iterator[machine.Machine]:
    """Yields a machine without GPUs."""
    commands.down(name=NAME, say=print)
    (made,) = commands.up_vm(name=NAME, with_driver=False, say=print)
    yield made
    commands.down(name=NAME, say=print)


def test_the_same_command_goes_on_after_it(host: machine.Machine, tmp_path: Path) -> None:
    (tmp_path / "play.yml").write_text(trials.VM_PLAY)
    inventory = trials.variables(tmp_path / "inventory", NAME, with_rig=False, kernel_cmdline=[WORD])
    words = ("--host", NAME, "--inventory", inventory, "--playbook", str(tmp_path / "play.yml"), "--yes")
    with subprocess.Popen(
        rw.argv("provision", *words), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT
    ) as run:  # fmt: skip
        assert login.ssh(host, RUNS, 1200).returncode == 0
        machine.cut(NAME)
        power_on(host, print)
        said = run.communicate(timeout=1200)[0].decode()
    print(said)
    assert run.returncode != 0
    login.wait(host, BOOT_S)
    assert WORD not in trials.command_line(NAME).split(), "what ran before boots"
    document = trials.provision(
        NAME, inventory, "--playbook", str(tmp_path / "play.yml"), deadline_s=trials.VM_DEADLINE_S
    )
    found = document["hosts"][NAME]
    assert found["error"] is None, found["error"]
    assert "the new boot is healthy; it is permanent now" in [event.get("text") for event in found["events"]]
    assert WORD in trials.command_line(NAME).split()
    left = "ls -d /boot/grub/custom.cfg /boot/grub/*.new /boot/initrd-rigwright-fallback /var/lib/rigwright/trial"
    assert login.ssh(host, f"sudo {left}", 60).stdout == ""
