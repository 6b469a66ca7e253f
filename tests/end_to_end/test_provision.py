"""Provisions a simulated servbadge twice, reboots it by hand, and checks it by plain ssh, without rigwright."""

from __future__ import annotations

import json
import re
import shlex
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.base.paths import write
from lab.cli import commands
from lab.faults import inject
from lab.power import switch
from tests.end_to_end.conftest import Ssh, reboot, training
from tests.end_to_end.rw import document, inventory, invoke, not_as_wanted, until
from tests.paths import ROOT

pytestmark = pytest.mark.lab
NAME = "t-badge"


@pytest.fixture(scope="module")
def badge(lab_root: None) -> Iterator[str]:  # noqa: ARG001
    """Yields the name of a simulated servbadge, which `bare` and `whole` bring into the state that a test needs."""
    boot()
    yield NAME
    commands.down(name=NAME, say=print)


def boot() -> None:
    """Boots the host with an empty disk."""
    commands.down(name=NAME, say=print)
    commands.up(name=NAME, rig="servbadge", say=print)


@pytest.fixture
def bare(badge: str, ssh: Ssh) -> str:
    """Returns the name of the host, to which nothing was done yet."""
    if ssh(badge, "test -e /var/lib/rigwright").returncode == 0:
        boot()
    return badge


@pytest.fixture
def whole(badge: str, ssh: Ssh) -> str:
    """Returns the name of the host, which is provisioned, by a test before or now, and whose kernel log has no errors
    of GPUs."""
    if ssh(badge, "test -e /proc/driver/nvidia/version").returncode != 0:
        found = document("provision", "--host", badge, "--yes", deadline=550)
        assert found["exit_code"] == 0, not_as_wanted(found)
    if ssh(badge, "sudo dmesg | grep -q 'NVRM: Xid'").returncode == 0:
        reboot(badge)
        ssh(badge, "systemctl is-system-running --wait", 60)
    return badge


@pytest.fixture
def spoilt(whole: str) -> Iterator[str]:
    """Yields the name of the provisioned host for a test that changes its driver; the next test has an empty disk
    again."""
    yield whole
    boot()


LIBRARIES = "/var/lib/rigwright/libraries"


@pytest.fixture
def without_libraries(whole: str, ssh: Ssh) -> Iterator[str]:
    """Yields the name of the provisioned host, without the libraries that provision installed for the peer-to-peer
    test."""
    ssh(whole, f"sudo mv {LIBRARIES} /var/tmp/libraries")
    yield whole
    ssh(whole, f"sudo rm -rf {LIBRARIES}; sudo mv /var/tmp/libraries {LIBRARIES}")


def test_plan_shows_all_and_changes_nothing(bare: str, ssh: Ssh) -> None:
    before = ssh(bare, "dpkg-query -W | sha256sum; ls /etc/apt/* | sha256sum").stdout
    found = document("plan", "--host", bare)["hosts"][bare]
    assert found["status"] == "pending"
    assert any(change["disruptive"] for change in found["changes"])
    pinned = next(change for change in found["changes"] if change["step"] == "Driver pinned")
    assert "535.261.03 from cuda" in pinned["after"]
    assert ssh(bare, "dpkg-query -W | sha256sum; ls /etc/apt/* | sha256sum").stdout == before


def test_without_a_yes_nothing_happens(bare: str, ssh: Ssh) -> None:
    done = invoke("provision", "--host", bare)
    assert done.returncode == 2
    assert "--yes" in done.stdout
    assert ssh(bare, "ls /etc/apt/preferences.d").stdout.strip() == ""


@pytest.mark.timeout(600)
def test_first_run_changes_the_host(bare: str) -> None:
    found = document("provision", "--host", bare, "--yes", deadline=550)
    assert found["exit_code"] == 0, not_as_wanted(found)
    assert (found["hosts"][bare]["status"], found["hosts"][bare]["rebooted"]) == ("changed", True)


