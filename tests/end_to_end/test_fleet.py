"""Compares a few hosts: fleet.check names exactly the differences, and the history records them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.cli import commands
from lab.power import switch
from tests.end_to_end.rw import document, invoke, login_variables
from tests.end_to_end.test_rigs import Server
from tests.report.test_prometheus import of, read

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]
RIG = "rtx-4090"
NAMES = ("t-one", "t-two", "t-three")
PLAY = "- name: A play\n  hosts: all\n  tasks:\n    - name: Room\n      file.directory: {path: /srv}\n"


@pytest.fixture(scope="module")
def servers(snapshots: Path) -> Iterator[dict[str, Server]]:
    """Starts three hosts of one rig and loads the driver."""
    made = {name: Server(RIG, name) for name in NAMES}
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda server: server.boots(snapshots), made.values()))
        list(pool.map(Server.has_the_driver, made.values()))
    yield made
    for name in NAMES:
        commands.down(name=name, say=print)


@pytest.fixture(scope="module")
def given(servers: dict[str, Server], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Returns command-line words: an inventory of the three hosts and one that does not answer, and a playbook."""
    folder = tmp_path_factory.mktemp("fleet")
    hosts = {name: login_variables(name, ansible_become_password="hunter2") for name in servers}
    hosts["t-away"] = {**hosts["t-one"], "ansible_port": 9}
    (folder / "hosts.yml").write_text(yaml.safe_dump({"rack": {"hosts": hosts}}))
    (folder / "play.yml").write_text(PLAY)
    return {
        "inventory": str(folder / "hosts.yml"),
        "playbook": str(folder / "play.yml"),
        "history": str(folder / "history.sqlite"),
    }


def _check(given: dict[str, str], *words: str) -> dict[str, Any]:
    words = ("--inventory", given["inventory"], "--playbook", given["playbook"], *words)
    return document("fleet.check", *words, RIGWRIGHT_HISTORY=given["history"])


def _told(found: dict[str, Any]) -> dict[str, list[tuple[str, str]]]:
    return {
        name: [(one["check"], one["subject"]) for one in host["findings"] if one["verdict"] != "pass"]
        for name, host in found["hosts"].items()
    }


def test_what_differs_is_named_and_only_that(given: dict[str, str], servers: dict[str, Server]) -> None:
    machines_are_alike(given)
    differences_are_named(given, servers)
    the_history_has_it(given)


def machines_are_alike(given: dict[str, str]) -> None:
    found = _check(given)
    assert _told(found) == {"t-one": [], "t-two": [], "t-three": [], "t-away": []}
    assert found["exit_code"] == 3
    assert [host["status"] for host in found["hosts"].values()] == ["unreachable", "ok", "ok", "ok"]
    assert max(host["round_trips"] for host in found["hosts"].values()) == 1


def differences_are_named(given: dict[str, str], servers: dict[str, Server]) -> None:
    """t-two gets another GPU, t-three another power limit and folder mode; each run reports current differences."""
    board = switch.get("t-two").hw / "board.conf"
    old = servers["t-two"].does("nvidia-smi --query-gpu=uuid --format=csv,noheader").split()[0]
    new = "GPU-0badcafe" + old[12:]
    servers["t-two"].does("sudo rmmod nvidia_drm nvidia_modeset nvidia_uvm nvidia 2>/dev/null; :")
    board.write_text(board.read_text().replace(old, new))
    servers["t-two"].does("sudo modprobe nvidia")
    servers["t-three"].does("sudo nvidia-smi -pm 1 >/dev/null; sudo nvidia-smi -i 0 -pl 250 && sudo chmod 700 /srv")
    found = _check(given)
    assert found["exit_code"] == 3
    told = _told(found)
    at = found["hosts"]["t-two"]["kept"]["gpu.gpus"][0]["bus_id"]
    assert told["t-one"] == told["t-away"] == []
    assert sorted(told["t-two"]) == [("fleet.gpus", f"{at} {new[:12]}"), ("fleet.gpus", f"{at} {old[:12]}")]
    assert {check for check, _ in told["t-three"]} == {"plan", "fleet.past", "fleet.peers"}
    text = invoke(
        "fleet.check", "--inventory", given["inventory"], "--playbook", given["playbook"],
        RIGWRIGHT_HISTORY=given["history"]
    )  # fmt: skip
    assert text.returncode == 3
    assert "DRIFT  t-three" in text.stdout
    assert "DRIFT  t-two" in text.stdout, "it is told until somebody proves the machine"
    assert "away   t-away" in text.stdout
    assert "invoke verify --host t-three,t-two" in text.stdout
    assert "4 hosts" in text.stdout


