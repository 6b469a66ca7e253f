"""The kernel log and every fault as the real programs report them, on a servbadge that is healed after each test."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.cli import commands
from lab.faults import inject
from lab.hardware import hw_state
from lab.host import disk, inside, login
from lab.power import switch
from rigwright.checks import Finding
from tests.end_to_end.conftest import reboot
from tests.end_to_end.looked import findings
from tests.end_to_end.rw import until

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

NAME = "t-fault"
INSTALL = """
url=$(cat /run/lab/hw/archive-url)/cuda/ubuntu2204/x86_64
curl -fsS "$url/3bf863cc.pub" | gpg --dearmor -o /usr/share/keyrings/cuda.gpg
echo "deb [signed-by=/usr/share/keyrings/cuda.gpg] $url /" >/etc/apt/sources.list.d/cuda.list
printf 'Package: *nvidia*535*\\nPin: version 535.261.03-*\\nPin-Priority: 1001\\n' >/etc/apt/preferences.d/nvidia.pref
echo 'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT iommu=pt"' >/etc/default/grub.d/zz-test.cfg
apt-get -qq update
apt-get install -qq -y "linux-headers-$(uname -r)" nvidia-headless-535 nvidia-utils-535
update-grub
"""


def ssh(command: str, deadline: float = 60) -> subprocess.CompletedProcess[str]:
    """Runs the command over ssh, as an administrator would."""
    return login.ssh(switch.get(NAME), f"PATH=$PATH:/usr/sbin; {command}", deadline)


def does(command: str, status: int = 0, deadline: float = 60) -> str:
    """Runs a command that must exit with this status; returns stdout and stderr."""
    done = ssh(command, deadline)
    assert done.returncode == status, f"{command}: exit {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def put(name: str, gpu: int | None = None) -> None:
    """Injects the fault into the host."""
    inject.fault(NAME, name, "" if gpu is None else str(gpu), print)


def healed(name: str = "") -> None:
    """Heals the fault; without a name, all faults."""
    inject.heal(NAME, name, print)


@pytest.fixture(scope="module", autouse=True)
def _box(lab_root: None) -> Iterator[None]:  # noqa: ARG001
    """Starts a servbadge with the driver loaded."""
    commands.down(name=NAME, say=print)
    commands.up(name=NAME, rig="servbadge", say=print)
    inside.run(switch.get(NAME), INSTALL, deadline=180)
    boots_again()
    yield
    commands.down(name=NAME, say=print)


@pytest.fixture(autouse=True)
def _as_before(
    _box: None, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Heals all faults after each test; a boot forgets what is in the kernel log, the settings of bridges and the load
    of GPUs.

    Each test has a history of its own.
    """
    monkeypatch.setenv("RIGWRIGHT_HISTORY", str(tmp_path / "history.sqlite"))
    nightly = request.node.get_closest_marker("nightly") is not None
    yield
    healed()
    if nightly or ssh("sudo dmesg | grep -q 'NVRM: Xid'").returncode == 0:
        boots_again()


def boots_again() -> None:
    """Reboots the host, and waits until all units of the boot are started."""
    reboot(NAME)
    ssh("systemctl is-system-running --wait")


def first(*without: str) -> tuple[str, str, str]:
    """Returns the first finding of verify: verdict, the catalogue's symptom, and subject.

    The kernel log keeps the Xids of healed faults until the next boot; verify reports them as warnings, last.
    """
    one = findings(NAME, *without)[0]
    return one.verdict, one.symptom, one.subject


def one(check: str) -> Finding:
    """Returns the only finding of a check."""
    (found,) = (finding for finding in findings(NAME) if finding.check == check)
    return found


def gpus() -> int:
    """Returns the number of GPUs that nvidia-smi lists."""
    return len(does("nvidia-smi -L").splitlines())


def test_a_sound_host_passes() -> None:
    found = findings(NAME)
    assert {finding.check for finding in found if finding.verdict not in ("pass", "info")} == {"driver.patched"}, found
    assert {finding.check for finding in found if finding.verdict == "info"} == {
        "machine.unchanged", "pcie.acs", "health.heat", "cuda.wheels", "cpu.governor",
    }  # fmt: skip
    assert not [finding for finding in findings(NAME) if finding.subject == "machine" and finding.verdict == "info"]


