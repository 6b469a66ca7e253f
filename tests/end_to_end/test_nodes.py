"""Three T181 as the nodes of one training: the slow one, the one that is away and the one with another driver are
named; nothing stays behind.

TCP between them is real, and so is NCCL's all-reduce, as far as the simulated NCCL sends bytes; torch is a stand-in.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.cli import commands
from lab.faults import inject
from lab.power import switch
from lab.simulators.cuda.build import build
from lab.simulators.nvml.bare import CACHE
from tests.end_to_end.conftest import ssh
from tests.end_to_end.rw import document, inventory, invoke, not_as_wanted, start, until
from tests.end_to_end.test_rigs import Server
from tests.end_to_end.test_training import STAND_IN, TORCHRUN, VERSION

pytestmark = [pytest.mark.lab, pytest.mark.nightly, pytest.mark.timeout(900)]

NAMES = ("t-node1", "t-node2", "t-node3")
NVRM = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Thu Jan 1 00:00:00 UTC 2026\n"


@pytest.fixture(scope="module")
def nodes(lab_root: None) -> Iterator[tuple[str, ...]]:  # noqa: ARG001
    """Yields the names of three hosts without a driver that reach each other through the bridge of the lab."""
    try:
        boot()
        yield NAMES
    finally:
        for name in NAMES:
            commands.down(name=name, say=print)


def boot(**disk: Any) -> None:
    """Boots the three with an empty disk, or with that of `commands.up`."""
    for name in NAMES:
        commands.down(name=name, say=print)
        commands.up(name=name, rig="t181", **disk, say=print)


def given(folder: Path, **keys: Any) -> list[str]:
    """The words of a measurement of the links between the three."""
    hosts = {name: dict(keys) for name in NAMES}
    return ["--nodes", "--links", "--host", "gpu", "--inventory", inventory(folder, **hosts), "--yes"]


@pytest.fixture
def trained(nodes: tuple[str, ...], snapshots: Path) -> Iterator[str]:
    """Yields the interpreter of an environment with a stand-in for torch and the simulated NCCL, on three nodes with
    the driver loaded."""
    server = Server("t181")
    boot(distro=server.distro, snapshot=server.with_driver(snapshots))
    distributed: list[Path] = []
    for name in nodes:
        server.host = name
        server.has_the_driver()
        version = server.does("python3 -c 'import sys; print(\"%d.%d\" % sys.version_info[:2])'").strip()
        environment = switch.get(name).root / "opt/train"
        packages = environment / f"lib/python{version}/site-packages"
        shutil.copytree(STAND_IN, packages / "torch")
        said = json.dumps(
            {
                "version": VERSION,
                "gpus": [["Tesla V100-SXM2-16GB", 7, 0]] * 4,
                "flags": "sm_60 sm_70",
                "nccl": [2, 21, 5],
            }
        )
        init = packages / "torch/__init__.py"
        init.write_text(init.read_text().replace('os.environ.get("TORCH_STAND_IN", "{}")', repr(said)))
        (packages / "torch/distributed/run.py").write_text(TORCHRUN)
        distributed.append(packages / "torch/distributed")
        build("nccl", "2.21.5+cuda12.4", packages / "nvidia/nccl/lib", CACHE)
        build("cudart", "12.4.127", packages / "nvidia/cuda_runtime/lib", CACHE)
        (environment / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
        (environment / "bin").mkdir()
        (environment / "bin/python").symlink_to("/usr/bin/python3")
    addresses = json.dumps([str(switch.get(name).address) for name in nodes])
    for folder in distributed:
        (folder / "addresses.json").write_text(addresses)
    yield "/opt/train/bin/python"
    boot()


def found_on(result: dict[str, Any], host: str, check: str) -> list[tuple[str, str]]:
    """The verdict and what was seen of each finding of a check on a host."""
    return [(one["verdict"], one["seen"]) for one in result["hosts"][host]["findings"] if one["check"] == check]


def of_links(result: dict[str, Any], host: str) -> list[str]:
    """The verdicts on the links of a host; that a link is slower than its port, which a busy machine makes true, counts
    as "pass"."""
    links = [one for one in result["hosts"][host]["findings"] if one["check"] == "nodes.links"]
    return ["pass" if str(one["expected"]).endswith("rate of the slower port") else one["verdict"] for one in links]


def at_work(name: str) -> str:
    """The programs of a measurement that run on a host."""
    return ssh(name, "pgrep -af '[n]ode_(link|train)|[d]dp_smoke|[n]ccl_nodes' || :").stdout.strip()


def test_well_then_a_slow_node_and_adapters(nodes: tuple[str, ...], tmp_path: Path) -> None:
    one, two, three = nodes
    well = document("train.smoke", *given(tmp_path / "well"))
    assert well["exit_code"] == 0, not_as_wanted(well)
    for name in nodes:
        assert of_links(well, name) == ["pass", "pass"]
        assert found_on(well, name, "nodes.adapters") == [
            ("pass", "mlx5_0:1: InfiniBand: the fastest ports with a link (100 Gb/s)")
        ]
    assert [node["hcas"] for node in well["hosts"][one]["nodes"]["nodes"]] == [["mlx5_0:1"]] * 3

    for host, fault in ((two, "slow-network"), (two, "ib-slow")):
        inject.fault(host, fault, "", print)
    slow = document("train.smoke", *given(tmp_path / "slow"))
    assert slow["exit_code"] == 2
    verdict, seen = found_on(slow, two, "nodes.links")[0]
    assert verdict == "fail"
    assert re.match(r"this node is slow: it sends at most 0\.[01]", seen), seen
    assert of_links(slow, one) == ["info", "pass"]
    assert any(f"slow because {two} is" in seen for _, seen in found_on(slow, three, "nodes.links"))
    assert found_on(slow, two, "nodes.adapters")[0][1].endswith("(25 Gb/s); mlx5_0:1 1X EDR")
    for columns in ("80", "120"):
        shown = invoke("train.smoke", *given(tmp_path / "shown"), COLUMNS=columns)
        assert shown.returncode == 2
        assert any(line.startswith(two) and line.endswith("slow") for line in shown.stdout.splitlines()), shown.stdout

    inject.heal(two, "", print)
    inject.fault(three, "ib-down", "", print)
    down = document("train.smoke", *given(tmp_path / "down"))
    assert found_on(down, one, "nodes.adapters") == [("info", f"TCP: {three}: mlx5_0:1 is DOWN (Polling)")]
    assert found_on(down, three, "nodes.adapters")[0][0] == "warn"
    inject.heal(three, "", print)
    assert [at_work(name) for name in nodes] == ["", "", ""]


def test_a_firewall_and_a_port_that_is_taken_are_named(nodes: tuple[str, ...], tmp_path: Path) -> None:
    one, two, three = nodes
    ssh(one, "sudo systemd-run -q --unit=taken python3 -m http.server 29400")
    try:
        taken = document("train.smoke", *given(tmp_path))
    finally:
        ssh(one, "sudo systemctl stop taken")
    assert taken["exit_code"] == 2
    seen = [seen for _, seen in found_on(taken, two, "nodes.links")]
    assert any("port 29400" in text and "the port is in use by another program" in text for text in seen), seen

    address = taken["hosts"][two]["address"]
    ssh(
        one, f"sudo ip route add blackhole {address}/32"
    )  # what a firewall does that drops: the answers of `one` never arrive
    try:
        dropped = document("train.smoke", *given(tmp_path / "dropped"))
    finally:
        ssh(one, f"sudo ip route delete blackhole {address}/32")
    assert dropped["exit_code"] == 2
    failed = [seen for verdict, seen in found_on(dropped, two, "nodes.links") if verdict == "fail"]
    assert len(failed) == 1
    assert failed[0].endswith("no answer: a firewall drops it, or the link is down"), failed
    assert [seen.startswith("sends ") for _, seen in found_on(dropped, three, "nodes.links")] == [True, True]


def test_what_is_refused_before_anything_starts(nodes: tuple[str, ...], tmp_path: Path) -> None:
    one, two, three = nodes
    missing = invoke("train.smoke", *given(tmp_path / "missing", nodes={"interface": "ens9"}))
    assert missing.returncode == 1
    assert "the host has no interface ens9" in missing.stdout + missing.stderr

    hw = {name: switch.get(name).hw / "proc/nvidia/version" for name in nodes}
    for name, path in hw.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(NVRM.format("550.54.14" if name == three else "535.183.01"))
    try:
        unlike = invoke("train.smoke", *given(tmp_path / "unlike"))
        assert unlike.returncode == 1
        words = " ".join((unlike.stdout + unlike.stderr).split())
        assert f"nothing was started: driver: {three} has 550.54.14; {one}, {two} 535.183.01" in words
        accepted = invoke("train.smoke", *given(tmp_path / "accepted"), "--unlike")
        assert accepted.returncode == 0, accepted.stdout
    finally:
        for path in hw.values():
            path.unlink()

    away = invoke(
        "train.smoke",
        *given(tmp_path / "away")[:5],
        inventory(
            tmp_path / "gone",
            **{name: {"ansible_host": "127.0.0.9", "ansible_port": 9} if name == two else {} for name in nodes},
        ),
        "--yes",
    )
    assert away.returncode == 3, away.stdout
    assert f"nothing was started: {two} cannot take part" in " ".join(away.stdout.split())
    assert [at_work(name) for name in nodes] == ["", "", ""]


def test_a_training_over_three_nodes(nodes: tuple[str, ...], trained: str, tmp_path: Path) -> None:
    one, two, three = nodes
    hosts = {name: {"nodes": {"hca": "none"}} for name in nodes}
    words = [
        "--nodes",
        "--host",
        "gpu",
        "--inventory",
        inventory(tmp_path / "tcp", **hosts),
        "--yes",
        "--python",
        trained,
        "--seconds",
        "5",
    ]
    done = document("train.smoke", *words, deadline=400)
    assert done["exit_code"] == 0, not_as_wanted(done)
    for name in nodes:
        ((verdict, seen),) = found_on(done, name, "nodes.all_reduce")
        assert (verdict, seen.startswith("12 GPUs on 3 nodes, NCCL 2.21.5: ")) == ("pass", True), seen
        assert "over NET/Socket/0; data right" in seen
        assert [verdict for verdict, _ in found_on(done, name, "nodes.trained")] == ["pass", "pass"]
        assert found_on(done, name, "nodes.speed")[1] == (
            "pass",
            "9720 samples/s in fp16, efficiency 90% of the nodes alone",
        )
    taken = done["hosts"][two]["nodes"]["trainings"][1]["reduced"]
    assert taken["stage"] == "done"
    assert taken["busbw_gb_s"] > 0.01

    adapters = [*words[:4], inventory(tmp_path / "ib", **{name: {} for name in nodes}), *words[5:]]
    inject.fault(three, "slow-network", "", print)
    try:
        slow = document("train.smoke", *adapters, deadline=400)
    finally:
        inject.heal(three, "", print)
    assert found_on(slow, three, "nodes.links")[0][0] == "fail"
    assert found_on(slow, one, "nodes.all_reduce")[0][0] == "warn", "the adapters are stand-ins, so NCCL took TCP"
    assert slow["hosts"][two]["nodes"]["trainings"][1]["reduced"]["busbw_gb_s"] < taken["busbw_gb_s"] / 2
    assert [at_work(name) for name in nodes] == ["", "", ""]


def test_nothing_runs_on_after_the_end_of_the_controller(nodes: tuple[str, ...], tmp_path: Path) -> None:
    inject.fault(nodes[0], "slow-network", "", print)
    controller = start("train.smoke", *given(tmp_path))
    try:
        until(lambda: any(at_work(name) for name in nodes), "a measurement")
        controller.kill()
        controller.wait()
        until(lambda: not any(at_work(name) for name in nodes), "the end of the measurement", 75)
    finally:
        controller.kill()
        controller.wait()
        inject.heal(nodes[0], "", print)
    again = document("train.smoke", *given(tmp_path / "again"))
    assert again["exit_code"] == 0, not_as_wanted(again)
