"""A simulated GPU server from nouveau to a working driver: archive, initrd, kernel, reboots, failures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count

import pytest

from lab.base import paths
from lab.cli import commands
from lab.host import login
from lab.power import switch
from tests.end_to_end.conftest import Ssh, reboot
from tests.end_to_end.rw import until

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900), pytest.mark.nightly]

numbers = count(1)

OLD, NEW, JAMMY = "535.183.01", "535.261.03", "580.178.04"
PIN = "Package: *nvidia*535* nvidia-settings nvidia-modprobe\nPin: version {}-*\nPin-Priority: 1001\n"
INSTALL = "sudo DEBIAN_FRONTEND=noninteractive apt-get install -qq -y "
HEADERS = "linux-headers-$(uname -r)"
PRELUDE = (paths.CHECKOUT / "tests/lab/faults/cuda_prelude.py").read_text()


class Server:
    """A fresh host of the rig servbadge; its methods leave installed packages on its disk."""

    def __init__(self, name: str, ssh: Ssh) -> None:
        self.name, self.ssh = name, ssh

    def does(self, command: str, deadline: float = 60) -> str:
        """Runs a command that must succeed, and returns its output."""
        done = self.ssh(self.name, f"PATH=$PATH:/usr/sbin:/sbin; {command}", deadline)
        assert done.returncode == 0, f"{command}: exit {done.returncode}\n{done.stdout}{done.stderr}"
        return str(done.stdout).strip()

    def fails(self, command: str, status: int, deadline: float = 60) -> str:
        """Runs a command that must exit with that status, and returns stdout and stderr."""
        done = self.ssh(self.name, f"PATH=$PATH:/usr/sbin:/sbin; {command}", deadline)
        assert done.returncode == status, f"{command}: exit {done.returncode}\n{done.stdout}{done.stderr}"
        return str(done.stdout) + str(done.stderr)

    def drivers(self) -> set[str | None]:
        """Returns the kernel drivers that lshw reports for the NVIDIA GPUs; None stands for UNCLAIMED."""
        shown = [d for d in json.loads(self.does("sudo lshw -json -C display")) if d["vendor"] == "NVIDIA Corporation"]
        assert len(shown) == 4
        return {d["configuration"].get("driver") if d.get("claimed") else None for d in shown}

    def adds_cuda_repository(self) -> None:
        """Adds NVIDIA's repository to apt and verifies the fingerprint of its key."""
        url = self.does("cat /run/lab/hw/archive-url") + "/cuda/ubuntu2204/x86_64"
        self.does(f"curl -fsS {url}/3bf863cc.pub | sudo gpg --dearmor -o /usr/share/keyrings/cuda.gpg")
        shown = self.does("gpg --show-keys --with-colons /usr/share/keyrings/cuda.gpg")
        fingerprint = (paths.CACHE / "archive/cuda-key-fingerprint").read_text().strip()
        assert f":{fingerprint}:" in shown
        line = f"deb [signed-by=/usr/share/keyrings/cuda.gpg] {url} /"
        self.does(f"echo '{line}' | sudo tee /etc/apt/sources.list.d/cuda.list && sudo apt-get -qq update")

    def pins(self, version: str) -> None:
        """Pins that version of the 535 packages in apt."""
        self.does(f"printf %s '{PIN.format(version)}' | sudo tee /etc/apt/preferences.d/nvidia.pref")

    def grub(self, words: str) -> None:
        """Adds the words to the kernel command line from the next boot on."""
        line = f'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT {words}"'
        self.does(f"echo '{line}' | sudo tee /etc/default/grub.d/99-test.cfg && sudo update-grub")


@pytest.fixture
def server(lab_root: None, ssh: Ssh) -> Iterator[Server]:  # noqa: ARG001
    """Yields a fresh GPU server."""
    name = f"t-rig{next(numbers)}"
    commands.down(name=name, say=print)
    commands.up(name=name, rig="servbadge", say=print)
    yield Server(name, ssh)
    commands.down(name=name, say=print)