def test_the_kernel_log_is_read_by_the_real_programs() -> None:
    said = does("sudo dmesg")
    assert "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.261.03" in said
    assert "iommu: Default domain type: Passthrough (set via kernel command line)" in said
    assert "pci 0000:06:00.0: [10de:1db1]" in said
    assert "read kernel buffer failed: Operation not permitted" in does("dmesg", 1)
    follow = "sudo timeout 2 dmesg -w & sleep 0.5; echo '<4>said by a user' | sudo tee /dev/kmsg >/dev/null; wait"
    assert does(follow).count("said by a user") == 1
    assert "user  :warn  : " in does("sudo dmesg -x | grep 'said by a user'")
    assert "Linux version" in does("sudo journalctl -k --no-pager | head -2")
    assert "nouveau 0000:06:00.0" in does("sudo journalctl -k -b 1 --no-pager"), "the first boot, before the driver"
    assert "nvidia-uvm" in does("sudo journalctl -k -b -p info --no-pager")
    assert does("sudo journalctl --no-pager | grep -c Missed", 1).strip() == "0"


def test_only_root_reads_all_of_a_configuration_space_and_nobody_writes_what_is_fixed() -> None:
    assert "Capabilities: <access denied>" in does("lspci -vvv -s 06:00.0")
    assert "LnkSta:\tSpeed 8GT/s, Width x16" in does("sudo lspci -vvv -s 06:00.0")
    does("sudo setpci -s 06:00.0 0.w=1234; sudo setpci -s 05:08.0 ECAP_ACS+0x6.w=ffff")
    assert does("sudo setpci -s 06:00.0 0.w; sudo setpci -s 05:08.0 ECAP_ACS+0x6.w").split() == ["10de", "005f"]
    does("sudo setpci -s 05:08.0 ECAP_ACS+0x6.w=001d")


def test_device_nodes_are_there_with_the_modules() -> None:
    shown = does("ls /dev/nvidia[0-3] /dev/nvidiactl /dev/nvidia-uvm /dev/nvidia-modeset; stat -c %a /dev/nvidia0")
    assert shown.split()[-1] == "666"


def test_gpu_lost() -> None:
    does(
        "sh -c 'nvidia-smi -l 1 >/tmp/loop 2>&1 & echo $! >/tmp/pid; until grep -q 0B:00 /tmp/loop; do sleep 0.1; done'"
    )
    put("gpu-lost", 2)
    assert "Unable to determine the device handle for GPU0000:0A:00.0: GPU is lost." in does("nvidia-smi", 15)
    does("sh -c 'timeout 10 sh -c \"until grep -q GPU.is.lost /tmp/loop; do sleep 0.1; done\"; kill $(cat /tmp/pid)'")
    assert "ERR!" in does("cat /tmp/loop")
    assert "NVRM: Xid (PCI:0000:0a:00): 79" in does("sudo dmesg -l warn")
    assert "!!! Unknown header type 7f" in does("sudo lspci -vvv -s 0a:00.0")
    assert does("sudo lshw -C display -short").count("Tesla V100") == 3
    assert first() == ("fail", "gpu.off_bus", "SXM2-3 0000:0a:00.0")
    healed("gpu-lost")
    assert gpus() == 4
    assert "Width x16" in does("sudo lspci -vvv -s 0a:00.0")


@pytest.mark.nightly
def test_slow_links() -> None:
    put("link-x1", 1)
    put("link-gen1", 0)
    query = "nvidia-smi --query-gpu=pcie.link.gen.current,pcie.link.width.current --format=csv,noheader"
    assert does(query).splitlines()[:3] == ["1, 16", "3, 1", "3, 16"]
    assert "Speed 8GT/s, Width x1 (downgraded)" in does("sudo lspci -vvv -s 07:00.0")
    assert "Speed 8GT/s, Width x1" in does("sudo lspci -vvv -s 05:10.0")
    assert "Speed 2.5GT/s (downgraded), Width x16" in does("sudo lspci -vvv -s 06:00.0")
    found = [finding for finding in findings(NAME) if finding.verdict == "fail"]
    assert [(finding.symptom, finding.subject) for finding in found] == [
        ("pcie.slow", "SXM2-1 0000:06:00.0"),
        ("pcie.narrow", "SXM2-2 0000:07:00.0"),
    ]
    healed()
    assert set(does(query).splitlines()) == {"3, 16"}