def test_second_run_changes_nothing(whole: str) -> None:
    found = document("provision", "--host", whole, "--yes")
    host = found["hosts"][whole]
    assert (found["exit_code"], host["status"], host["changes"], host["rebooted"]) == (0, "ok", [], False)
    warned = {finding["check"] for finding in host["findings"] if finding["verdict"] not in ("pass", "info")}
    assert warned == {"driver.patched"}, "535 gets no fixes any more"


COUNTED = """
for program in nvidia-smi python3; do
  printf '#!/bin/sh\\necho "%s $*" >>/run/asked; exec /usr/bin/%s "$@"\\n' "$program" "$program" \\
    >"/usr/local/bin/$program"
  chmod +x "/usr/local/bin/$program"
done
"""
"""Programs before those of the packages in PATH, which note the words that they are called with."""


def test_nvidia_smi_and_nvml_are_asked_once_a_run(whole: str, ssh: Ssh) -> None:
    runs = [("provision", "--yes"), ("verify", "--quick"), ("fleet.check",)]
    for command, *words in runs:
        document(command, "--host", whole, *words)  # remembers what the next one asks for first
    try:
        assert ssh(whole, f"sudo sh -c {shlex.quote(COUNTED)}").returncode == 0
        for command, *words in runs:
            document(command, "--host", whole, *words)
            asked = ssh(whole, "cat /run/asked; sudo rm /run/asked").stdout
            lines = [line for line in asked.splitlines() if line.startswith("nvidia-smi ")]
            assert lines == ["nvidia-smi -q -x"], command
            assert asked.count("gpu_limits.py") == (command != "fleet.check"), command
    finally:
        ssh(whole, "sudo rm -f /usr/local/bin/nvidia-smi /usr/local/bin/python3 /run/asked")


# Peer-to-peer

WHEELS = ROOT / ".lab" / "cache" / "wheels"
LEFT = (
    "ls -d /run/rigwright-* /var/cache/rigwright 2>/dev/null; systemctl is-active rigwright-p2p; ps -eo args | "
    "grep '[n]ccl_p'; :"
)


def _peers(badge: str, *words: str) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Returns the host's part of verify's document, and check and verdict of its peer-to-peer findings, in order."""
    host = document("verify", "--host", badge, *words)["hosts"][badge]
    return host, [(one["check"], one["verdict"]) for one in host["findings"] if one["check"].startswith("p2p.")]


@pytest.mark.nightly
def test_without_libraries_peers_are_not_tested(without_libraries: str, ssh: Ssh) -> None:
    host, found = _peers(without_libraries)
    assert (host["status"], host["p2p"], found) == ("failed", None, [("p2p.ran", "unknown")])
    assert host["verdict"]["sentence"].startswith("Not proved: peer-to-peer test: not run: on the host ")
    refused = invoke("verify", "--host", without_libraries, "--tags", "p2p", "--wheels", "fetch")
    assert (refused.returncode, "cannot use NVIDIA's own libraries" in refused.stdout) == (2, True)
    assert ssh(without_libraries, LEFT).stdout == "inactive\n"


@pytest.mark.nightly
def test_programs_of_others(without_libraries: str, ssh: Ssh) -> None:
    """On a host whose loader finds no NCCL, the lab's nccl-tests run."""
    root = switch.get(without_libraries).root
    built = root / "opt/nccl-tests/build"
    built.mkdir(parents=True)
    for name in ("all_reduce_perf", "sendrecv_perf"):
        write(built / name, (ROOT / "lab/simulators/cuda/nccl_tests.py").read_text(), 0o755)
    for wheel in WHEELS.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            for path in archive.namelist():
                (built / Path(path).name).write_bytes(archive.read(path))
    words = ("--tags", "p2p", "--nccl-tests")
    found = document("verify", "--host", without_libraries, *words)["hosts"][without_libraries]["findings"]
    seen = {(one["check"], one["subject"]): (one["verdict"], one["seen"]) for one in found}
    assert seen["p2p.ran", "peer-to-peer test"][0] == "info"
    verdict, said = seen["nccl_programs.nccl_tests", "all_reduce_perf"]
    assert (verdict, said[-55:]) == (
        "pass",
        "GB/s bus bandwidth, up to 256 MiB, by P2P/direct pointer; data right"[-55:],
    )
    assert seen["nccl_programs.nccl_tests", "sendrecv_perf"][0] == "pass"
    assert ssh(without_libraries, LEFT).stdout == "inactive\n"
    ssh(without_libraries, "sudo rm -r /opt/nccl-tests")


