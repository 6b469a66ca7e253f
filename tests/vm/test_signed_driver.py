"""Debian 13 with Secure Boot: one fresh machine from nothing to the real driver 550, which the kernel loads because its
key is enrolled.

One machine goes through it: staged and refused, confirmed at the console, provisioned, provisioned again. Only with -m
vm.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.cli import commands
from lab.host import login
from lab.vm import machine, mok_manager
from lab.vm.commands import boots
from lab.vm.console import Console
from tests.end_to_end import rw

pytestmark = [pytest.mark.vm, pytest.mark.timeout(14400), pytest.mark.usefixtures("as_root")]
NAME, PASSWORD = "t-vm-signed-13", "Tulip2026"
WANTED = {"driver": {"branch": "550"}, "secure_boot": "enrol", "mok_password": PASSWORD}
PROVISION_S = 5400.0
BOOT_S = 900.0


def asked(made: machine.Machine, command: str) -> str:
    """Returns what a command in the machine prints."""
    done = login.ssh(made, command, 120)
    return done.stdout + done.stderr


def provision(folder: Path) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """Runs provision.yml; returns the process and its document."""
    where, path = rw.inventory(folder / "inventory", **{NAME: WANTED}), folder / "run.json"
    words = ("--host", NAME, "--inventory", where, "--yes", "--json", str(path))
    done = rw.invoke("provision", *words, deadline=PROVISION_S)
    print(done.stdout)
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return done, found


@pytest.fixture(scope="module")
def locked() -> Iterator[machine.Machine]:
    """Yields a fresh machine of Debian 13 with Secure Boot and four GPUs, without a driver."""
    commands.down(name=NAME, say=print)
    commands.up_vm(name=NAME, rig="servbadge", distro="debian13", firmware="secureboot", say=print)
    made = machine.load(NAME)
    assert made is not None
    yield made
    commands.down(name=NAME, say=print)


def test_from_the_staged_key_to_the_second_provision(locked: machine.Machine, tmp_path: Path) -> None:
    the_key_is_staged_before_a_driver_is_installed(locked, tmp_path)
    after_the_console_one_provision_installs_signs_loads_and_proves(locked, tmp_path)
    a_second_provision_changes_nothing(locked, tmp_path)


def the_key_is_staged_before_a_driver_is_installed(locked: machine.Machine, tmp_path: Path) -> None:
    assert "SecureBoot enabled" in asked(locked, "mokutil --sb-state")
    done, _found = provision(tmp_path)
    assert done.returncode == 1, done.stdout
    assert "no one has confirmed it at the console yet" in " ".join(done.stdout.split())
    assert PASSWORD not in done.stdout
    assert "nvidia-kernel-dkms" not in asked(locked, "dpkg-query -W -f '${Package} '")


def after_the_console_one_provision_installs_signs_loads_and_proves(locked: machine.Machine, tmp_path: Path) -> None:
    console, before = Console(locked.console), boots(locked)
    asked(locked, "sudo systemctl reboot")
    mok_manager.confirm(locked, console, PASSWORD)
    login.wait(locked, BOOT_S)
    assert boots(locked) == before + 1
    done, found = provision(tmp_path)
    assert done.returncode == 0, rw.not_as_wanted(found)
    assert boots(locked) == before + 2
    assert "SecureBoot enabled" in asked(locked, "mokutil --sb-state")
    assert "550." in asked(locked, "dpkg-query -W -f '${Version} ${Status}' nvidia-kernel-dkms")
    assert asked(locked, "/usr/sbin/modinfo -F signer nvidia-current").strip() == "DKMS module signing key"
    assert "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550." in asked(locked, "cat /proc/driver/nvidia/version")
    assert asked(locked, "lspci -k -d 10de:").count("Kernel driver in use: nvidia") == 4


def a_second_provision_changes_nothing(locked: machine.Machine, tmp_path: Path) -> None:  # noqa: ARG001
    done, found = provision(tmp_path)
    assert done.returncode == 0, rw.not_as_wanted(found)
    assert found["hosts"][NAME]["changes"] == []