@pytest.mark.nightly
def test_between_gpus() -> None:
    put("p2p-denied", 1)
    assert does("nvidia-smi topo -p2p r | grep -c 'GPU.*CNS'") == "4\n"
    assert "GPU1\tCNS\tX\tCNS\tCNS" in does("nvidia-smi topo -p2p w")
    put("nvlink-down", 3)
    assert does("nvidia-smi nvlink -s -i 3").count("<inactive>") == 1
    assert "GPU3\tNV1\tNV2\tNV2\t X" in does("nvidia-smi topo -m")
    assert "Xid (PCI:0000:0b:00): 74" in does("sudo dmesg")
    down = [finding.subject for finding in findings(NAME) if finding.symptom == "nvlink.inactive"]
    assert (first()[:2], down) == (("fail", "nvlink.inactive"), ["SXM2-1 0000:06:00.0 and SXM2-4 0000:0b:00.0"])
    for name in ("slow-link", "nccl-irq-hang"):
        put(name)
    state = hw_state.values(switch.get(NAME).hw)
    assert (state["fault.pair.0-1"], state["nccl.irq_hang"]) == ("slow:10", "1")


@pytest.mark.nightly
def test_heat_power_and_memory() -> None:
    for number, name in enumerate(("power-brake", "ecc", "remap-pending", "gpu-hot")):
        put(name, number)
    assert does("nvidia-smi -q -i 0 -d PERFORMANCE | grep -E 'Brake|HW Slow'").count(": Active") == 2
    found = {
        finding.subject.split()[0]: finding.symptom for finding in findings(NAME, "health.xids") if finding.symptom
    }
    assert (found["SXM2-1"], found["SXM2-2"]) == ("power.brake", "ecc.uncorrectable")
    assert found["SXM2-3"] == "ecc.retirement_pending"
    assert one("health.heat").verdict == "info"
    query = "nvidia-smi --format=csv,noheader --query-gpu="
    assert does(query + "ecc.errors.uncorrected.volatile.total,ecc.errors.corrected.aggregate.total -i 1") == "2, 117\n"
    assert "Pending Page Blacklist            : Yes" in does("nvidia-smi -q -i 2 -d PAGE_RETIREMENT")
    xids = does("sudo dmesg | grep Xid")
    assert "Xid (PCI:0000:07:00): 48" in xids
    assert "Xid (PCI:0000:0a:00): 63" in xids
    thermal = query + "temperature.gpu,clocks_throttle_reasons.hw_thermal_slowdown -i 3"
    assert does(thermal) == "33, Not Active\n"
    hw_state.edit(switch.get(NAME).hw, volatile={"gpu3.load": 100, "gpu2.load": 100, "heat.speed": 60})
    time.sleep(6)
    celsius, _, active = does(thermal).strip().partition(", ")
    assert (87 <= int(celsius) <= 89, active) == (True, "Active")
    healed("power-brake")
    healed("ecc")
    assert first() == ("fail", "thermal.hardware", "SXM2-4 0000:0b:00.0")
    hot = [(finding.symptom, finding.source) for finding in findings(NAME) if finding.check == "health.heat"]
    assert hot == [("thermal.one_hotter", "peers"), ("thermal.memory", "host")]
    healed("gpu-hot")
    time.sleep(6)
    assert first() == ("warn", "ecc.retirement_pending", "SXM2-3 0000:0a:00.0")
    put("gpu-hot", 3)
    time.sleep(6)
    clocks = does(query + "clocks.sm -i 2,3").split()
    assert int(clocks[0]) > 2 * int(clocks[2])
    hw_state.edit(switch.get(NAME).hw, volatile={"gpu3.load": "", "gpu2.load": "", "heat.speed": ""})


@pytest.mark.nightly
def test_reset_required() -> None:
    put("reset-required", 2)
    assert "Reset Required                    : Yes" in does("nvidia-smi -q -i 2")
    assert first() == ("fail", "gpu.reset_required", "SXM2-3 0000:0a:00.0")
    assert one("health.recovered").seen == "needs a reset"
    does("sudo nvidia-smi -r -i 2")
    assert one("health.recovered").verdict == "pass"