@pytest.mark.nightly
def test_peers_with_libraries_that_are_brought(without_libraries: str, ssh: Ssh) -> None:
    host, found = _peers(without_libraries, "--wheels", str(WHEELS))
    assert {verdict for _, verdict in found} == {"pass", "info"}
    assert [name for name, _ in found].count("p2p.collective") == 2
    p2p = host["p2p"]
    assert (p2p["outcome"], p2p["quick"], len(p2p["pairs"]), len(p2p["judged"])) == ("ok", True, 12, len(found))
    assert {(pair["from"], pair["collective"]["kind"]) for pair in p2p["pairs"]} == {(n, "P2P") for n in range(4)}
    assert ssh(without_libraries, LEFT).stdout == "inactive\n"
    libraries = ssh(without_libraries, "ls /var/lib/rigwright/libraries").stdout
    assert "nvidia-nccl-cu12-2.21.5" in libraries
    again, found = _peers(without_libraries)  # the libraries are on the host, so a plain verify runs the test too
    assert {verdict for _, verdict in found} == {"pass", "info"}
    assert again["p2p"]["libraries"]["libnccl.so.2"] == "/run/rigwright-p2p/libraries/libnccl.so.2"
    assert _peers(without_libraries, "--quick")[1] == []


@pytest.mark.nightly
def test_nobody_is_disturbed(whole: str) -> None:
    with training(whole):
        for words in ((), ("--tags", "p2p")):
            host, found = _peers(whole, *words)
            assert (host["status"], found) == ("failed", [("p2p.ran", "unknown")])
            assert re.search(r"the GPUs are in use by .*sleep of root for \d+ s", host["findings"][0]["seen"])
        assert {verdict for _, verdict in _peers(whole, "--busy")[1]} == {"pass", "info"}


COLLECTIVE = "cd /opt/job; setsid ./all_reduce_perf -b 8M -e 8M -g 4 </dev/null >log 2>&1 & echo $!"
"""A collective on all GPUs, which hangs after the fault peers-hang."""
WAITING = """
for rank in 0 1 2 3; do setsid sleep 600 </dev/null >>/opt/job/log 2>&1 & echo $!; done
touch -d '10 minutes ago' /opt/job/log
"""
"""Four ranks that wait, and have written nothing for ten minutes."""


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (COLLECTIVE, "python3 ({pids}) of ubuntu holds all 4 GPUs: training hangs? Busy without memory access for 3 s"),
        (WAITING, "4 processes of ubuntu hold all 4 GPUs: training hangs? Idle for 3 s, silent for 10 minutes"),
    ],
    ids=["busy", "idle"],
)
def test_a_job_that_hangs_is_named_first(whole: str, ssh: Ssh, job: str, words: str) -> None:
    """The peer-to-peer test cannot run beside it, so nothing is proved, and no verdict says fit."""
    program, state = switch.get(whole).root / "opt/job/all_reduce_perf", switch.get(whole).hw / "volatile" / "state"
    program.parent.mkdir(exist_ok=True)
    program.parent.chmod(0o777)
    write(program, (ROOT / "lab/simulators/cuda/nccl_tests.py").read_text(), 0o755)
    inject.fault(whole, "peers-hang", "", print)
    pids = ssh(whole, job).stdout.split()
    if len(pids) > 1:  # sleep has no CUDA context, so the simulated driver is given one
        with state.open("a") as out:
            out.writelines(f"gpu{gpu}.procs={pid}:1000:python3\n" for gpu, pid in enumerate(pids))
    else:
        time.sleep(2)
    try:
        done = invoke("verify", "--host", whole)
        host, tests = _peers(whole)
    finally:
        ssh(whole, f"kill -9 {' '.join(pids)}; sudo rm -r /opt/job")
        state.write_text("".join(line for line in state.read_text().splitlines(True) if "procs" not in line))
        inject.heal(whole, "peers-hang", print)
    sentence = f"Not proved: jobs on the GPUs: {words.format(pids=pids[0])}"
    assert (done.returncode, host["verdict"]) == (2, {"level": "unknown", "sentence": sentence})
    assert sentence in " ".join(done.stdout.split())
    (test,) = (one for one in host["findings"] if one["check"] == "p2p.ran")
    assert (tests, test["seen"].startswith("not run: the GPUs are in use by ")) == ([("p2p.ran", "unknown")], True)
    (problem,) = (one for one in host["problems"] if one["verdict"] == "unknown")
    assert f"sudo kill {' '.join(pids)}" in [step["command"] for step in problem["steps"]]
    assert _peers(whole)[0]["verdict"]["level"] == "warn", "the driver's age is the only warning"


