"""`stress` on a servbadge: a healthy host, every fault by its name, a GPU that is lost in the middle, and what is
refused."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.faults import inject
from lab.hardware import hw_state
from lab.power import switch
from tests.end_to_end.conftest import Ssh, reboot, training
from tests.end_to_end.rw import document, invoke, on_terminal, read_until, start
from tests.end_to_end.test_rigs import server_with_driver

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]
NAME, RIG = "t-stress", "servbadge"
LEFT = (
    "systemctl list-units --all --plain --no-legend 'rigwright*'; ls -d /run/rigwright[-.]* /var/lib/rigwright/recordings/* 2>/dev/null;"
    " nvidia-smi --query-compute-apps=pid --format=csv,noheader; pgrep -fa '[s]tress.py|[r]ecorder.py'; :"
)


@pytest.fixture(scope="module")
def host(snapshots: Path) -> Iterator[str]:
    """Yields the name of a host with a driver and without CUDA; a second of heat is a minute."""
    with server_with_driver(NAME, RIG, snapshots):
        hw_state.edit(switch.get(NAME).hw, volatile={"heat.speed": 60})
        yield NAME


@pytest.fixture
def healed(host: str, ssh: Ssh) -> Iterator[str]:
    """Yields the name of the host, whose faults end with the test. With a boot a lost GPU comes back, and the kernel
    log forgets it."""
    yield host
    inject.heal(host, "", print)
    hw_state.edit(switch.get(host).hw, volatile={"supply1.out": "", "supply2.out": ""})
    if len(ssh(host, "nvidia-smi -L").stdout.splitlines()) != 4 or "NVRM: Xid" in ssh(host, "sudo dmesg").stdout:
        reboot(host)
        hw_state.edit(switch.get(host).hw, volatile={"heat.speed": 60})


def stressed(folder: Path, code: int, minutes: str = "0.1") -> tuple[dict[str, Any], str]:
    """Runs `stress` on the host; returns the document's part about the host, and the text."""
    file = folder / "stress.json"
    done = invoke("stress", "--host", NAME, "--minutes", minutes, "--yes", "--json", str(file), deadline=400)
    assert done.returncode == code, done.stdout + done.stderr
    host = json.loads(file.read_text())["hosts"][NAME]
    assert isinstance(host, dict)
    return host, done.stdout