@pytest.mark.nightly
def test_acs_on() -> None:
    count = "sudo lspci -vvv | grep -c 'ACSCtl:.*SrcValid+.*ReqRedir+'"
    does("for b in 05:08.0 05:10.0 09:08.0 09:10.0; do sudo setpci -s $b ECAP_ACS+0x6.w=0; done")
    before = does(count)
    for b in ("04:00.0", "08:00.0", "00:02.0", "00:03.0"):
        does(f"sudo setpci -s {b} ECAP_ACS+0x6.w=0")
    assert one("pcie.acs").verdict == "pass"
    for b in ("04:00.0", "08:00.0", "00:02.0", "00:03.0"):
        does(f"sudo setpci -s {b} ECAP_ACS+0x6.w=1d")
    put("acs-on")
    assert int(does(count)) == int(before) + 4 == 8
    assert first("machine.unchanged", "health.xids", "driver.patched") == ("info", "p2p.acs", "ACS")
    assert one("pcie.acs").seen.startswith("8 bridges")
    healed("acs-on")
    assert does(count) == before


@pytest.mark.nightly
def test_library_moved() -> None:
    put("library-moved")
    said = does("nvidia-smi", 18)
    assert "Failed to initialize NVML: Driver/library version mismatch" in said
    assert "NVML library version: 535.262" in said
    assert "NVRM: API mismatch: the client has the version 535.262.01, but" in does("sudo dmesg")
    history = does("tail -6 /var/log/apt/history.log")
    assert "Commandline: /usr/bin/unattended-upgrade\n" in history
    assert "libnvidia-compute-535:amd64 (535.261.03-0ubuntu1, 535.262.01-0ubuntu1)" in history
    assert does("modinfo -F version nvidia; cat /sys/module/nvidia/version").split() == ["535.262.01", "535.261.03"]
    moved = findings(NAME)[0]
    assert (moved.verdict, moved.symptom, moved.fix[:11]) == ("fail", "driver.mismatch", "sudo reboot")
    assert "libnvidia-compute-535 535.261.03-0ubuntu1 -> 535.262.01-0ubuntu1 on " in moved.cause
    assert "by /usr/bin/unattended-upgrade" in moved.cause
    (status,) = (one for one in commands.status() if one.name == NAME)
    assert (status.loaded, status.installed, status.faults) == ("535.261.03", "535.262.01", ("library-moved",))
    assert "driver 535.261.03, installed 535.262.01" in str(status)
    healed()
    assert gpus() == 4


@pytest.mark.nightly
def test_dkms_broken() -> None:
    put("dkms-broken")
    assert does("dkms status") == "nvidia/535.261.03: added\n"
    assert does("dpkg-query -W -f '${db:Status-Abbrev}' nvidia-dkms-535").strip() == "iF"
    assert "Sub-process /usr/bin/dpkg returned an error code" in does("sudo apt-get install -y lshw", 100)
    assert gpus() == 4, "the loaded module stays"
    assert first()[:2] == ("fail", "apt.half_installed")
    assert [finding.symptom for finding in findings(NAME)[1:2]] == ["dkms.build_failed"]
    healed()
    assert does("dkms status").strip().endswith("installed")


@pytest.mark.nightly
def test_nouveau_bound() -> None:
    put("nouveau-bound")
    assert "Kernel driver in use: nouveau" in does("lspci -k -s 06:00.0")
    assert "couldn't communicate with the NVIDIA driver" in does("nvidia-smi", 9)
    assert "could not insert 'nvidia': No such device" in does("sudo modprobe nvidia", 1)
    assert "NVRM: The NVIDIA probe routine was not called for 4 device(s)." in does("sudo dmesg")
    assert does("lsinitramfs /boot/initrd.img-$(uname -r) | grep -c nouveau.ko") == "1\n"
    assert first() == ("fail", "module.other_driver_bound", "driver")
    healed()
    assert gpus() == 4