@pytest.mark.parametrize(
    ("name", "gpu", "check", "subject", "words"),
    [
        pytest.param(
            "p2p-denied", "1", "p2p.copies", "SXM2-2", "no peer access (NVML: chipset)", marks=pytest.mark.nightly
        ),
        pytest.param(
            "peers-hang",
            "",
            "p2p.copies",
            "SXM2-1 to SXM2-4, SXM2-2 to SXM2-3",
            "a copy with peer access hangs",
            marks=pytest.mark.nightly,
        ),
        pytest.param("nvlink-down", "3", "p2p.copies", "SXM2-1 SXM2-4", "far too slow", marks=pytest.mark.nightly),
        pytest.param(
            "nccl-irq-hang",
            "",
            "p2p.collective",
            "all-reduce over 4 GPUs",
            "hang; the same with P2P off",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_peers_that_fail(whole: str, ssh: Ssh, name: str, gpu: str, check: str, subject: str, words: str) -> None:
    inject.fault(whole, name, gpu, print)
    try:
        began = time.monotonic()
        host, _ = _peers(whole)
        assert time.monotonic() - began < 90, "on an idle machine within half a minute, also when every pair hangs"
        worst = next(one for one in host["findings"] if one["check"].startswith("p2p."))
        assert (host["status"], worst["verdict"], worst["check"]) == ("failed", "fail", check)
        assert subject in worst["subject"]
        assert worst["seen"].startswith(words)
        assert worst["cause"]
        assert worst["fix"]
        assert ssh(whole, LEFT).stdout == "inactive\n"
    finally:
        inject.heal(whole, name, print)


@pytest.mark.nightly
def test_settings_that_somebody_left(whole: str, ssh: Ssh) -> None:
    ssh(whole, "echo export NCCL_P2P_DISABLE=1 | sudo tee /etc/profile.d/nccl.sh")
    try:
        host, _ = _peers(whole)
        (found,) = (one for one in host["findings"] if one["check"] == "p2p.settings")
        assert found["verdict"] == "warn"
        assert "NCCL_P2P_DISABLE=1 in /etc/profile.d/nccl.sh: all-reduce at 5" in found["seen"]
    finally:
        ssh(whole, "sudo rm /etc/profile.d/nccl.sh")


def test_all_of_it_holds_after_a_reboot_by_hand(whole: str, ssh: Ssh) -> None:
    reboot(whole)
    ssh(whole, "systemctl is-system-running --wait", 60)
    query = (
        "nvidia-smi --query-gpu=persistence_mode,power.limit,clocks.applications.memory,clocks.applications.graphics "
        "--format=csv,noheader"
    )
    assert ssh(whole, query).stdout.splitlines() == ["Enabled, 200.00 W, 877 MHz, 1005 MHz"] * 4
    assert "iommu=pt" in ssh(whole, "cat /proc/cmdline").stdout.split()
    assert "nvidia-headless-535" in ssh(whole, "apt-mark showhold").stdout.split()
    assert "535.261.03" in ssh(whole, "apt-cache policy nvidia-headless-535 | grep Candidate").stdout
    moving = ssh(whole, "sudo apt-get -s dist-upgrade | grep -E '^(Inst|Remv)' | grep -i nvidia", 60).stdout
    assert moving == ""
    assert "535.261.03" in ssh(whole, "cat /proc/driver/nvidia/version").stdout
    assert ssh(whole, "systemctl is-active gpu-limits.service").stdout.strip() == "active"


def test_the_report_page_and_the_acceptance_sheet(whole: str, ssh: Ssh, tmp_path: Path) -> None:
    page, sheet = tmp_path / "page.html", tmp_path / "sheet.html"
    found = document("verify", "--host", whole, "--quick", "--html", str(page))
    machine = found["hosts"][whole]["machine"]
    serials = ssh(whole, "nvidia-smi --query-gpu=serial --format=csv,noheader").stdout.split()
    assert [one["serial"] for one in machine["gpus"]] == serials
    assert [one["position"] for one in machine["gpus"]] == ["SXM2-1", "SXM2-2", "SXM2-3", "SXM2-4"]
    assert [(one["up"], one["down"], one["expected"]) for one in machine["nvlinks"]] == [(2, 0, 2)] * 6
    assert {one["host_bridge"] for one in machine["bus"]} == {"pci0000:00"}
    assert machine["unknown"] == {}
    assert all(serial in page.read_text() for serial in serials)
    done = invoke("accept", "--host", whole, "--quick", "--html", str(sheet))
    assert done.returncode == 0, done.stdout
    assert "no flaw found" in done.stdout
    assert all(serial in done.stdout and serial in sheet.read_text() for serial in serials)
    assert "Sign-off" in sheet.read_text()
    inject.fault(whole, "nvlink-down", "1", print)
    inject.fault(whole, "gpu-lost", "3", print)
    done = invoke("accept", "--host", whole, "--quick", "--html", str(sheet))
    inject.heal(whole, "", print)
    assert done.returncode == 2
    assert "GPU is lost" in done.stdout
    assert "1 of 2" in sheet.read_text()
    assert all(serial in sheet.read_text() for serial in serials[:3])


def test_limits_show_apply_reset(whole: str, ssh: Ssh) -> None:
    assert invoke("limits", "--host", whole, "--show").returncode == 0
    ssh(whole, "sudo nvidia-smi -i 1 -pl 250")
    drift = document("limits", "--host", whole, "--show")
    rows = drift["hosts"][whole]["gpus"]
    assert drift["exit_code"] == 2
    assert [row["power"]["drift"] for row in rows] == [False, True, False, False]
    mended = document("limits", "--host", whole)["hosts"][whole]
    uuid = ssh(whole, "nvidia-smi -i 1 --query-gpu=uuid --format=csv,noheader").stdout
    assert [change["subject"] for change in mended["changes"]] == [f"SXM2-2 0000:07:00.0 {uuid[:12]} power limit"]
    assert document("limits", "--host", whole, "--reset")["exit_code"] == 0
    assert (
        ssh(whole, "nvidia-smi --query-gpu=power.limit --format=csv,noheader").stdout.splitlines() == ["300.00 W"] * 4
    )
    assert document("limits", "--host", whole)["exit_code"] == 0
    assert document("verify", "--host", whole)["exit_code"] == 0


@pytest.mark.nightly
def test_what_a_gpu_forgets_is_given_again_and_what_somebody_set_is_left(whole: str, ssh: Ssh) -> None:
    """The timer restores values after a GPU reset; the same service, started here, does so after a module load.

    Values that somebody else has set stay.
    """
    power = "nvidia-smi --query-gpu=power.limit,clocks.applications.graphics --format=csv,noheader,nounits"
    ours = ["200.00, 1005"] * 4
    ssh(whole, "sudo nvidia-smi -i 3 -r && sudo nvidia-smi -i 1 -pl 250")
    assert ssh(whole, power).stdout.splitlines()[3] != ours[3]
    until(lambda: ssh(whole, power).stdout.splitlines()[3] == ours[3], "the timer gives GPU 3 its limits", 150)
    assert ssh(whole, power).stdout.splitlines() == [ours[0], "250.00, 1005", *ours[2:]]
    found = document("verify", "--host", whole, "--tags", "limits")
    assert found["exit_code"] == 2
    failed = {one["subject"].split()[0] for one in found["hosts"][whole]["findings"] if one["verdict"] == "fail"}
    assert "SXM2-2" in failed
    assert not failed & {"SXM2-1", "SXM2-3", "SXM2-4"}
    unload = "modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia"
    ssh(whole, f"sudo systemctl stop nvidia-persistenced && sudo {unload} && sudo modprobe nvidia")
    assert ssh(whole, power).stdout.splitlines()[0] != ours[0]
    ssh(whole, "sudo systemctl start nvidia-persistenced gpu-limits-watch.service")
    assert ssh(whole, power).stdout.splitlines() == ours


def test_a_gpu_lost_does_not_keep_the_others_from_their_limits(whole: str, ssh: Ssh) -> None:
    ssh(whole, "sudo nvidia-smi -pl 260")
    inject.fault(whole, "gpu-lost", "2", print)
    try:
        done = document("limits", "--host", whole)
        host = done["hosts"][whole]
        assert done["exit_code"] == 1
        assert "SXM2-3" in json.dumps(host["error"]), host["error"]
        others = ssh(whole, "for i in 0 1 3; do nvidia-smi -i $i --query-gpu=power.limit --format=csv,noheader; done")
        assert others.stdout.splitlines() == ["200.00 W"] * 3
        assert document("limits", "--host", whole, "--show")["exit_code"] == 1
    finally:
        inject.heal(whole, "gpu-lost", print)
    assert document("limits", "--host", whole)["exit_code"] == 0


def test_a_limit_that_no_gpu_has_names_the_nearest(whole: str, tmp_path: Path) -> None:
    def told(**limits: object) -> dict[str, str]:
        done = document("limits", "--inventory", inventory(tmp_path, **{whole: {"limits": limits}}))
        assert done["exit_code"] == 1
        error: dict[str, str] = done["hosts"][whole]["error"]
        return error

    clocks = told(application_clocks={"memory_mhz": 877, "graphics_mhz": 1001})
    assert "877,1001 MHz" in clocks["found"]
    assert "877,997 MHz and 877,1005 MHz" in clocks["expected"]
    assert "150 to 300 W" in told(power_limit_w=20)["expected"]


@pytest.mark.nightly
def test_a_stale_initramfs_is_seen_before_the_reboot(whole: str, ssh: Ssh) -> None:
    ssh(whole, "sudo touch -d '2001-01-01' /boot/initrd.img-$(uname -r)")
    found = document("plan", "--host", whole)["hosts"][whole]
    assert [change["subject"].split(" of ")[0] for change in found["changes"]] == ["initramfs"]
    assert document("provision", "--host", whole, "--yes", "--wheels", "none")["hosts"][whole]["status"] == "changed"


@pytest.mark.nightly
def test_another_version_of_the_driver(spoilt: str, ssh: Ssh, tmp_path: Path) -> None:
    """A downgrade to an exact release changes the pin, all driver packages, the holds and the loaded module together.

    It needs no reboot, because no process uses the GPUs. `modules: dkms` because the release may be too old for the
    kernel of the machine that runs the test; the lab's modules build for every kernel.
    """
    where = inventory(tmp_path, **{spoilt: {"driver": {"branch": "535", "version": "535.183.01", "modules": "dkms"}}})
    words = ("--inventory", where, "--yes", "--wheels", "none")
    found = document("provision", *words)["hosts"][spoilt]
    assert (found["status"], found["rebooted"]) == ("changed", False)
    assert "535.183.01" in ssh(spoilt, "nvidia-smi --query-gpu=driver_version --format=csv,noheader").stdout
    held = ssh(spoilt, "apt-mark showhold").stdout.split()
    driver = " ".join(name for name in held if "nvidia" in name)
    versions = ssh(spoilt, f"dpkg-query -W -f '${{Version}}\\n' {driver}").stdout.split()
    assert {version.split("-")[0] for version in versions} == {"535.183.01"}
    assert document("provision", *words)["hosts"][spoilt]["changes"] == []
