"""Virtual machines: QEMU's arguments, names of recordings, consoles, flags and faults. Boots nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.cli import commands as lab_commands
from lab.host.active_faults import Standing
from lab.vm import commands, inject, machine
from lab.vm.console import Console, boots
from lab.vm.machine import Machine
from rigwright.core.errors import HostError, UsageError

MADE = Machine("vm-1", "servbadge", "debian12", "bios", "/cache/debian12.raw", 40022)


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "VMS", tmp_path / "vms")
    monkeypatch.setattr("lab.host.active_faults.RUN", tmp_path / "run")


def test_arguments_of_qemu(monkeypatch: pytest.MonkeyPatch) -> None:
    argv = machine.arguments(replace(MADE, firmware="secureboot"), [])
    (net,) = [word for word in argv if word.startswith("user,")]
    assert "hostfwd=tcp:127.0.0.1:40022-:22" in net, "sshd is reached on the loopback address alone"
    assert "smm=on" in argv[argv.index("-machine") + 1]
    assert any("OVMF_CODE_4M.ms.fd" in word for word in argv)
    names = {"sys_vendor": "A,b=1", "product_name": "P", "board_name": "B", "bios_version": "1"}
    monkeypatch.setattr(machine, "describe", lambda _rig: {"dmi": names})
    assert "type=1,manufacturer=A,,b=1,product=P" in " ".join(machine.arguments(MADE, [])), "no name adds an option"


def test_the_console_of_this_boot(tmp_path: Path) -> None:
    path = tmp_path / "console.log"
    path.write_bytes(b"Loading Linux 6.1.0\r\n[ 0.1] Kernel panic - not syncing: of an earlier boot\r\n")
    log = Console(path)
    assert log.panic() == ""
    assert log.last() == "nothing on the console"
    panic = b"\x1b[2J[ 0.05] Kernel panic - not syncing: VFS: Unable to mount root fs\r\n"
    path.write_bytes(path.read_bytes() + b"Loading Linux 6.1.0\r\n" + panic)
    assert log.panic() == "Kernel panic - not syncing: VFS: Unable to mount root fs"
    assert "\x1b" not in log.last()
    assert boots(path) == 2


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"distro": "ubuntu2204"}, "debian12 or debian13"),
        ({"firmware": "efi"}, "bios, uefi, secureboot"),
        ({"distro": "debian12", "disk": "raid1", "warm": True}, "--warm"),
    ],
)
def test_flags_of_a_machine(flags: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as refused:
        commands.kind(**{"distro": None, "firmware": None} | flags)
    assert words in f"{refused.value.found} {refused.value.expected}"


def test_a_machine_that_exists_is_of_the_kind_that_is_asked_for() -> None:
    machine.save(MADE)
    assert machine.load("vm-1") == MADE
    assert machine.known() == [MADE]
    with pytest.raises(UsageError) as refused:
        commands.up(["vm-1"], None, commands.kind("debian13", None), lambda _: None)
    assert "lab.down --name vm-1" in str(refused.value.fix)
    with pytest.raises(UsageError) as refused:
        lab_commands._check_kind(["one"], {"one"}, "a virtual machine", "--vm")
    assert "a virtual machine" in str(refused.value.found)


@pytest.mark.usefixtures("as_root")
def test_a_fault_that_cannot_be_applied_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    machine.save(MADE)
    monkeypatch.setattr(machine, "running", lambda _name: True)
    with pytest.raises(HostError):
        inject.fault(MADE, "hang", "", lambda _: None)
    assert inject.standing("vm-1") == []


@pytest.mark.parametrize(
    ("name", "gpu", "words"), [("hangs", "", "did you mean 'hang'?"), ("hang", "1", "whole machine")]
)
@pytest.mark.usefixtures("as_root")
def test_mistakes_about_faults(name: str, gpu: str, words: str) -> None:
    machine.save(MADE)
    with pytest.raises(UsageError) as refused:
        inject.fault(MADE, name, gpu, lambda _: None)
    assert words in str(refused.value)


def test_every_fault_says_what_it_does() -> None:
    for name in inject.names():
        effect, symptoms = inject.told(name)
        assert effect.endswith(".")
        assert symptoms
        assert isinstance(inject.find(name).AT_POWER_ON, bool), name
    assert str(Standing("gpu-lost", 2, None)) == "gpu-lost(2)"


def test_a_machine_without_room_in_memory_is_not_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 4194304 kB\nMemAvailable: 2097152 kB\n")
    monkeypatch.setattr(commands, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(commands, "login_key", lambda: None)
    machine.save(MADE)
    with pytest.raises(HostError) as refused:
        commands.up(["vm-1"], None, commands.kind("debian12", "bios"), lambda _: None)
    assert "2048 MiB" in str(refused.value.found)
    assert "3072 MiB" in str(refused.value.expected)