@pytest.mark.nightly
def test_packages_and_disk() -> None:
    put("dpkg-locked")
    said = does("sudo apt-get install -y lshw", 100)
    assert "Could not get lock /var/lib/dpkg/lock-frontend. It is held by process" in said
    assert "(unattended-upgr)" in said
    assert first()[:2] == ("warn", "apt.locked")
    healed()
    put("archive-gone")
    assert "no longer has a Release file" in does("sudo apt-get update", 100)
    healed()
    does("sudo apt-get -qq update")
    fetch = "cd /tmp && apt-get -o Acquire::Retries=0 download"
    family = (
        "libnvidia-compute-580 libnvidia-cfg1-580 nvidia-utils-580 nvidia-dkms-580 nvidia-compute-utils-580 "
        "nvidia-headless-580"
    )
    for name, said in (("package-corrupt", "Hash Sum mismatch"), ("mirror-behind", "404  Not Found")):
        put(name)
        assert said in does(f"{fetch} nvidia-headless-580", 100)
        does(f"{fetch} build-essential && sudo apt-get -qq update")
        healed()
    put("archive-half")
    said = does(f"{fetch} {family}", 100)
    assert "404  Not Found" in said
    whole = "for one in /tmp/*nvidia*.deb; do dpkg-deb -c $one >/dev/null 2>&1 && echo whole; done"
    assert does(f"{whole}; rm /tmp/*.deb").split() == ["whole"] * 4
    assert "no longer has a Release file" in does("sudo apt-get update", 100)
    healed()
    does(f"{fetch} {family} && rm /tmp/*.deb && sudo apt-get -qq update")
    put("disk-full")
    assert "100% /var" in does("df -Pm /var")
    assert "No space left on device" in does("sudo apt-get install -y build-essential", 100)
    assert first() == ("fail", "disk.full", "/var")
    healed()
    does("sudo apt-get -s install build-essential")


@pytest.mark.nightly
def test_key_changed() -> None:
    put("key-changed")
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED!" in does("true", 255)
    login.record(disk.known())
    assert ssh("true").returncode == 255, "the lab still knows the old key alone"
    healed()
    does("true")


@pytest.mark.nightly
def test_what_the_next_boot_brings() -> None:
    findings(NAME)  # the history has the whole machine
    for name, gpu in (("gpu-missing", 1), ("half-return", 3), ("ecc", 0), ("link-x1", 2), ("gpu-lost", 2)):
        put(name, gpu)
    put("dimm-gone")
    put("dimm-slow")
    put("iommu-translated")
    reboot(NAME)
    (status,) = (one for one in commands.status() if one.name == NAME)
    kept = ("gpu-missing(1)", "half-return(3)", "ecc(0)", "link-x1(2)", "dimm-gone", "dimm-slow", "iommu-translated")
    assert status.faults == kept
    assert (gpus(), does("lspci -d 10de: | wc -l")) == (2, "2\n")
    assert "Width x0" in does("sudo lspci -vvv -s 05:10.0")
    query = "nvidia-smi --format=csv,noheader -i 0 --query-gpu=ecc.errors.uncorrected."
    assert does(f"{query}volatile.total,ecc.errors.uncorrected.aggregate.total") == "0, 2\n"
    assert "Width x1 (downgraded)" in does("sudo lspci -vvv -s 0a:00.0")
    assert "7.876 Gb/s available PCIe bandwidth, limited by 8.0 GT/s PCIe x1 link" in does("sudo dmesg")
    assert does("free -g").split()[7] == "112"
    assert "iommu=pt" not in does("cat /proc/cmdline")
    assert "iommu: Default domain type: Translated" in does("sudo dmesg")
    failed = [finding for finding in findings(NAME) if finding.verdict == "fail"]
    assert [(finding.symptom, finding.subject) for finding in failed] == [
        ("gpu.missing", "GPUs"),
        ("gpu.missing", "SXM2-2 0000:07:00.0"),
        ("gpu.missing", "SXM2-4 0000:0b:00.0"),
        ("machine.memory_lost", "memory"),
        ("pcie.narrow", "SXM2-3 0000:0a:00.0"),
        ("", "/proc/cmdline"),
    ]
    assert "missing: DIMM_" in failed[3].seen
    assert failed[5].fix.startswith("invoke provision")
    (translated, slow, unpatched) = (finding for finding in findings(NAME) if finding.verdict == "warn")
    assert (slow.check, slow.seen) == ("memory.modules", "7 of 7 modules below their speed: 7 of 16 GiB, 2132 MT/s")
    (channels,) = (finding for finding in findings(NAME) if finding.subject == "memory channels")
    assert channels.seen == "1 of 4 channels have fewer modules than the others (CPU0 D: 1 module)"
    assert unpatched.check == "driver.patched"
    assert (translated.symptom, translated.seen) == ("p2p.iommu_translated", "on, DMA-FQ: it translates addresses")
    healed("gpu-missing")
    reboot(NAME)
    assert gpus() == 4, "half-return is of one boot"
    healed()
    reboot(NAME)
    assert "iommu=pt" in does("cat /proc/cmdline")
    assert does("free -g").split()[7] == "128"


