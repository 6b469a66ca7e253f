"""NVIDIA's real driver in a virtual machine: packages of Debian's archive, dkms, signature, boot, and what then runs
over it.

One machine is provisioned for all of these tests. Only with -m vm: an hour under software emulation.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.cli import commands
from lab.host import login
from lab.vm import machine
from lab.vm.commands import boots
from tests.end_to_end import rw
from tests.end_to_end.plugs import state
from tests.end_to_end.way_back import STAYS
from tests.vm.recorded import DRIVER

pytestmark = [pytest.mark.vm, pytest.mark.timeout(1200), pytest.mark.usefixtures("as_root")]
NAME, RIG = DRIVER.name, "servbadge"
PROVISION_S = 5400.0
SHORT_S = 900.0
FIRST_BOOT = re.compile(r"^systemd-(fsck-root|machine-id-commit)\.service |No such file or directory$")
"""What only the first boot of a machine runs, and what `find` says of folders that are not there yet."""


def asked(command: str, deadline: float = 120) -> str:
    """Returns what a command in the machine prints."""
    made = machine.load(NAME)
    assert made is not None
    done = login.ssh(made, command, deadline)
    return done.stdout + done.stderr


def _root(script: str) -> str:
    """Returns what a script prints that runs as root in the machine."""
    word = base64.b64encode(script.encode()).decode()
    return asked(f"echo {word} | base64 -d | sudo sh", 1800)


@pytest.fixture(scope="module")
def host() -> Iterator[str]:
    """Yields the name of a fresh machine with the rig's GPUs and no driver."""
    commands.down(name=NAME, say=print)
    commands.up_vm(name=NAME, rig=RIG, say=print)
    yield NAME
    commands.down(name=NAME, say=print)


@pytest.fixture(scope="module")
def bare(host: str) -> state.State:  # noqa: ARG001
    """Returns what the machine is before the first command."""
    _root("update-grub 2>/dev/null; apt-get -qq update; sync")
    return state.read(_root)


@pytest.fixture(scope="module")
def provisioned(host: str, bare: state.State, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:  # noqa: ARG001
    """Returns the document of a provision of the fresh machine, which reboots once."""
    made = machine.load(host)
    assert made is not None
    before = boots(made)
    path = tmp_path_factory.mktemp("provision") / "run.json"
    done = rw.invoke("provision", "--host", host, "--yes", "--json", str(path), deadline=PROVISION_S)
    print(done.stdout)
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    assert done.returncode == 0, rw.not_as_wanted(found)
    assert boots(made) == before + 1
    return found


def test_provision_installs_debians_own_driver(host: str, provisioned: dict[str, Any]) -> None:
    installed = [one for one in provisioned["hosts"][host]["changes"] if one["step"] == "Driver installed"]
    assert [one["done"] for one in installed] == [True]
    assert "535." in asked("dpkg-query -W -f '${Version} ${Status}' nvidia-kernel-dkms")
    assert "nvidia-kernel-dkms" in asked("apt-mark showhold").split()


def test_dkms_has_built_signed_and_installed_the_modules(provisioned: dict[str, Any]) -> None:  # noqa: ARG001
    assert ": installed" in asked("sudo dkms status -k $(uname -r)")
    assert asked("/usr/sbin/modinfo -F signer nvidia-current").strip() == "DKMS module signing key"
    assert "the modules are copied from" in asked("cat /var/lib/dkms/nvidia-current/*/*/x86_64/log/make.log")


def test_the_next_boot_has_loaded_the_real_module(provisioned: dict[str, Any]) -> None:  # noqa: ARG001
    assert "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535." in asked("cat /proc/driver/nvidia/version")
    assert asked("cat /proc/driver/nvidia/gpus/*/information").count("Tesla V100-SXM2-16GB") == 4
    assert asked("lspci -k -d 10de:").count("Kernel driver in use: nvidia") == 4
    assert "nouveau" not in asked("cat /proc/modules")
    assert "iommu=pt" in asked("cat /proc/cmdline")


def test_nvidias_own_nvidia_smi_shows_the_rigs_gpus_with_the_limits(provisioned: dict[str, Any]) -> None:  # noqa: ARG001
    shown = asked("nvidia-smi --query-gpu=name,persistence_mode,power.limit --format=csv,noheader")
    assert shown.splitlines() == ["Tesla V100-SXM2-16GB, Enabled, 200.00 W"] * 4
    assert "dpkg -S" not in asked("dpkg --verify nvidia-smi && echo unchanged")


def test_a_second_provision_changes_nothing(host: str, provisioned: dict[str, Any], tmp_path: Path) -> None:  # noqa: ARG001
    path = tmp_path / "run.json"
    done = rw.invoke("provision", "--host", host, "--yes", "--json", str(path), deadline=SHORT_S)
    found = json.loads(path.read_text(encoding="utf-8"))
    assert done.returncode == 0, rw.not_as_wanted(found)
    assert found["hosts"][host]["changes"] == []


def test_the_machine_is_recorded_and_a_rollback_makes_the_bare_machine_of_it(
    host: str,
    bare: state.State,
    provisioned: dict[str, Any],  # noqa: ARG001
    tmp_path: Path,
) -> None:
    """Other tests start from the recording, and so does this machine after the rollback."""
    commands.record_vm(host, DRIVER.state, print)
    assert DRIVER.is_there()
    DRIVER.up()
    try:
        is_rolled_back(host, bare, tmp_path)
    finally:
        DRIVER.up()


def is_rolled_back(host: str, bare: state.State, folder: Path) -> None:
    """Runs `rollback`, and proves that the machine is the bare one again."""
    path = folder / "run.json"
    done = rw.invoke("rollback", "--host", host, "--yes", "--json", str(path), deadline=PROVISION_S)
    print(done.stdout)
    found = json.loads(path.read_text(encoding="utf-8"))
    assert done.returncode == 0, rw.not_as_wanted(found)
    assert (
        asked("cat /proc/driver/nvidia/version 2>&1; dpkg -l 'nvidia-kernel-*' | grep ^ii").count("No such file") == 1
    )
    found = state.differences(state.read(_root), bare)
    wrong = [each for each in found if not (STAYS.search(each.line) or FIRST_BOOT.search(each.line))]
    assert not wrong, "\n".join(map(str, wrong[:40]))