def found(host: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """Returns the bad findings by the position of the GPU (or the subject) and the symptom, else the check."""
    bad = [one for one in host["findings"] if one["verdict"] in ("fail", "warn")]
    return {(one["subject"].partition(" ")[0], one["symptom"] or one["check"]): one for one in bad}


def begin(*words: str) -> subprocess.Popen[str]:
    return start("stress", "--host", NAME, "--yes", *words, COLUMNS="200")


@pytest.fixture(scope="module")
def before(host: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:  # noqa: ARG001
    """Returns what `stressed` returns for the healthy host; the history has this stress."""
    return stressed(tmp_path_factory.mktemp("before"), 0)


@pytest.mark.nightly
def test_a_healthy_host(healed: str, before: tuple[dict[str, Any], str], ssh: Ssh) -> None:
    host, text = before
    assert "Fit for work" in text
    assert [stage["outcome"] for stage in host["stress"]["stages"]] == ["ok"] * 10
    assert host["stress"]["supplies"]["watts"].keys() == {"PS1 Power", "PS2 Power", "PS3 Power"}
    assert ssh(healed, LEFT).stdout == "", "nothing is left on the host"


@pytest.mark.nightly
def test_a_supply_that_is_out_takes_a_gpu_off_the_bus(healed: str, tmp_path: Path) -> None:
    """The remaining two hold while the load is steady, and not when all GPUs ramp together."""
    inject.fault(healed, "supply-out", "", print)
    host, _ = stressed(tmp_path, 2, "0.3")
    bad = found(host)
    assert "AC lost" in bad["PS1", "power.supply_lost"]["seen"]
    lost = next(one for (_, symptom), one in bad.items() if symptom == "gpu.off_bus")
    assert "in the stage: " in lost["seen"]
    assert "in the stage: alone" not in lost["seen"], "it worked alone"


@pytest.mark.nightly
@pytest.mark.usefixtures("before")
def test_each_fault_has_its_name(healed: str, tmp_path: Path) -> None:
    for fault, gpu in (("slow-gpu", "0"), ("wrong-bit", "1"), ("poor-joint", "")):
        inject.fault(healed, fault, gpu, print)
    host, _ = stressed(tmp_path, 2, "0.2")
    bad = found(host)
    assert "at the same clocks" in bad["SXM2-1", "load.speed"]["seen"]
    assert "if the slowness moves with the GPU, return it" in bad["SXM2-1", "load.speed"]["fix"]
    assert "take it out of use" in bad["SXM2-2", "gpu.wrong_results"]["fix"]
    assert "12 V connection of that supply" in bad["PS1", "power.share"]["fix"]
    before = bad["SXM2-1", "load.as_before"]
    assert "at the same power limit" in before["seen"], "slower than in its own earlier stress"
    diff = invoke("history.diff", NAME, "--since", "1h")
    line = next(line for line in diff.stdout.splitlines() if "stress.measured[" in line)
    assert "slower than on" in line, diff.stdout
    assert "at the same power limit" in line, diff.stdout
    inject.heal(healed, "", print)
    # Hot GPUs are slow, with which others would be compared: they have a stress of their own.
    for fault, gpu in (("fan-dead", "2"), ("memory-hot", "3")):
        inject.fault(healed, fault, gpu, print)
    host, _ = stressed(tmp_path, 2, "0.25")
    bad = found(host)
    hot = next(
        bad["SXM2-3", key]
        for key in ("thermal.hardware", "thermal.software", "thermal.memory")
        if ("SXM2-3", key) in bad
    )
    assert "slow" in hot["seen"] or "memory is at" in hot["seen"]
    assert "its memory is at" in bad["SXM2-4", "thermal.memory"]["seen"]


@pytest.mark.nightly
def test_a_gpu_is_lost_in_the_middle_and_a_second_stress_is_refused(healed: str, tmp_path: Path, ssh: Ssh) -> None:
    file = tmp_path / "lost.json"
    process = begin("--minutes", "0.3", "--json", str(file))
    read_until(process, "alone, GPU 0: ok")
    second = invoke("stress", "--host", NAME, "--minutes", "0.1", "--yes")
    assert second.returncode == 1
    assert "the GPUs are in use by" in second.stdout + second.stderr
    read_until(process, "together, 2 GPUs")
    inject.fault(healed, "gpu-lost", "1", print)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 2, out
    host = json.loads(file.read_text())["hosts"][NAME]
    lost = found(host)["SXM2-2", "gpu.off_bus"]
    assert "fell off the bus after" in lost["seen"]
    assert "Xid 79" in lost["seen"]
    assert "every supply is there and delivers" in lost["fix"], "it was well while it worked alone"
    soak = host["stress"]["stages"][-1]
    assert (soak["stage"], [one["gpu"] for one in soak["results"]], soak["outcome"]) == ("soak", [0, 2, 3], "ok")
    assert "stress.py" not in ssh(healed, LEFT).stdout


@pytest.mark.nightly
def test_the_stress_of_a_killed_controller_is_continued(healed: str, tmp_path: Path, ssh: Ssh) -> None:
    """The same command waits for it and reads its result; another command ends with what to do."""
    file = tmp_path / "continued.json"
    process = begin("--minutes", "0.5")
    read_until(process, "alone, GPU 0: ok")
    process.kill()
    process.wait()
    log = ssh(healed, "sudo stat -c %i /run/rigwright-p2p/log").stdout
    other = invoke("train.smoke", "--host", NAME, "--python", "/usr/bin/python3", "--yes")
    assert other.returncode == 1
    text = " ".join((other.stdout + other.stderr).split())
    assert "the GPUs are in use by your stress of" in text
    assert "at once with: sudo systemctl stop rigwright-p2p" in text
    again = begin("--minutes", "0.5", "--json", str(file))
    read_until(again, "continues your stress of")
    assert ssh(healed, "sudo stat -c %i /run/rigwright-p2p/log").stdout == log
    out, _ = again.communicate(timeout=300)
    assert again.returncode == 0, out
    host = json.loads(file.read_text())["hosts"][NAME]
    assert host["stress"]["stages"][0]["stage"] == "alone"
    assert "stress.py" not in ssh(healed, LEFT).stdout


@pytest.mark.nightly
def test_a_reset_in_the_middle_is_explained_by_the_next_verify(healed: str, tmp_path: Path, ssh: Ssh) -> None:
    """Two of three supplies fail while all GPUs work; the third cannot carry them, and the machine resets."""
    file = tmp_path / "reset.json"
    process = begin("--minutes", "0.5", "--json", str(file))
    read_until(process, "in step: ok")  # so the soak runs, with all four
    hw_state.edit(switch.get(healed).hw, volatile={"supply1.out": 1, "supply2.out": 1})
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 1, out
    error = json.loads(file.read_text())["hosts"][NAME]["error"]
    assert "booted again at" in error["found"], error
    verify = document("verify", "--host", NAME, "--tags", "hardware", "--quick")
    (said,) = [one for one in verify["hosts"][NAME]["findings"] if one["check"] == "recording.explained"]
    assert said["verdict"] == "warn"
    assert "last seen" in said["seen"]
    assert "the machine was off by" in said["seen"]
    assert "power.plan --rig servbadge" in said["fix"]
    assert "stress.py" not in ssh(healed, LEFT).stdout


@pytest.mark.nightly
def test_what_is_refused_and_ctrl_c(healed: str, ssh: Ssh) -> None:
    done = invoke("stress", "--host", NAME, "--minutes", "0", "--yes")
    assert done.returncode == 1
    assert "'0' is no duration in minutes" in done.stdout + done.stderr
    with training(healed):
        done = invoke("stress", "--host", NAME, "--yes")
        assert done.returncode == 1
        assert "the GPUs are in use by" in done.stdout + done.stderr
    code, text = on_terminal([("Load these GPUs with all that they can do?", "no")], "stress", "--host", NAME)
    assert code == 2, text
    process = begin("--minutes", "5")
    read_until(process, "alone, GPU 0: ok")
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 130, out
    assert ssh(healed, LEFT).stdout == "", "no process is left on a GPU, and nothing on the host"
