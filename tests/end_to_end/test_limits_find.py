"""`limits.find` on a rig-3090: three points, and limits that are as before, also after every kind of sudden end."""

from __future__ import annotations

import itertools
import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.cli import commands
from lab.hardware import hw_state
from lab.power import switch
from tests.end_to_end.conftest import Ssh, training
from tests.end_to_end.rw import inventory, invoke, start, until
from tests.end_to_end.test_rigs import server_with_driver

pytestmark = [pytest.mark.lab, pytest.mark.nightly, pytest.mark.timeout(600)]
NAME, RIG = "t-find", "rig-3090"
BEFORE_W = 285


@pytest.fixture(scope="module")
def folder(snapshots: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yields the inventory of a host whose limits rigwright has set, with the unit that sets them at boot."""
    made = tmp_path_factory.mktemp("find") / "inventory"
    with server_with_driver(NAME, RIG, snapshots) as server:
        server.has_the_driver()
        inventory(made, **{NAME: {"limits": {"persistence": True, "power_limit_w": BEFORE_W}}})
        done = invoke("provision", "--host", NAME, "--inventory", str(made), "--tags", "limits", "--yes")
        assert limits() == [BEFORE_W] * 3, done.stdout + done.stderr
        yield made


@pytest.fixture(autouse=True)
def _slow(folder: Path) -> None:  # noqa: ARG001
    """Products take longer: a machine with other work cannot start as many as keep three simulated GPUs busy. A boot
    forgets it."""
    hw_state.edit(switch.get(NAME).hw, volatile={f"gpu{number}.speed_percent": 10 for number in range(3)})


def limits() -> list[float]:
    """The power limits of the host's GPUs, W, as the simulated hardware has them; 0: the default."""
    state = (switch.get(NAME).hw / "volatile" / "state").read_text()
    found = dict(line.split("=", 1) for line in state.splitlines() if "=" in line)
    return [int(found.get(f"gpu{number}.set.power_limit_mw", 0)) / 1000 for number in range(3)]


def words(folder: Path, *more: str, points: int = 3) -> list[str]:
    """The command line of a sweep."""
    return ["--host", NAME, "--inventory", str(folder), "--points", str(points), "--yes", *more]


def begun(folder: Path, points: int = 3) -> subprocess.Popen[str]:
    """Starts a sweep; returns its process when the GPUs have the limits of the second point."""
    process = start("limits.find", *words(folder, points=points))
    until(lambda: limits()[0] not in (BEFORE_W, 100), "a sweep at its second point")
    return process


def ended(process: subprocess.Popen[str]) -> str:
    return process.communicate(timeout=60)[0]


def test_the_three_points_and_the_inventory(folder: Path, ssh: Ssh) -> None:
    file = folder.parent / "find.json"
    with training(NAME):
        busy = invoke("limits.find", *words(folder))
    assert busy.returncode == 1
    assert "train.py (4242)" in busy.stdout + busy.stderr
    done = invoke("limits.find", *words(folder, "--choose", "per-watt", "--write", "--json", str(file), points=4))
    assert done.returncode == 0, done.stdout + done.stderr
    assert limits() == [BEFORE_W] * 3
    host = json.loads(file.read_text())["hosts"][NAME]
    found: dict[str, Any] = host["sweep"]
    points = found["points"]
    assert points[0]["limits"]["rtx-3090"] == 100
    assert found["ends"]["verdict"] == "does not fit"
    highest = points[-1]["limits"]["rtx-3090"]
    assert 300 <= highest < found["ends"]["limits"]["rtx-3090"] <= 350, "the supplies carry no more"
    for earlier, later in itertools.pairwise(points):
        assert later["tflops"] > 0.9 * earlier["tflops"], "a higher limit is no slower"
    assert points[-1]["tflops"] > 1.1 * points[0]["tflops"]
    assert points[0]["reasons"] & 4, "the lowest power limit holds the GPUs"
    for point in points:
        assert 0.5 * 3 * point["limits"]["rtx-3090"] < point["watts"] < 1.08 * 3 * point["limits"]["rtx-3090"]
    named = {name: points[number] for name, number in found["named"].items()}
    assert named["fastest"]["tflops"] >= 0.99 * max(point["tflops"] for point in points)
    enough = [point for point in points if point["tflops"] >= 0.8 * named["fastest"]["tflops"]]
    assert named["quiet"] == min(enough, key=lambda point: point["watts"])
    assert named["per-watt"] == max(points, key=lambda point: point["tflops"] / point["watts"])
    assert "the supplies end here" in done.stdout
    assert "It is not your training" in done.stdout
    written = yaml.safe_load((folder / "host_vars" / f"{NAME}.yml").read_text())
    assert written == {"limits": {"persistence": True, "power_limit_w": named["per-watt"]["limits"]["rtx-3090"]}}
    (folder / "host_vars" / f"{NAME}.yml").unlink()
    left = ssh(
        NAME,
        "ls -d /run/rigwright-p2p 2>&1; systemctl is-active rigwright-p2p; sudo systemctl is-active gpu-limits.timer",
    )
    assert left.stdout.split()[-2:] == ["inactive", "active"]
    assert "No such file" in left.stdout


def test_after_a_controller_that_is_killed_or_interrupted(folder: Path, ssh: Ssh) -> None:
    process = begun(folder, points=16)  # it would take longer than it waits for somebody who follows it
    second = invoke("limits.find", *words(folder))
    assert second.returncode == 1
    assert "the GPUs are in use by" in second.stdout + second.stderr
    process.kill()
    process.wait()
    until(lambda: limits() == [BEFORE_W] * 3, "limits as before kill -9 here")
    log = ssh(NAME, "sudo cat /run/rigwright-p2p/log").stdout
    assert "nobody waits for this sweep any more" in log
    process = begun(folder)
    process.send_signal(signal.SIGINT)
    text = ended(process)
    assert process.returncode == 130, text
    assert limits() == [BEFORE_W] * 3
    assert "as before" in text
    assert ssh(NAME, "ls -d /run/rigwright-p2p").returncode != 0


def test_the_sweep_of_a_killed_controller_is_known_by_name(folder: Path, ssh: Ssh, tmp_path: Path) -> None:
    """Other commands say what runs, until when and what it does then; `limits.find` waits for it, and begins with the
    limits of before."""
    named = re.compile(
        rf"your sweep of \d\d:\d\d \(run [\w.-]+\), which ends by [\d:]+ \(\d+ s\) and then puts {BEFORE_W} W back"
    )
    changed = tmp_path / "changed"
    inventory(changed, **{NAME: {"limits": {"power_limit_w": BEFORE_W}, "kernel_cmdline": ["quiet=find"]}})
    process = begun(folder, points=16)
    for task, code in (("plan", 2), ("provision", 2)):
        more = ("--yes",) if task == "provision" else ()
        done = invoke(task, "--host", NAME, "--inventory", str(changed), "--tags", "boot", *more)
        text = " ".join((done.stdout + done.stderr).split())
        assert done.returncode == code, text
        assert named.search(text), text
    assert "GPUs are in use by your sweep of" in text
    process.kill()
    process.wait()
    again = invoke("limits.find", *words(folder))
    text = " ".join((again.stdout + again.stderr).split())
    assert again.returncode == 0, text
    assert re.search(f"waits for {named.pattern}; at once with: sudo systemctl stop rigwright-p2p", text), text
    assert "fastest" in text
    assert limits() == [BEFORE_W] * 3
    assert ssh(NAME, "ls -d /run/rigwright-p2p").returncode != 0
    process = begun(folder, points=16)
    process.kill()
    process.wait()
    verified = invoke("verify", "--host", NAME, "--inventory", str(folder), "--tags", "limits", "--quick")
    assert named.search(" ".join((verified.stdout + verified.stderr).split())), verified.stdout + verified.stderr
    assert ssh(NAME, "sudo systemctl stop rigwright-p2p").returncode == 0
    assert limits() == [BEFORE_W] * 3, "what it says ends it, and puts the limits back"


def test_after_a_program_or_a_unit_that_is_killed(folder: Path, ssh: Ssh) -> None:
    for kill in (
        "sudo pkill -KILL -f 'python3 /run/rigwright-p2p/[l]imits_sweep.py sweep'",
        "sudo systemctl kill --kill-whom=all -s KILL rigwright-p2p",
    ):
        process = begun(folder)
        assert ssh(NAME, kill).returncode == 0
        until(lambda: limits() == [BEFORE_W] * 3, f"limits as before {kill}")
        text = ended(process)
        assert process.returncode == 1, text
        assert "the limits are as before" in text


def test_the_next_sweep_puts_back_what_a_killed_one_could_not(folder: Path, ssh: Ssh) -> None:
    process = begun(folder, points=16)
    process.kill()
    process.wait()
    off, on = (
        f"sudo mv /run/rigwright-p2p/{one} /run/rigwright-p2p/{other}"
        for one, other in (("pynvml.py", "off"), ("off", "pynvml.py"))
    )
    kill = "sudo systemctl kill --kill-whom=all -s KILL rigwright-p2p"
    assert ssh(NAME, f"{off}; {kill}").returncode == 0
    until(lambda: "failed" in ssh(NAME, "systemctl is-active rigwright-p2p").stdout, "the end of the unit")
    assert limits()[0] != BEFORE_W
    assert ssh(NAME, on).returncode == 0
    done = invoke("limits.find", *words(folder))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "an earlier sweep ended without its limits put back; that is done now" in done.stdout + done.stderr
    assert limits() == [BEFORE_W] * 3


def test_after_a_power_cut(folder: Path, ssh: Ssh) -> None:
    """The limits are those of the inventory again, by the unit that sets them at every boot; the message says so."""
    process = begun(folder)
    commands.power_cut(NAME)
    commands.power_on(NAME)
    until(lambda: ssh(NAME, "true").returncode == 0, "a boot")
    until(lambda: limits() == [BEFORE_W] * 3, "limits as before the power cut")
    text = ended(process)
    assert process.returncode == 1, text
    assert "gpu-limits.service sets the limits of the inventory" in " ".join(text.split())