def test_a_bare_server(server: Server) -> None:
    assert server.drivers() == {"nouveau"}
    assert server.does("lspci -nn -d 10de: | wc -l") == "4"
    assert "0000:06:00.0" in server.does("ls /sys/bus/pci/drivers/nouveau")
    assert "nouveau" in server.does("lsmod")
    assert server.does(". /etc/os-release; echo $ID $VERSION_ID $VERSION_CODENAME") == "ubuntu 22.04 jammy"
    assert server.does("systemctl is-system-running") == "running"
    assert "not found in directory" in server.fails("sudo modprobe nvidia", 1)
    assert "Operation not permitted" in server.fails("modprobe ttm", 1)
    assert server.does("lsinitramfs /boot/initrd.img-$(uname -r) | grep -c nouveau.ko") == "1"
    assert server.does("grep -c . /etc/apt/sources.list; ls /etc/apt/sources.list.d | wc -l") == "3\n0"


def test_a_blacklist_counts_once_it_is_in_the_initrd(server: Server) -> None:
    server.does("echo 'blacklist nouveau' | sudo tee /etc/modprobe.d/no.conf")
    reboot(server.name)
    assert server.drivers() == {"nouveau"}
    server.does("sudo update-initramfs -u")
    reboot(server.name)
    assert server.drivers() == {None}
    server.does("sudo modprobe nouveau")  # a blacklist applies to aliases, not to module names
    assert server.drivers() == {"nouveau"}


def test_the_kernel_command_line_counts(server: Server) -> None:
    server.grub("nouveau.modeset=0")
    reboot(server.name)
    assert server.drivers() == {None}
    assert "nouveau" in server.does("lsmod")
    for words in ("modprobe.blacklist=nouveau", "module_blacklist=nouveau"):
        server.grub(words)
        reboot(server.name)
        assert server.drivers() == {None}
        assert "nouveau" not in server.does("lsmod")


def test_a_damaged_initrd_does_not_boot(server: Server) -> None:
    server.does("sudo sh -c 'echo nonsense >/boot/initrd.img-$(uname -r); sync'")
    commands.power_cut(server.name)
    commands.power_on(server.name)
    console = switch.get(server.name).console
    until(lambda: "Kernel panic - not syncing" in console.read_text(), "the panic")


def test_the_driver_from_installation_to_upgrade(server: Server) -> None:
    server.adds_cuda_repository()
    server.does(INSTALL + HEADERS)
    server.pins(OLD)
    server.does(INSTALL + "nvidia-headless-535 nvidia-utils-535")
    assert "NVIDIA-SMI has failed because it couldn't communicate" in server.fails("nvidia-smi", 9)
    assert server.does("modinfo -F version nvidia") == OLD
    assert f"nvidia/{OLD}, {server.does('uname -r')}, x86_64: installed" == server.does("dkms status")
    assert "could not insert 'nvidia': No such device" in server.fails("sudo modprobe nvidia", 1)
    reboot(server.name)
    assert server.drivers() == {"nvidia"}
    assert server.does("nvidia-smi -L").count("GPU ") == 4
    assert server.does("cat /sys/module/nvidia/version") == OLD
    assert OLD in server.does("cat /proc/driver/nvidia/version")
    assert server.does("systemctl is-active nvidia-persistenced; systemctl is-system-running") == "active\nrunning"
    query = "nvidia-smi --query-gpu=persistence_mode,driver_version --format=csv,noheader"
    assert set(server.does(query).splitlines()) == {f"Disabled, {OLD}"}
    server.pins(NEW)
    server.does("sudo DEBIAN_FRONTEND=noninteractive apt-get dist-upgrade -qq -y")
    assert server.does("modinfo -F version nvidia") == NEW
    assert "Driver/library version mismatch" in server.fails("nvidia-smi", 18)
    reboot(server.name)
    assert set(server.does(query).splitlines()) == {f"Disabled, {NEW}"}
    server.does("sudo rm /etc/apt/preferences.d/nvidia.pref; sudo apt-get purge -qq -y '*nvidia*535*'")
    reboot(server.name)
    assert server.drivers() == {"nouveau"}


