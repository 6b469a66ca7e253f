"""Simulated hosts run real systemd, sshd, sudo and GRUB, and real reboots and power cuts; `down` removes everything."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from lab.archive import repositories
from lab.base import lock, paths
from lab.cli import commands, inventory
from lab.host import cgroups, inotify, login, network
from lab.host.disk import Host
from lab.power import switch
from lab.power.supervise import pid_file
from lab.vm import commands as vm, image
from rigwright.core.errors import HostError, UsageError
from tests.end_to_end.conftest import Ssh, reboot
from tests.end_to_end.rw import until

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]


def out(ssh: Ssh, name: str, command: str, deadline: float = 30) -> str:
    """Runs a command that must succeed, and returns its output."""
    done = ssh(name, command, deadline)
    assert done.returncode == 0, f"{command}: exit {done.returncode}\n{done.stdout}{done.stderr}"
    return str(done.stdout).strip()


def boot_id(ssh: Ssh, name: str) -> str:
    return out(ssh, name, "cat /proc/sys/kernel/random/boot_id")


def shell(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, timeout=30, check=True).stdout


def traces(name: str, tag: str = paths.TAG, state: Path = paths.STATE) -> list[str]:
    """Returns all links, namespaces, mounts, cgroups, processes and files of the host on the machine."""
    links = [link["ifname"] for link in json.loads(shell("ip", "-j", "link")) if link.get("ifalias") == name]
    spaces = [line for line in shell("ip", "netns").splitlines() if line.split()[0] == f"{tag}-{name}"]
    mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if f"{state}/hosts/{name}/" in line]
    groups = [str(top / tag / name) for top in cgroups.hierarchies() if (top / tag / name).exists()]
    alive = shell("ps", "-eo", "stat=,pid=,args=").splitlines()
    processes = [line for line in alive if f"{state}/hosts/{name}/" in line or f"lab/power/watch.sh {name} " in line]
    files = [str(path) for path in state.glob(f"*/{name}*")]
    nspawn = [str(path) for path in Path("/run/systemd/nspawn/propagate").glob(f"{tag}-{name}")]
    return [*links, *spaces, *mounts, *groups, *processes, *files, *nspawn]


def test_login_sudo_and_systemd(plain_host: str, ssh: Ssh) -> None:
    assert out(ssh, plain_host, "whoami; id -u; hostname").split() == ["ubuntu", "1000", plain_host]
    assert out(ssh, plain_host, "sudo -n id -u") == "0"
    assert out(ssh, plain_host, "cat /proc/1/comm; readlink -f /sbin/init").split() == [
        "systemd",
        "/usr/lib/systemd/systemd",
    ]
    assert out(ssh, plain_host, "systemctl is-system-running --wait") == "running"
    assert out(ssh, plain_host, "cat /etc/rigwright-lab") == f"simulated host {plain_host}, rig none"
    booted_s = time.time() - switch.get(plain_host).boots.stat().st_mtime
    assert float(out(ssh, plain_host, "cat /proc/uptime").split()[0]) < booted_s + 60, "not that of this machine"


def test_kernel_initramfs_and_grub_are_made_by_the_real_programs(plain_host: str, ssh: Ssh) -> None:
    kver = os.uname().release
    assert out(ssh, plain_host, "uname -r") == kver
    files = (
        f"/boot/vmlinuz-{kver} /boot/config-{kver} /boot/initrd.img-{kver} /boot/grub/grub.cfg "
        f"/lib/modules/{kver}/modules.dep.bin"
    )
    out(ssh, plain_host, f"ls {files}")
    assert f"/boot/initrd.img-{kver}" in out(ssh, plain_host, "sudo update-initramfs -u 2>&1", 120)
    assert "init" in out(ssh, plain_host, f"lsinitramfs /boot/initrd.img-{kver}").splitlines()
    out(ssh, plain_host, "sudo grub-script-check /boot/grub/grub.cfg")
    assert out(ssh, plain_host, "cat /proc/cmdline").startswith(f"BOOT_IMAGE=/boot/vmlinuz-{kver} root=UUID=")
    assert out(ssh, plain_host, "dpkg-divert --list '*grub*'").endswith(
        "/usr/sbin/grub-probe to /usr/sbin/grub-probe.real"
    )


def test_apt_without_network_fails_soon(plain_host: str, ssh: Ssh) -> None:
    out(ssh, plain_host, "apt-cache policy openssh-server && sudo dpkg --audit")
    started = time.monotonic()
    assert "Failed to fetch" in ssh(plain_host, "sudo apt-get update 2>&1", 60).stdout
    assert ssh(plain_host, "sudo apt-get install -y no-such-package", 60).returncode == 100
    assert time.monotonic() - started < 60, "with an ordinary resolv.conf it takes two minutes"
    assert ssh(plain_host, "ip route get 192.0.2.1", 10).returncode != 0, "a host has a way out of the lab"


@pytest.fixture(scope="module")
def booted(lab_root: None) -> Iterator[str]:  # noqa: ARG001
    """Yields the name of a host that the tests of boots share."""
    commands.down(name="t-booted", say=print)
    commands.up(name="t-booted", say=print)
    yield "t-booted"
    commands.down(name="t-booted", say=print)


def test_grub_drop_in_shows_after_update_grub_and_reboot(booted: str, ssh: Ssh) -> None:
    before = len(switch.get(booted).boots.read_text().split())
    line = 'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX iommu=pt"'
    out(ssh, booted, f"echo '{line}' | sudo tee /etc/default/grub.d/99-x.cfg")
    reboot(booted)
    assert "iommu=pt" not in out(ssh, booted, "cat /proc/cmdline")
    out(ssh, booted, "sudo update-grub")
    assert "iommu=pt" not in out(ssh, booted, "cat /proc/cmdline")
    reboot(booted)
    assert out(ssh, booted, "cat /proc/cmdline").endswith(" ro iommu=pt")
    assert out(ssh, booted, "journalctl --list-boots | grep -c UTC") == str(before + 2)
    (status,) = (s for s in commands.status() if s.name == booted)
    assert (status.state, status.boots) == ("up", before + 2)
    assert status.uptime_s is not None
    assert status.uptime_s < 60


def test_grub_reboot_holds_for_one_boot(booted: str, ssh: Ssh) -> None:
    root = "$(grep -o 'root=[^ ]*' /proc/cmdline)"
    entry = f"menuentry once --id once {{\n linux /boot/vmlinuz-$(uname -r) {root} ro once=1\n}}"
    out(ssh, booted, f'printf "%s\\n" "{entry}" | sudo tee /boot/grub/custom.cfg && sudo grub-reboot once')
    reboot(booted)
    assert "once=1" in out(ssh, booted, "cat /proc/cmdline")
    assert out(ssh, booted, "sudo grub-editenv list") == "next_entry="
    reboot(booted)
    assert "once=1" not in out(ssh, booted, "cat /proc/cmdline")


def test_power_cut_and_on_again_with_the_same_disk(booted: str, ssh: Ssh) -> None:
    before = boot_id(ssh, booted)
    out(ssh, booted, "echo kept > mark")
    commands.power_cut(booted)
    assert not login.answers(switch.get(booted))
    assert [s.state for s in commands.status() if s.name == booted] == ["off"]
    commands.power_on(booted)
    login.wait(switch.get(booted))
    assert out(ssh, booted, "cat mark") == "kept"
    assert boot_id(ssh, booted) != before


def test_poweroff_stays_off_until_up(booted: str, ssh: Ssh) -> None:
    ssh(booted, "sudo systemctl poweroff", 20)
    until(lambda: not switch.running(booted), "its end")
    assert [s.state for s in commands.status() if s.name == booted] == ["off"]
    commands.up(name=booted, say=print)
    assert boot_id(ssh, booted)


def test_host_without_a_kernel_does_not_boot_and_says_why(spare_host: str, ssh: Ssh) -> None:
    out(ssh, spare_host, "sudo rm /boot/initrd.img-*")
    commands.power_cut(spare_host)
    with pytest.raises(HostError, match=r"initrd\.img-.*not found") as caught:
        commands.up(name=spare_host, say=print)
    assert "console.log" in caught.value.fix


def test_second_up_changes_nothing(plain_host: str, ssh: Ssh) -> None:
    before, said = boot_id(ssh, plain_host), list[str]()
    commands.up(name=plain_host, say=said.append)
    assert boot_id(ssh, plain_host) == before
    assert said[-1].startswith(f"{plain_host}: already up")


def test_inventory_and_ssh_config_reach_the_host(plain_host: str) -> None:
    groups = yaml.safe_load((paths.INVENTORY / "hosts.yml").read_text())["all"]["children"]
    found = groups["plain"]["hosts"][plain_host]
    assert found["ansible_user"] == "ubuntu"
    assert found["ansible_host"] == str(switch.get(plain_host).address)
    assert Path(found["ansible_ssh_private_key_file"]).stat().st_mode & 0o777 == 0o600
    variables = [yaml.safe_load(p.read_text()) or {} for p in paths.INVENTORY.glob("group_vars/all*/**/*.yml")]
    variables += [yaml.safe_load(p.read_text()) or {} for p in paths.INVENTORY.glob("group_vars/all.yml")]
    assert str(paths.KNOWN_HOSTS) in [v.get("ssh_known_hosts") for v in variables]
    assert f"Host {plain_host}\n" in commands.ssh_config()
    argv = ["ssh", "-F", str(paths.SSH_CONFIG), "-o", "BatchMode=yes", plain_host, "true"]
    assert subprocess.run(argv, stdin=subprocess.DEVNULL, timeout=20, check=False).returncode == 0
    found["ssh_known_hosts"] = paths.KNOWN_HOSTS.read_text()
    keys = (switch.get(plain_host).root / "etc/ssh/ssh_host_ed25519_key.pub").read_text().split()[1]
    assert keys in found["ssh_known_hosts"]


def test_inventory_of_a_host_with_a_rig_names_its_cuda_repository(plain_host: str) -> None:  # noqa: ARG001
    repositories.archive(paths.CACHE, print)
    files = inventory._files([Host("t-gpu", "servbadge", 99, ())])
    found = yaml.safe_load(files[paths.INVENTORY / "hosts.yml"])["all"]["children"]["gpu"]["hosts"]["t-gpu"]
    assert found["cuda_repository"]["url"] == f"http://{network.gateway()}:8080/cuda/ubuntu2204/x86_64"


def test_mistakes_are_told_before_anything_happens() -> None:
    with pytest.raises(UsageError, match="cannot be a host's name"):
        commands.up(name="Not_A_Name", say=print)
    with pytest.raises(UsageError, match="did you mean 'servbadge'"):
        commands.up(rig="servbage", say=print)
    with pytest.raises(UsageError, match="no host 't-nobody'"):
        commands.power_cut("t-nobody")


def test_down_leaves_nothing_of_the_host(spare_host: str, plain_host: str) -> None:
    assert len(traces(spare_host)) >= 8
    commands.power_cut(plain_host)
    commands.power_on(plain_host)  # a later boot, so its mount namespace has the other host's disk
    login.wait(switch.get(plain_host))
    commands.down(name=spare_host, say=print)
    assert traces(spare_host) == []
    for nspawn in shell("pgrep", "--full", "^systemd-nspawn .*--machine=").split():
        seen = Path(f"/proc/{nspawn}/mountinfo")
        assert not seen.exists() or f"hosts/{spare_host}/" not in seen.read_text(), "another host still holds the disk"
    assert spare_host not in paths.INVENTORY.joinpath("hosts.yml").read_text() if paths.INVENTORY.exists() else True
    commands.down(name=spare_host, say=print)


def test_hosts_boot_while_the_image_of_a_virtual_machine_is_built(
    spare_host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ends = threading.Event(), threading.Event()

    def build(*_: object) -> None:
        begun.set()
        ends.wait(600)
        raise HostError("lab", "the test ends the build")

    def machine() -> None:
        with pytest.raises(HostError, match="the test ends the build"):
            commands.up_vm(name="t-built", say=print)

    monkeypatch.setattr(image, "_build", build)
    monkeypatch.setattr(image, "_need_room", lambda _: None)
    monkeypatch.setattr(image, "VM_CACHE", tmp_path)
    monkeypatch.setattr(vm, "need", lambda _: None)  # QEMU is installed for the tests of virtual machines alone
    monkeypatch.setattr(lock, "LOCK_S", 60)
    with ThreadPoolExecutor(1) as pool:
        built = pool.submit(machine)
        try:
            assert begun.wait(60), built.result(0)
            commands.down(name=spare_host, say=print)
            commands.up(name=spare_host, say=print)
        finally:
            ends.set()
        built.result(60)


def test_killed_supervisor_takes_the_host_with_it_and_up_and_down_heal(spare_host: str, ssh: Ssh) -> None:
    out(ssh, spare_host, "echo kept > mark")
    os.kill(int(pid_file(spare_host).read_text()), signal.SIGKILL)
    until(lambda: not cgroups.processes(spare_host), "its end: a host without supervisor would never reboot")
    commands.up(name=spare_host, say=print)
    assert out(ssh, spare_host, "cat mark") == "kept"
    os.kill(int(pid_file(spare_host).read_text()), signal.SIGKILL)
    paths.HOSTS.joinpath(f"{spare_host}.json").unlink()
    commands.down(name=spare_host, say=print)
    assert traces(spare_host) == []


Call = Callable[[str], str]


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Call]:
    """Yields `elsewhere(code)`, which returns Python's output in another checkout's lab; later removes that lab."""
    for package in ("lab", "rigwright"):
        shutil.copytree(paths.CHECKOUT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / ".lab").mkdir()
    (tmp_path / ".lab" / "cache").symlink_to(paths.CACHE)

    def call(code: str) -> str:
        code = (
            "from lab.base import paths\nfrom lab.cli import commands\n"
            "from lab.host import cgroups, disk, login, network\n"
            f"from lab.power import switch\nfrom lab.simulators.kernelfs import serve as kernelfs\n{code}"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    yield call
    call("commands.down(say=print)")


@pytest.mark.nightly
def test_another_checkouts_lab_beside_ours_and_its_whole_life(
    plain_host: str, tmp_path: Path, ssh: Ssh, elsewhere: Call
) -> None:
    """A second lab uses another subnet, survives the loss of all its mounts and links, and `down` removes all of it."""
    before = inotify.LIMIT.read_text()
    tag = elsewhere("print(paths.TAG)")
    mounted = f"{tag} {tmp_path}/.lab/run/kernel fuse"
    assert tag != paths.TAG
    try:
        elsewhere("commands.up(name='t-other', say=print)")
        assert Path("/proc/mounts").read_text().count(mounted) == 1
        assert elsewhere("print(network.subnet())") != str(network.subnet())
        assert "ERROR" not in out(ssh, plain_host, "echo still here")
        # The effect of a machine reboot on a lab: processes, mounts, namespaces and links are gone; the files remain.
        elsewhere(
            "import subprocess\ncgroups.kill(); cgroups.remove(); disk.unmount(paths.HOSTS); "
            "network.detach('t-other')\n"
            "network.remove(); commands.up(name='t-other', say=print)\nprint(commands.status()[0].boots)"
        )
        assert Path("/proc/mounts").read_text().count(mounted) == 1
        assert "(lab@rigwright)" in elsewhere("print(login.ssh(switch.get('t-other'), 'sudo dmesg').stdout)")
    finally:
        elsewhere("commands.down(say=print); commands.down(say=print)")
    assert tag not in shell("ip", "link") + shell("ip", "netns") + Path("/proc/mounts").read_text()
    assert traces("t-other", tag, tmp_path / ".lab") == []
    assert not any((top / tag).exists() for top in cgroups.hierarchies())
    assert str(tmp_path) not in Path("/proc/mounts").read_text() + shell("ps", "-eo", "args=")
    assert inotify.LIMIT.read_text() == before, "our own lab still needs it"
    assert out(ssh, plain_host, "echo still here") == "still here"


@pytest.mark.nightly
def test_a_lost_kernel_log_is_replaced_by_the_next_up(elsewhere: Call, tmp_path: Path) -> None:
    """A host that stayed up gets its log back in its next boot; no dead mount is left."""
    elsewhere("commands.up(name='t-other', say=print); cgroups.kill(kernelfs.GROUP); assert not kernelfs.available()")
    ask = "print(login.ssh(switch.get('t-other'), 'sudo dmesg 2>&1').stdout)"
    assert "Operation not permitted" in elsewhere(ask)
    elsewhere("commands.up(name='t-other', say=print); assert kernelfs.available()")
    assert Path("/proc/mounts").read_text().count(f"{tmp_path}/.lab/run/kernel fuse") == 1
    elsewhere("commands.power_cut('t-other'); commands.up(name='t-other', say=print)")
    assert "(lab@rigwright)" in elsewhere(ask)
    elsewhere("cgroups.kill(kernelfs.GROUP); commands.down(say=print)")
    assert str(tmp_path) not in Path("/proc/mounts").read_text() + shell("ps", "-eo", "args=")


@pytest.mark.nightly
def test_without_fuse_a_host_boots_without_a_log(elsewhere: Call, tmp_path: Path) -> None:
    refusing = tmp_path / "refusing"
    refusing.write_text("#!/bin/sh\necho '/dev/fuse: No such device'\nexit 1\n")
    refusing.chmod(0o755)
    said = elsewhere(
        f"import pathlib; kernelfs._built = lambda: pathlib.Path({str(refusing)!r})\n"
        "commands.up(name='t-other', say=print)"
    )
    assert said.splitlines()[0] == (
        "No FUSE on this machine (/dev/fuse: No such device): "
        "hosts have no kernel log, and everybody may read PCI config files."
    )
    assert said.count("FUSE") == 1
    refused = elsewhere("print(login.ssh(switch.get('t-other'), 'sudo dmesg 2>&1').stdout)")
    assert "read kernel buffer failed: Operation not permitted" in refused
    assert f"{tmp_path}/.lab/run" not in Path("/proc/mounts").read_text()


def test_inotify_limit_is_raised_once_and_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit, note = tmp_path / "limit", tmp_path / "before"
    limit.write_text("128\n")
    monkeypatch.setattr(inotify, "LIMIT", limit)
    monkeypatch.setattr(inotify, "BEFORE", note)
    siblings = [True]
    monkeypatch.setattr(inotify, "sibling_labs", lambda: siblings[0])
    inotify.raised()
    inotify.raised()
    assert int(limit.read_text()) == inotify.WANTED
    inotify.restored()
    assert int(limit.read_text()) == inotify.WANTED, "another lab is up"
    siblings[0] = False
    inotify.restored()
    inotify.restored()
    assert int(limit.read_text()) == 128
    assert not note.exists()
    note.write_text("7 an-earlier-boot\n")
    inotify.restored()
    assert int(limit.read_text()) == 128
