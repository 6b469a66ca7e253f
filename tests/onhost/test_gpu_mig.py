"""gpu_mig.py as on a GPU host: the program, gpu_limits.py and pynvml.py in one folder, over the simulated driver."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml
import pytest

from lab.hardware.rigfile import describe
from lab.simulators.nvml.bare import Bare, bare
from tests.paths import ROOT

VERSION = "535.261.03"
SOURCE = ROOT / "onhost/gpu_mig.py"
BUS_IDS = [gpu["bus_id"] for gpu in describe("a100")["gpus"]]
FIRST = BUS_IDS[0]
Done = subprocess.CompletedProcess[str]
pytestmark = pytest.mark.usefixtures("as_root")  # the driver lets only root change MIG


def gi(profile: str, *parts: int) -> dict[str, Any]:
    return {"profile": profile, "parts": list(parts) or [int(profile[0])]}


def rule(layout: list[dict[str, Any]], bus_id: str = FIRST) -> dict[str, Any]:
    return {"positions": {FIRST: "SXM4-0"}, "gpus": [{"match": {"pci_bus_id": bus_id}, "layout": layout}]}


@dataclass
class Host:
    driver: Bare
    program: Path
    root: Path

    def run(self, *words: str, stdin: str = "") -> Done:
        argv = [sys.executable, "-I", str(self.program), *words]
        env = {**self.driver.env(), "RIGWRIGHT_ROOT": str(self.root)}
        return subprocess.run(argv, env=env, input=stdin, capture_output=True, text=True, timeout=60, check=False)

    def apply(self, layout: list[dict[str, Any]], bus_id: str = FIRST) -> Done:
        path = self.root / "mig.json"
        path.write_text(json.dumps(rule(layout, bus_id)))
        return self.run("apply", "--wait-s", "0", "--config", str(path))

    def has(self, number: int = 0) -> tuple[Any, Any, list[str]]:
        """The mode of a GPU, now and pending, and its instances."""
        done = self.run("show")
        assert (done.returncode, done.stderr) == (0, "")
        gpu = json.loads(done.stdout)["gpus"][number]
        layout = [f"{one['profile']}:{'+'.join(map(str, one['parts']))}@{one['start']}" for one in gpu["layout"]]
        return gpu["current"], gpu["pending"], layout


def host_of(rig: str, folder: Path) -> Host:
    (folder / "lib").mkdir()
    (folder / "root").mkdir()
    for path in (Path(str(pynvml.__file__)), ROOT / "onhost/gpu_limits.py", SOURCE):
        shutil.copy(path, folder / "lib" / path.name)
    return Host(bare(rig, VERSION, folder / "rig"), folder / "lib" / SOURCE.name, folder / "root")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Returns a board of eight A100."""
    return host_of("a100", tmp_path)


def test_on_with_a_layout_then_nothing_to_change_then_off(host: Host) -> None:
    layout = [gi("1g.5gb"), gi("3g.20gb", 1, 2), gi("2g.10gb"), gi("1g.5gb")]  # fits with the largest placed first
    first = host.apply(layout)
    assert (first.returncode, first.stderr) == (0, "")
    said = "MIG off -> 1g.5gb, 3g.20gb/1c+2c, 2g.10gb, 1g.5gb"
    assert first.stdout.splitlines()[0].startswith(f"SXM4-0 {FIRST} GPU-")
    assert first.stdout.splitlines()[0].endswith(f"NVIDIA A100-SXM4-40GB: {said}")
    on, pending, found = host.has()
    assert (on, pending) == (True, True)
    assert sorted(one.partition("@")[0] for one in found) == ["1g.5gb:1", "1g.5gb:1", "2g.10gb:2", "3g.20gb:1+2"]
    assert host.has(1) == (False, False, [])  # no rule names it
    kept = host.driver.kept()
    assert "as wanted, nothing to change" in host.apply(list(reversed(layout))).stdout
    assert host.driver.kept() == kept
    assert "-> off" in host.apply([]).stdout
    assert host.has() == (False, False, [])


@pytest.mark.parametrize(
    ("layout", "says"),
    [
        ([gi("3g.40gb")], "there is no profile 3g.40gb; it has 1g.10gb, 1g.5gb, 1g.5gb+me, 2g.10gb"),
        ([gi("3g.20gb")] * 3, "3 instances of 3g.20gb, and the driver allows 2"),
        ([gi("3g.20gb"), gi("3g.20gb"), gi("1g.5gb")], "have no room for 3g.20gb, 3g.20gb, 1g.5gb"),
        ([gi("3g.20gb", 2, 2)], "compute instances of 2+2 slices are more than 3g.20gb has"),
    ],
)
def test_a_layout_that_does_not_fit_changes_nothing(host: Host, layout: list[dict[str, Any]], says: str) -> None:
    host.apply([gi("4g.20gb")])
    before = host.has()
    done = host.apply(layout)
    assert (done.returncode, says in done.stderr) == (1, True), done.stderr
    assert host.has() == before
    checked = host.run("check", "--config", "-", stdin=json.dumps(rule(layout)))
    (refused,) = json.loads(checked.stdout)["gpus"][0]["refused"]
    assert says in refused


