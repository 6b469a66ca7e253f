"""Secure Boot for real, in a virtual machine with OVMF's and Microsoft's keys, Debian's shim, MokManager, mokutil and
kernel.

Refused, staged, confirmed at the console, trusted by the kernel, and a module of NVIDIA's signed with that key loads.
Only with -m vm.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.cli import commands
from lab.host import login
from lab.vm import machine, mok_manager
from lab.vm.commands import boots
from lab.vm.console import Console
from tests.end_to_end import rw

pytestmark = [pytest.mark.vm, pytest.mark.timeout(5400), pytest.mark.usefixtures("as_root")]
NAME, PASSWORD = "t-vm-mok", "Tulip2026"
PLAY = """
- name: Secure Boot
  hosts: all
  tasks:
    - name: Preflight
      preflight.passed:
    - name: Secure Boot key enrolled
      mok.enrolled: {password: "{{ mok_password | default('') }}"}
"""
SIGN = """
set -e
module=$(find /usr/lib/rigwright-lab/modules -name 'nvidia*.ko' | grep -E '/nvidia(-current)?[.]ko$' | head -n 1)
cp "$module" /root/signed.ko
insmod "$module" 2>&1 && echo "loaded without a signature" || :
apt-get -qq update
DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o Dpkg::Use-Pty=0 --no-install-recommends install linux-kbuild-6.1
/usr/lib/linux-kbuild-6.1/scripts/sign-file sha256 /var/lib/dkms/mok.key /var/lib/dkms/mok.pub /root/signed.ko
insmod /root/signed.ko 2>&1 || :
dmesg | grep -e 'NVRM: loading' -e 'is rejected'
"""


@pytest.fixture(scope="module")
def locked() -> Iterator[machine.Machine]:
    """Yields a machine with Secure Boot."""
    commands.down(name=NAME, say=print)
    commands.up_vm(name=NAME, rig="servbadge", firmware="secureboot", say=print)
    made = machine.load(NAME)
    assert made is not None
    yield made
    commands.down(name=NAME, say=print)


def provision(folder: Path, **wanted: str) -> subprocess.CompletedProcess[str]:
    """Runs the two steps of provision.yml that concern Secure Boot."""
    (folder / "play.yml").write_text(PLAY)
    where = rw.inventory(folder / "inventory", **{NAME: {"driver": {"branch": "535"}, **wanted}})
    return rw.invoke(
        "provision", "--host", NAME, "--inventory", where, "--playbook", str(folder / "play.yml"), "--yes", deadline=600
    )


def asked(made: machine.Machine, command: str, deadline: float = 120) -> str:
    """Returns what a command in the machine prints."""
    done = login.ssh(made, command, deadline)
    return done.stdout + done.stderr


def test_from_the_refusal_to_the_enrolled_key(locked: machine.Machine, tmp_path: Path) -> None:
    it_is_refused_before_anything_is_installed(locked, tmp_path)
    the_key_is_staged_and_the_console_step_is_told(locked, tmp_path)
    at_the_console_the_key_is_enrolled_and_a_module_of_nvidias_loads(locked, tmp_path)


def it_is_refused_before_anything_is_installed(locked: machine.Machine, tmp_path: Path) -> None:
    assert "SecureBoot enabled" in asked(locked, "mokutil --sb-state")
    done = provision(tmp_path)
    assert (done.returncode, "it refuses a driver module that is built on the host" in done.stdout) == (1, True)


def the_key_is_staged_and_the_console_step_is_told(locked: machine.Machine, tmp_path: Path) -> None:
    done = provision(tmp_path, secure_boot="enrol", mok_password=PASSWORD)
    assert done.returncode == 1, done.stdout
    assert "is staged, and no one has confirmed it at the console yet" in " ".join(done.stdout.split())
    assert PASSWORD not in done.stdout
    assert "already in the enrollment request" in asked(locked, "sudo mokutil --test-key /var/lib/dkms/mok.pub")


def at_the_console_the_key_is_enrolled_and_a_module_of_nvidias_loads(locked: machine.Machine, tmp_path: Path) -> None:
    console, before = Console(locked.console), boots(locked)
    asked(locked, "sudo systemctl reboot", 30)
    mok_manager.confirm(locked, console, PASSWORD)
    login.wait(locked, 900)
    assert boots(locked) == before + 1
    assert "integrity: Loaded X.509 cert 'DKMS module signing key" in asked(locked, "sudo dmesg")
    done = provision(tmp_path, secure_boot="enrol", mok_password=PASSWORD)
    assert (done.returncode, "Nothing to change" in done.stdout) == (0, True), done.stdout
    said = asked(locked, f"sudo sh -s <<'END' 2>&1\n{SIGN}\nEND", 600)
    assert "Key was rejected by service" in said, said
    assert "NVRM: loading NVIDIA UNIX" in said, said
    assert "loaded without a signature" not in said