def test_secure_boot() -> None:
    put("secure-boot")
    reboot(NAME)
    assert "could not insert 'nvidia': Key was rejected by service" in does("sudo modprobe nvidia", 1)
    assert "Loading of module with unavailable key is rejected" in does("sudo dmesg")
    assert does("od -An -t u1 -j 4 -N 1 /sys/firmware/efi/efivars/SecureBoot-*").strip() == "1"
    assert first() == ("fail", "secureboot.mok", "driver")
    healed()
    reboot(NAME)
    assert gpus() == 4


@pytest.mark.nightly
def test_no_return() -> None:
    put("no-return")
    one = switch.get(NAME)
    before = one.console.read_text().count("Press F1")
    ssh("sudo systemctl reboot", 20)
    until(lambda: one.console.read_text().count("Press F1") > before, "the question of the firmware")
    assert ssh("true").returncode == 255
    assert [status.state for status in commands.status() if status.name == NAME] == ["booting"]
    healed()
    login.wait(one)
    assert gpus() == 4


def loads(percent: object) -> None:
    """Loads all GPUs at the same moment, or ends the load."""
    hw_state.edit(switch.get(NAME).hw, volatile={f"gpu{number}.load": percent for number in range(4)})


def sensors() -> dict[str, str]:
    """Returns the readings of the real ipmitool, by sensor."""
    rows = (line.split("|") for line in does("sudo ipmitool sdr elist 2>/dev/null").splitlines())
    return {row[0].strip(): row[4].strip() for row in rows}


def test_fans_and_supplies_as_ipmitool_shows_them() -> None:
    assert sensors()["FAN2"] == "7500 RPM"
    put("fan-dead", 1)
    put("supply-out")
    time.sleep(0.5)
    seen = sensors()
    assert seen["FAN2"] == "0 RPM"
    assert seen["PS1 Status"] == "Presence detected, Power Supply AC lost"
    assert seen["PS2 Status"] == "Presence detected"
    assert seen["12V"].endswith(" Volts")
    assert "FAN2             | 0.000      | RPM        | nr" in does("sudo ipmitool sensor 2>/dev/null")
    refused = does("ipmitool sdr", 1)
    assert "Permission denied" in refused


@pytest.mark.nightly
def test_gpus_fall_off_the_bus_when_two_supplies_see_all_of_them_ramp() -> None:
    loads(100)
    time.sleep(1)
    assert gpus() == 4, "three supplies hold"
    loads("")
    time.sleep(1)
    put("poor-joint")
    loads(100)
    until(lambda: ssh("nvidia-smi").returncode == 15, "the loss of a GPU")
    assert "GPU is lost" in does("nvidia-smi", 15)
    assert "Xid (PCI:0000:06:00): 79" in does("sudo dmesg | grep Xid")
    loads("")
    healed()
    reboot(NAME)
    assert gpus() == 4


@pytest.mark.nightly
def test_a_machine_resets_when_its_last_supply_is_overloaded() -> None:
    before = does("cat /proc/sys/kernel/random/boot_id")
    hw_state.edit(switch.get(NAME).hw, volatile={"supply1.out": 1, "supply2.out": 1})
    time.sleep(0.5)
    loads(100)
    until(lambda: ssh("cat /proc/sys/kernel/random/boot_id").stdout not in ("", before), "its reset", 120)
    assert gpus() == 4
    assert "the machine resets" in switch.get(NAME).console.read_text()