def test_a_layout_that_only_placements_refuse_puts_mig_off_again(host: Host) -> None:
    """With MIG off the driver lists no placements: 3g + 3g + 1g is seven slices, and the memory has no room."""
    done = host.apply([gi("3g.20gb"), gi("3g.20gb"), gi("1g.5gb")])
    assert done.returncode == 1
    assert "the placements that the driver lists have no room" in done.stderr
    assert host.has() == (False, False, [])


@pytest.mark.nightly
def test_what_the_driver_refuses_on_the_way_gives_the_old_layout_back(host: Host) -> None:
    host.apply([gi("3g.20gb", 1, 2), gi("2g.10gb")])
    before = host.has()
    host.driver.put(gpu0__mig__no_room="19")
    done = host.apply([gi("4g.20gb"), gi("1g.5gb")])
    assert (done.returncode, "Insufficient Resources" in done.stderr) == (1, True)
    assert host.has() == before


def test_a_gpu_in_use_is_left_alone(host: Host) -> None:
    host.driver.put(gpu0__procs="4242:1000:/usr/bin/python3 train.py")
    done = host.apply([gi("7g.40gb")])
    assert done.returncode == 1
    assert "process 4242 computes on it: end it, then the same again" in done.stderr
    assert host.has() == (False, False, [])


@pytest.mark.nightly
def test_a_machine_that_cannot_reset_its_gpus_keeps_the_mode_for_the_boot(host: Host) -> None:
    host.driver.put(gpu0__mig__needs_boot=1, boot__token="one")
    done = host.apply([gi("7g.40gb")])
    assert done.returncode == 1
    assert "MIG was switched on: it waits for a reset of the GPU, or a reboot" in done.stderr
    assert host.has() == (False, True, [])
    host.driver.put(boot__token="two")
    host.driver.load_driver(VERSION)
    assert host.has() == (True, True, [])
    assert host.apply([gi("7g.40gb")]).returncode == 0
    assert host.has() == (True, True, ["7g.40gb:7@0"])


def test_instances_end_with_the_driver_and_another_layout_replaces_them(host: Host) -> None:
    layout = [gi("3g.20gb"), gi("3g.20gb")]
    host.apply(layout)
    host.driver.load_driver(VERSION)
    assert host.has() == (True, True, [])  # an A100 keeps the mode
    assert host.apply(layout).returncode == 0
    assert len(host.has()[2]) == 2
    assert "MIG 3g.20gb, 3g.20gb -> 1g.5gb, 1g.5gb" in host.apply([gi("1g.5gb")] * 7).stdout
    assert [one.partition(":")[0] for one in host.has()[2]] == ["1g.5gb"] * 7


@pytest.mark.nightly
def test_an_h100_keeps_not_even_the_mode(tmp_path: Path) -> None:
    host = host_of("h100-sxm", tmp_path)
    bus_id = describe("h100-sxm")["gpus"][0]["bus_id"]
    host.apply([gi("1g.10gb")], bus_id)
    assert host.has()[0] is True
    host.driver.load_driver(VERSION)
    assert host.has() == (False, False, [])


def test_a_gpu_without_mig(tmp_path: Path) -> None:
    host = host_of("rig-3090", tmp_path)
    bus_id = describe("rig-3090")["gpus"][0]["bus_id"]
    assert host.has() == (None, None, [])
    done = host.apply([gi("1g.5gb")], bus_id)
    assert (done.returncode, "refused: this GPU has no MIG: take it out of mig" in done.stderr) == (1, True)
    assert host.apply([], bus_id).returncode == 0


@pytest.mark.nightly
def test_a_gpu_that_is_missing_and_one_that_is_lost(host: Host) -> None:
    done = host.apply([gi("7g.40gb")], "0000:ff:00.0")
    assert (done.returncode, "no GPU answers to 0000:ff:00.0" in done.stderr) == (3, True)
    host.driver.put(gpu0__fault=15)
    done = host.apply([gi("7g.40gb")])
    assert (done.returncode, "it fell off the bus" in done.stderr) == (3, True), done.stderr


@pytest.mark.parametrize("text", ["{", '{"gpus": [{"match": {}, "layout": [{"profile": 1, "parts": [1]}]}]}'])
def test_a_configuration_that_is_none(host: Host, text: str) -> None:
    done = host.run("check", "--config", "-", stdin=text)
    assert done.returncode == 1
    assert done.stderr.startswith("-: ")
    assert "Traceback" not in done.stderr