def the_history_has_it(given: dict[str, str]) -> None:
    history = {"RIGWRIGHT_HISTORY": given["history"]}
    listed = invoke("history.list", **history)
    assert listed.stdout.count("fleet.check") == 3, listed.stdout
    changed = document("history.diff", "t-two", "--since", "1d", **history)["changed"]
    assert {"new", "gone"} <= {one["after"] for one in changed}
    assert "250" in invoke("history.diff", "t-three", **history).stdout
    shown = invoke("history.show", "last", **history)
    assert "t-away" in shown.stdout
    with sqlite3.connect(given["history"]) as database:
        assert "hunter2" not in "\n".join(database.iterdump())


def test_the_report(given: dict[str, str], servers: dict[str, Server], tmp_path: Path) -> None:
    """The power limit changes between two reports: page, metrics and document show it, and the hosts stay unchanged."""
    three = servers["t-three"]
    before = three.does(
        "nvidia-smi -i 0 --query-gpu=power.limit --format=csv,noheader,nounits; stat -c %a /srv"
    ).split()
    try:
        three.does("sudo nvidia-smi -pm 1 >/dev/null; sudo nvidia-smi -i 0 -pl 250")
        reports(given, three, tmp_path)
        assert three.does("stat -c %a /srv").strip() == before[1]
    finally:
        three.does(f"sudo nvidia-smi -i 0 -pl {before[0]}; sudo nvidia-smi -pm 0 >/dev/null")


def reports(given: dict[str, str], three: Server, tmp_path: Path) -> None:
    """Makes two reports, and reads the second."""
    page, metrics = tmp_path / "fleet.html", tmp_path / "fleet.prom"
    words = ("--inventory", given["inventory"], "--playbook", given["playbook"], "--html", str(page), "--prometheus",
             str(metrics))  # fmt: skip
    history = {"RIGWRIGHT_HISTORY": str(tmp_path / "history.sqlite")}
    assert invoke("fleet.report", *words, **history).returncode == 3
    three.does("sudo nvidia-smi -i 0 -pl 260")
    found = document("fleet.report", *words, **history)
    hosts = found["hosts"]
    assert (found["exit_code"], hosts["t-away"]["status"], hosts["t-away"]["machine"]) == (3, "unreachable", None)
    assert max(host["round_trips"] for host in hosts.values()) == 1
    fleet = {name: host["fleet"] for name, host in hosts.items()}
    became = [(one["subject"].split()[-3:], one["before"], one["after"]) for one in fleet["t-three"]["became"]]
    assert became == [(["power", "limit", "w"], "250", "260")]
    assert fleet["t-one"]["became"] == fleet["t-one"]["new"] == fleet["t-one"]["gone"] == []
    assert fleet["t-away"]["was"] == "unreachable"
    gpu = hosts["t-one"]["machine"]["gpus"][0]
    readings = fleet["t-one"]["readings"][gpu["uuid"]]
    assert [row[1:] for row in readings] == [[gpu["temperature_c"], pytest.approx(gpu["power_w"], abs=20)]] * 2
    assert gpu["memory_used_mib"] is not None
    assert gpu["utilization_percent"] is not None
    assert "driver" in {end["kind"] for end in fleet["t-one"]["ends"]}
    text = page.read_text()
    for said in (
        "4 machines",
        "t-away",
        "unreachable",
        "SIMULATED",
        "power limit, W</strong>: 250",
        "→</span> 260",
        "GeForce RTX 4090",
    ):
        assert said in text, said
    samples = read(metrics.read_text())
    assert of(samples, "host_up") == [0.0, 1.0, 1.0, 1.0]
    assert of(samples, "gpu_power_limit_watts", host="t-three")[0] == 260.0
    assert "hunter2" not in text + metrics.read_text() + str(found)
