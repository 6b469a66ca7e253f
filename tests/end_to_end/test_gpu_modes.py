"""ECC, MIG, CUDA toolkits and DCGM on a host with eight A100: set, in force after one reboot, made again at every boot,
taken away."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import reboot, ssh, training
from tests.end_to_end.rw import document, inventory, invoke, not_as_wanted
from tests.end_to_end.test_rigs import Server, server_with_driver

pytestmark = [pytest.mark.lab, pytest.mark.nightly, pytest.mark.timeout(900)]

NAME, RIG = "t-modes", "a100"
LAYOUT = ["1g.5gb", "3g.20gb/1c+2c", "2g.10gb", "1g.5gb"]
MODES: dict[str, Any] = {
    "ecc": {"enabled": False, "gpus": {"SXM4-7": True}},
    "mig": {"SXM4-0": LAYOUT, "SXM4-1": ["7g.40gb"]},
}


@pytest.fixture(scope="module")
def server(snapshots: Path, lab_root: None) -> Iterator[Server]:  # noqa: ARG001
    """Yields a host with the driver loaded."""
    with server_with_driver(NAME, RIG, snapshots) as one:
        ssh(NAME, "echo nvidia | sudo tee /etc/modules-load.d/nvidia.conf")
        one.has_the_driver()
        ssh(NAME, "sudo systemctl enable nvidia-fabricmanager")
        yield one


def wanted(folder: Path, **variables: Any) -> list[str]:
    """The words for a run with these variables in the inventory."""
    limits = {"ecc": None, "mig": None, "limits": {"power_limit_w": 300, "persistence": True}}
    return [
        "--host",
        NAME,
        "--inventory",
        inventory(folder, **{NAME: {**limits, **variables}}),
        "--tags",
        "ecc,mig,limits",
    ]


def ecc() -> str:
    return ssh(NAME, "nvidia-smi --query-gpu=ecc.mode.current --format=csv,noheader").stdout.replace("\n", " ").strip()


def instances() -> list[str]:
    """The MIG devices by nvidia-smi -L, without their UUIDs."""
    lines = ssh(NAME, "nvidia-smi -L").stdout.splitlines()
    return [line.split("(")[0].split("Device")[0].strip() for line in lines if line.startswith("  MIG")]


def test_set_in_force_made_again_and_taken_away(server: Server, tmp_path: Path) -> None:  # noqa: ARG001
    words = wanted(tmp_path, **MODES)
    assert ecc() == " ".join(["Enabled"] * 8)
    with training(NAME):
        refused = invoke("provision", *words, "--yes")
        assert refused.returncode in (1, 2)
        assert "in use by" in " ".join((refused.stdout + refused.stderr).split())
    assert ecc() == " ".join(["Enabled"] * 8)

    boots = ssh(NAME, "cat /proc/sys/kernel/random/boot_id").stdout
    done = document("provision", *words, "--yes", deadline=400)
    assert done["exit_code"] == 0, not_as_wanted(done)
    assert ssh(NAME, "cat /proc/sys/kernel/random/boot_id").stdout != boots
    assert ecc() == " ".join(["Disabled"] * 7 + ["Enabled"])
    made = ["MIG 1c.3g.20gb", "MIG 2c.3g.20gb", "MIG 2g.10gb", "MIG 1g.5gb", "MIG 1g.5gb", "MIG 7g.40gb"]
    assert sorted(instances()) == sorted(made)
    limits = ssh(NAME, "nvidia-smi --query-gpu=power.limit --format=csv,noheader,nounits").stdout.split()
    assert limits == ["300.00"] * 8
    again = document("provision", *words, "--yes")
    assert (again["exit_code"], again["hosts"][NAME]["changes"]) == (0, []), not_as_wanted(again)

    reboot(NAME)
    ssh(NAME, "systemctl is-system-running --wait", 120)
    assert sorted(instances()) == sorted(made)
    verified = document("verify", *words)
    assert verified["exit_code"] == 0, not_as_wanted(verified)
    ssh(NAME, "sudo nvidia-smi mig -i 1 -dci && sudo nvidia-smi mig -i 1 -dgi")
    lost = document("verify", *words)
    failed = [
        one
        for one in lost["hosts"][NAME]["findings"]
        if one["check"] == "gpu.mig_in_force" and one["verdict"] == "fail"
    ]
    assert [one["seen"] for one in failed] == ["MIG on, without instances"]

    stress = invoke("stress", "--host", NAME, "--inventory", words[3], "--yes")
    assert "MIG is on on 0000:07:00.0 and 1 more, and a stress loads whole GPUs" in " ".join(
        (stress.stdout + stress.stderr).split()
    )
    too_much = wanted(tmp_path / "too_much", **(MODES | {"mig": {"SXM4-0": ["3g.20gb", "3g.20gb", "1g.5gb"]}}))
    refused = invoke("provision", *too_much, "--yes")
    assert refused.returncode == 1
    text = " ".join((refused.stdout + refused.stderr).split())
    assert "the placements that the driver lists have no room for 3g.20gb, 3g.20gb, 1g.5gb" in text
    off = wanted(tmp_path / "off", mig=False)
    done = document("provision", *off, "--yes")
    assert done["exit_code"] == 0, not_as_wanted(done)
    assert instances() == []
    removed = invoke("remove", "--host", NAME, "--inventory", words[3], "--yes")
    assert removed.returncode == 0, removed.stdout + removed.stderr
    left = ssh(
        NAME,
        "systemctl is-active gpu-mig; sudo find /etc /usr/local -name '*gpu-mig*' -o -name '*mig.json' -o -name "
        "gpu_mig.py",
    )
    assert left.stdout == "inactive\n"
    modes = json.loads(
        ssh(
            NAME,
            "nvidia-smi --query-gpu=mig.mode.current --format=csv,noheader | sort -u | python3 -c 'import json,sys; "
            "print(json.dumps(sys.stdin.read().split()))'",
        ).stdout
    )
    assert modes == ["Disabled"]


def test_two_cuda_toolkits_and_the_older_one_is_the_default(server: Server, tmp_path: Path) -> None:  # noqa: ARG001
    cuda = {"toolkit": "12.2", "beside": ["12.4"]}
    words = wanted(tmp_path, cuda=cuda)[:-1]
    done = document("provision", *words, "cuda", "--yes", deadline=400)
    assert done["exit_code"] == 0, not_as_wanted(done)
    told = ssh(
        NAME,
        "readlink -f /usr/local/cuda; sh -lc 'nvcc --version' | grep -o 'release [0-9.]*'; ls -d /usr/local/cuda-12.*",
    )
    assert told.stdout.split("\n")[:2] == ["/usr/local/cuda-12.2", "release 12.2"]
    assert {"/usr/local/cuda-12.2", "/usr/local/cuda-12.4"} <= set(told.stdout.split())
    again = document("provision", *words, "cuda", "--yes")
    assert (again["exit_code"], again["hosts"][NAME]["changes"]) == (0, []), not_as_wanted(again)
    other = wanted(tmp_path / "other", cuda={"toolkit": "12.4", "beside": ["12.2"]})[:-1]
    done = document("provision", *other, "cuda", "--yes")
    assert done["exit_code"] == 0, not_as_wanted(done)
    assert ssh(NAME, "readlink -f /usr/local/cuda").stdout == "/usr/local/cuda-12.4\n"


def test_dcgm_runs_and_names_each_gpu(server: Server, tmp_path: Path) -> None:  # noqa: ARG001
    words = wanted(tmp_path, dcgm=True)[:-1]
    done = document("provision", *words, "dcgm", "--yes", deadline=400)
    assert done["exit_code"] == 0, not_as_wanted(done)
    (seen,) = [one["seen"] for one in done["hosts"][NAME]["findings"] if one["check"] == "dcgm.discovers"]
    assert seen == "8 GPUs in dcgmi discovery -l"
    held = ssh(NAME, "apt-mark showhold | grep datacenter; dcgmi --version").stdout.splitlines()
    assert held[:2] == ["datacenter-gpu-manager-4-core", "datacenter-gpu-manager-4-cuda13"]
    assert "stand-in" in held[2]
    again = document("provision", *words, "dcgm", "--yes")
    assert (again["exit_code"], again["hosts"][NAME]["changes"]) == (0, []), not_as_wanted(again)
    ssh(NAME, "sudo systemctl stop nvidia-dcgm")
    stopped = document("verify", *words, "dcgm")
    assert stopped["exit_code"] == 2
    assert any(one["seen"] == "enabled, inactive" for one in stopped["hosts"][NAME]["findings"])


def test_metrics_for_prometheus_without_a_guard_that_acts(server: Server, tmp_path: Path) -> None:  # noqa: ARG001
    words = wanted(tmp_path, metrics="textfile", guard=None)[:-1]
    done = document("provision", *words, "metrics", "--yes", deadline=400)
    assert done["exit_code"] == 0, not_as_wanted(done)
    verified = document("verify", *words, "metrics")
    assert verified["exit_code"] == 0, not_as_wanted(verified)
    text = ssh(NAME, "curl -s http://127.0.0.1:9100/metrics").stdout
    assert text.count("rigwright_guard_gpu_temperature_celsius{") == 8
    assert json.loads(ssh(NAME, "sudo cat /etc/rigwright/guard.json").stdout)["steps"] == []
    again = document("provision", *words, "metrics", "--yes")
    assert (again["exit_code"], again["hosts"][NAME]["changes"]) == (0, []), not_as_wanted(again)