def test_without_a_reboot(server: Server) -> None:
    server.adds_cuda_repository()
    server.pins(OLD)
    server.does(INSTALL + "nvidia-driver-535 " + HEADERS)
    server.does("sudo rmmod nouveau && sudo modprobe nvidia && nvidia-smi")
    server.does(INSTALL + "cuda-cudart-12-2 libcublas-12-2 libnccl2")
    program = PRELUDE + "print([summed(4), right(0, 3), access(0, 1), small_product()])"
    assert server.does(f"python3 - <<'END'\n{program}\nEND") == "[True, True, 1, [19.0, 43.0, 22.0, 50.0]]"
    assert "is in use by: nvidia_modeset nvidia_uvm" in server.fails("sudo rmmod nvidia", 1)
    server.does("sudo rmmod nvidia_drm nvidia_modeset nvidia_uvm")
    busy = (
        "nvidia-smi --query-gpu=name --format=csv -l 1 >/dev/null & sleep 0.5; sudo rmmod nvidia; a=$?; kill $!; "
        "wait; exit $a"
    )
    assert "Module nvidia is in use" in server.fails(busy, 1)
    server.does("sudo rmmod nvidia")
    server.fails("nvidia-smi", 9)


def test_jammys_own_535_is_580(server: Server) -> None:
    server.does("sudo apt-get -qq update")
    plan = server.does("apt-get -s install nvidia-headless-535-server")
    assert f"Inst nvidia-dkms-580-server ({JAMMY}-0ubuntu0.22.04.1" in plan
    server.does(INSTALL + "nvidia-headless-535-server nvidia-utils-535-server")
    reboot(server.name)
    assert set(server.does("nvidia-smi --query-gpu=driver_version --format=csv,noheader").split()) == {JAMMY}
    server.adds_cuda_repository()
    alone = server.fails(f"apt-get -s install nvidia-driver-535={OLD}-0ubuntu1", 100)
    assert "libnvidia-gl-535 (= 535.183.01-0ubuntu1)" in alone


def test_without_headers_nothing_is_built_and_nothing_says_no(server: Server) -> None:
    server.adds_cuda_repository()
    server.pins(OLD)
    said = server.does(INSTALL + "--no-install-recommends nvidia-headless-535")
    assert "was skipped since the" in said
    assert server.does("dkms status") == f"nvidia/{OLD}: added"
    asked = server.fails(f"sudo dkms install -m nvidia -v {OLD}", 1)
    assert "Your kernel headers for kernel" in asked
    reboot(server.name)
    assert server.drivers() == {None}
    server.does(INSTALL + HEADERS)
    assert server.does("dkms status").endswith("installed")


def test_a_failing_build_is_dpkgs_failure_and_can_be_repaired(server: Server) -> None:
    server.adds_cuda_repository()
    server.pins(OLD)
    server.does("sudo touch /etc/sim-dkms-fail")
    said = server.fails(INSTALL + f"nvidia-headless-535 {HEADERS}", 100)
    assert "Bad return status for module build" in said
    assert server.does("dpkg-query -W -f '${db:Status-Abbrev}' nvidia-dkms-535").strip() == "iF"
    server.does("sudo rm /etc/sim-dkms-fail; sudo dpkg --configure -a")
    assert server.does("dkms status").endswith("installed")


def test_power_lost_in_the_middle_of_the_build(server: Server) -> None:
    server.adds_cuda_repository()
    server.pins(OLD)
    server.does(INSTALL + HEADERS)
    server.does("sudo systemd-run --unit=install apt-get install -qq -y nvidia-headless-535 nvidia-utils-535")
    server.does("timeout 60 sh -c 'until ls /var/lib/dkms/nvidia/*/build/nvidia.ko; do sleep 0.1; done'")
    commands.power_cut(server.name)
    commands.power_on(server.name)
    login.wait(switch.get(server.name))
    assert "dpkg was interrupted" in server.fails(INSTALL + "lshw", 100)
    server.does("sudo dpkg --configure -a && sudo apt-get install -qq -y -f")
    reboot(server.name)
    assert server.drivers() == {"nvidia"}


def test_cuda_toolkit_and_the_trap_of_the_cuda_metapackage(server: Server) -> None:
    server.adds_cuda_repository()
    server.does(INSTALL + "cuda-toolkit-12-2")
    assert "release 12.2, V12.2.140" in server.does("/usr/local/cuda/bin/nvcc --version")
    assert json.loads(server.does("cat /usr/local/cuda/version.json"))["cuda"]["version"] == "12.2.2"
    assert "nvidia" not in server.does("dpkg-query -W -f '${Package}\\n'")
    assert f"Inst nvidia-driver-580 ({JAMMY}" in server.does("apt-get -s install cuda-12-2")
