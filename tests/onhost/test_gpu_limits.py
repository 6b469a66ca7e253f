"""gpu_limits.py as on a GPU host: the program and pynvml.py in one folder, over the simulated driver."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml
import pytest

from lab.hardware.rigfile import describe
from lab.simulators.nvml.bare import Bare, bare
from rigwright.core.command import script
from rigwright.operations import limits
from tests.machine_speed import within
from tests.paths import ROOT

VERSION = "535.261.03"
SOURCE = ROOT / "onhost/gpu_limits.py"
UUIDS, FRAME = ([gpu["uuid"] for gpu in describe(rig)["gpus"]] for rig in ("servbadge", "rig-3090"))
BUS_IDS = ("0000:06:00.0", "0000:07:00.0", "0000:0a:00.0", "0000:0b:00.0")
POSITIONS = {bus_id: f"SXM2-{number}" for number, bus_id in enumerate(BUS_IDS, 1)}
pytestmark = pytest.mark.usefixtures("as_root")  # the driver lets only root set limits
RULE: dict[str, Any] = {
    "match": {},
    "persistence": True,
    "power_limit_w": 200,
    "application_clocks": {"memory_mhz": 877, "graphics_mhz": 1005},
}
ALL: dict[str, Any] = {"expected_gpus": 4, "positions": POSITIONS, "gpus": [RULE]}
LOCKED: dict[str, Any] = {
    "positions": POSITIONS,
    "gpus": [{"match": {}, "persistence": True, "locked_graphics_mhz": [210, 1005]}],
}
Done = subprocess.CompletedProcess[str]


def title(number: int) -> str:
    """Returns the name of that GPU of servbadge in output lines; `number` counts from 1."""
    return f"SXM2-{number} {BUS_IDS[number - 1]} {UUIDS[number - 1][:12]} Tesla V100-SXM2-16GB"


@dataclass
class Host:
    """A simulated driver, the program as provision installs it, and the folders of the host that the program reads."""

    driver: Bare
    program: Path
    root: Path

    def __post_init__(self) -> None:
        self.boot()

    def env(self) -> dict[str, str]:
        return {**self.driver.env(), "RIGWRIGHT_ROOT": str(self.root)}

    def run(self, *words: str, timeout: float = 60) -> Done:
        """Runs the program with -I, so that Python can import pynvml only from the program's own folder."""
        argv = [sys.executable, "-I", str(self.program), *words]
        return subprocess.run(argv, env=self.env(), capture_output=True, text=True, timeout=timeout, check=False)

    @property
    def config(self) -> Path:
        return self.root / "etc/rigwright/limits.json"

    @property
    def record(self) -> Path:
        return self.root / "run/rigwright/locked-clocks"

    def wants(self, config: dict[str, Any]) -> None:
        self.config.parent.mkdir(parents=True, exist_ok=True)
        self.config.write_text(json.dumps(config))

    def apply(self, config: dict[str, Any], *words: str) -> Done:
        self.wants(config)
        return self.run("apply", "--wait-s", "0", *words)

    def show(self, *words: str) -> dict[str, Any]:
        done = self.run("show", *words)
        assert (done.returncode, done.stderr) == (0, "")
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def boot(self) -> None:
        """Simulates a boot: /run is empty and the driver is loaded."""
        shutil.rmtree(self.root / "run", ignore_errors=True)
        boot_id = self.root / "proc/sys/kernel/random/boot_id"
        boot_id.parent.mkdir(parents=True, exist_ok=True)
        boot_id.write_text(f"boot-{time.time_ns()}\n")
        self.load_driver()

    def load_driver(self) -> None:
        """Loads the driver as modprobe does: /sys/module has a new folder, and the GPUs have lost earlier settings."""
        module = self.root / "sys/module/nvidia"
        fresh = module.with_name("fresh")
        fresh.mkdir(parents=True)
        self.unload_driver()
        fresh.rename(module)
        self.driver.load_driver(VERSION)

    def unload_driver(self) -> None:
        shutil.rmtree(self.root / "sys/module/nvidia", ignore_errors=True)
        self.driver.load_driver("none")


def host_of(rig: str, folder: Path) -> Host:
    (folder / "lib").mkdir()
    shutil.copy(pynvml.__file__, folder / "lib/pynvml.py")
    program = Path(shutil.copy(SOURCE, folder / "lib" / SOURCE.name))
    return Host(bare(rig, VERSION, folder / "rig"), program, folder / "root")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Returns servbadge with four V100s."""
    return host_of("servbadge", tmp_path)


@pytest.fixture
def cards(tmp_path: Path) -> Host:
    """Returns rig-3090 with three RTX 3090 of three makers."""
    return host_of("rig-3090", tmp_path)


def said(text: str) -> list[str]:
    """Returns the output lines without the names of the GPUs."""
    return [line.split(": ", 1)[1] for line in text.splitlines()]


def test_the_one_in_scripts_is_the_same_program() -> None:
    done = subprocess.run([ROOT / "scripts/gpu_limits.py", "--help"], capture_output=True, text=True, check=True)
    assert "positions" in done.stdout


def test_without_pynvml_it_says_where_that_belongs(host: Host) -> None:
    (host.program.parent / "pynvml.py").unlink()
    argv = [sys.executable, "-I", "-S", str(host.program), "show"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("there is no pynvml.py (of nvidia-ml-py) beside ")


# --- apply


def test_apply_sets_reads_back_and_then_has_nothing_to_do(host: Host) -> None:
    first = host.apply(ALL)
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout.splitlines()[0] == (
        f"{title(1)}: persistence off -> on; power limit 300 -> 200 W; application clocks 877,1312 -> 877,1005 MHz"
    )
    assert len(first.stdout.splitlines()) == 4
    state = host.driver.kept()
    again = host.apply(ALL)
    assert again.returncode == 0
    assert again.stdout.splitlines()[3] == f"{title(4)}: as wanted, nothing to change"
    assert host.driver.kept() == state
    host.driver.put(gpu2__set__power_limit_mw=300000)
    same = "as wanted, nothing to change"
    assert said(host.apply(ALL).stdout) == [same, same, "power limit 300 -> 200 W", same], "the GPU that differs"


def test_the_first_matching_rule_wins(host: Host) -> None:
    config = {
        "gpus": [
            {"match": {"uuid": UUIDS[1]}, "persistence": True, "power_limit_w": 180},
            {"match": {"pci_bus_id": "0a:00.0"}, "persistence": True, "power_limit_w": 190},
            {"match": {"pci_bus_id": "0000:06:00.0"}, "persistence": True, "locked_graphics_mhz": [210, 1400]},
        ]
    }
    done = host.apply(config)
    assert done.returncode == 0
    assert done.stdout.startswith(f"0000:06:00.0 {UUIDS[0][:12]} Tesla"), "nobody has named its position"
    assert said(done.stdout) == [
        "persistence off -> on; locked graphics clock to 210-1400 MHz (set, not readable)",
        "persistence off -> on; power limit 300 -> 180 W",
        "persistence off -> on; power limit 300 -> 190 W",
        "no rule for it, left alone",
    ]
    assert [gpu["power_limit_w"] for gpu in host.show()["gpus"]] == [300, 180, 190, 300]


def test_a_refusal_is_named_and_stops_no_other(host: Host) -> None:
    refused = {
        "match": {"uuid": UUIDS[0]},
        "persistence": True,
        "power_limit_w": 500,
        "locked_graphics_mhz": [210, 2500],
    }
    refused["application_clocks"] = {"memory_mhz": 877, "graphics_mhz": 1001}
    done = host.apply({**ALL, "gpus": [refused, RULE]})
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"{title(1)}: refused: power limit: 500 W is not between 150 and 300 W: power_limit_w: 300 is the nearest",
        f"{title(1)}: refused: application clocks: 877,1001 MHz is no supported pair (near it: 1005, 997)",
        f"{title(1)}: refused: locked graphics clock: 210-2500 MHz is not within 135 to 1530 MHz: "
        "locked_graphics_mhz: [210, 1530] is the nearest",
    ]
    gpus = host.show()["gpus"]
    assert [gpu["power_limit_w"] for gpu in gpus] == [300, 200, 200, 200]
    assert gpus[0]["persistence"] is True
    assert gpus[0]["locked_graphics_mhz"] is None


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (2, "Invalid Argument"),
        (3, "Not Supported; this GPU cannot do it: take power_limit_w out of its limits"),
        (4, "Insufficient Permissions; it wants root: sudo systemctl restart gpu-limits.service"),
        (13, "Function Not Found; the driver is too old for it: take power_limit_w out of its limits"),
        (15, "GPU is lost; it fell off the bus: journalctl -k -g Xid; then power the machine off and on"),
        (999, "Unknown Error"),
    ],
)
def test_what_the_driver_answers_is_said_with_what_to_do(host: Host, code: int, words: str) -> None:
    host.driver.put(gpu1__fault__call__nvmlDeviceSetPowerManagementLimit=code)
    done = host.apply(ALL)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [f"{title(2)}: refused: power limit: {words}"]
    powers = [gpu["power_limit_w"] for gpu in host.show()["gpus"]]
    assert powers == [200, 300, 200, 200]


def test_a_setter_that_lies_is_found_out(host: Host) -> None:
    host.driver.put(gpu1__fault__deaf=1, gpu2__fault__call__nvmlDeviceGetPersistenceMode=3)
    done = host.apply(ALL)
    assert done.returncode == 1
    assert [line.split("refused: ")[1] for line in done.stderr.splitlines()] == [
        "persistence: set to on, reads off",
        "power limit: set to 200 W, reads 300 W",
        "application clocks: set to 877,1005 MHz, reads 877,1312 MHz",
        "persistence: Not Supported; this GPU cannot do it: take persistence out of its limits",
    ]


def test_lost_and_hanging_gpus_are_given_up(host: Host) -> None:
    host.driver.put(gpu1__fault__open=15, gpu2__fault__delay_ms=120000)
    started = time.monotonic()
    done = host.apply(ALL, "--gpu-timeout-s", "2")
    assert time.monotonic() - started < 60
    assert done.returncode == 3
    assert done.stderr.splitlines() == [
        "SXM2-2 0000:07:00.0: GPU is lost; "
        "it fell off the bus: journalctl -k -g Xid; then power the machine off and on",
        "SXM2-3 0000:0a:00.0: no answer within 2 s",
    ]
    assert len(done.stdout.splitlines()) == 2
    host.driver.put(gpu2__fault__delay_ms=0)
    gpus = host.show("--config", str(host.config))["gpus"]
    assert [gpu["power_limit_w"] for gpu in gpus] == [200, None, 300, 200]
    assert gpus[1]["errors"] == {"gpu": "GPU is lost"}
    assert [gpu["place"] for gpu in gpus] == [f"SXM2-{number} {bus}" for number, bus in enumerate(BUS_IDS, 1)]
    host.driver.put(gpu1__fault__open="", gpu3__fault__call__nvmlDeviceSetPersistenceMode=15)
    host.load_driver()
    done = host.apply(ALL)
    assert (len(done.stderr.splitlines()), done.stdout.splitlines()[3]) == (1, f"{title(4)}: nothing changed")


def test_a_missing_gpu_is_counted_and_named(host: Host) -> None:
    host.driver.put(gpu3__absent=1)
    named = {"match": {"uuid": UUIDS[3]}, "power_limit_w": 200}
    done = host.apply({**ALL, "gpus": [named, RULE]})
    assert done.returncode == 3
    assert done.stderr.splitlines() == [
        "3 of 4 expected GPUs present, missing: SXM2-4 0000:0b:00.0",
        f"no GPU answers to {UUIDS[3]}",
    ]
    assert len(done.stdout.splitlines()) == 3
    by_bus = [{"match": {"pci_bus_id": bus_id}, "power_limit_w": 200} for bus_id in BUS_IDS]
    assert host.apply({"gpus": by_bus}).stderr == "no GPU answers to 0000:0b:00.0\n"
    assert len(host.apply({**ALL, "gpus": by_bus}).stderr.splitlines()) == 1


def test_two_silent_gpus_that_nobody_can_tell_apart(host: Host) -> None:
    """The last of three GPUs has no handle, and it is at the third or the fourth position."""
    host.driver.put(gpu2__fault__open=16, gpu3__absent=1)
    assert host.apply(ALL).stderr.splitlines() == [
        "number 3 of the GPUs by bus id: GPU requires restart; "
        "sudo nvidia-smi --gpu-reset -i ITS_BUS_ID, or power the machine off and on",
        "3 of 4 expected GPUs present, missing: SXM2-3 0000:0a:00.0, SXM2-4 0000:0b:00.0",
    ]
    # without positions, the bus ids in /proc/driver/nvidia/gpus identify a GPU
    host.driver.put(gpu1__fault__open=15, gpu2__fault__open="", gpu3__absent="")
    assert host.apply({"gpus": [RULE]}).stderr.startswith("number 2 of the GPUs by bus id: GPU is lost")
    for bus_id in BUS_IDS:
        (host.root / "proc/driver/nvidia/gpus" / bus_id).mkdir(parents=True)
    assert host.apply({"gpus": [RULE]}).stderr.startswith("0000:07:00.0: GPU is lost")


def test_it_waits_for_the_driver_and_for_late_gpus(host: Host) -> None:
    host.driver.load_driver("none")
    host.driver.put(gpu3__absent=1)
    host.wants(ALL)
    argv = [sys.executable, str(host.program), "apply", "--wait-s", "30"]
    pipe = subprocess.PIPE
    waiting = subprocess.Popen(argv, env=host.env(), stdout=pipe, stderr=pipe, text=True)
    time.sleep(1)
    host.driver.load_driver(VERSION)
    time.sleep(1.5)
    host.driver.put(gpu3__absent=0)
    out, errors = waiting.communicate(timeout=30)
    assert (waiting.returncode, errors) == (0, "")
    assert [line.split()[0] for line in out.splitlines()] == ["SXM2-1", "SXM2-2", "SXM2-3", "SXM2-4"]


def test_without_a_driver_it_says_so_in_time(host: Host) -> None:
    host.unload_driver()
    words = "driver: Driver Not Loaded; is it installed and built? sudo modprobe nvidia; journalctl -k -g NVRM\n"
    done = host.apply(ALL)
    assert (done.returncode, done.stderr) == (1, words)
    shown = host.run("show")
    assert (shown.returncode, shown.stderr) == (1, words)
    assert json.loads(shown.stdout)["gpus"] == []


def test_a_wrong_library_is_not_waited_for_and_said_once(host: Host) -> None:
    host.driver.load_driver("550.163.01")
    host.wants(ALL)
    started = time.monotonic()
    done = host.run("apply", "--wait-s", "150")
    assert time.monotonic() - started < 60
    assert done.returncode == 1
    assert "version mismatch.; the driver was upgraded and not yet loaded: reboot" in done.stderr
    code, _, errors = look(host)
    assert (code, len(errors)) == (1, 1)
    assert look(host) == (1, [], [])


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"power_limit": 200}, "unknown key: power_limit"),
        ({"match": {"position": "SXM2-1"}}, "unknown key: position"),
        ({"match": {"pci_bus_id": "zz"}}, "ValueError"),
        ({"power_limit_w": "200 W"}, 'power_limit_w: "200 W" is not a number of watts'),
        ({"persistence": 1}, "persistence: 1 is not true or false"),
        ({"application_clocks": {"memory_mhz": 877}}, "is not {memory_mhz, graphics_mhz}"),
        ({"locked_graphics_mhz": [1400, 210]}, "locked_graphics_mhz: [1400, 210] is not [min, max]"),
        ({"locked_memory_mhz": 9501}, "locked_memory_mhz: 9501 is not [min, max]"),
    ],
)
def test_a_wrong_configuration_ends_before_any_gpu_is_asked(host: Host, rule: dict[str, Any], words: str) -> None:
    done = host.apply({"gpus": [rule]})
    assert done.returncode == 1
    assert words in done.stderr
    assert host.driver.kept().keys() == {"driver.loaded", "driver.instance"}


# --- locked clocks, which cannot be read


def lines_of(host: Host) -> list[list[str]]:
    return [line.split() for line in host.record.read_text().splitlines()]


def test_a_lock_is_recorded_and_not_set_twice(cards: Host) -> None:
    rule = {"match": {}, "persistence": True, "locked_graphics_mhz": [210, 1400], "locked_memory_mhz": [5001, 9501]}
    first = cards.apply({"gpus": [rule]})
    assert (first.returncode, first.stderr) == (0, "")
    assert said(first.stdout)[0] == (
        "persistence off -> on; locked graphics clock to 210-1400 MHz (set, not readable); "
        "locked memory clock to 5001-9501 MHz (set, not readable)"
    )
    boot_id = (cards.root / "proc/sys/kernel/random/boot_id").read_text().strip()
    load = str((cards.root / "sys/module/nvidia").stat().st_ino)
    uuid = FRAME[0]
    assert [line for line in lines_of(cards) if line[0] == uuid] == [
        [uuid, "graphics", "210", "1400", boot_id, load, "0"],
        [uuid, "memory", "5001", "9501", boot_id, load, "0"],
    ]
    modes = [cards.record.stat().st_mode & 0o777, cards.record.parent.stat().st_mode & 0o777]
    assert modes == [0o644, 0o755]
    gpu = cards.show()["gpus"][0]
    assert [gpu["locked_graphics_mhz"], gpu["locked_memory_mhz"]] == [[210, 1400], [5001, 9501]]
    assert gpu["locked_clocks_readable"] is False
    assert said(cards.apply({"gpus": [rule]}).stdout) == ["as wanted, nothing to change"] * 3
    other = {**rule, "locked_graphics_mhz": [210, 1200]}
    assert said(cards.apply({"gpus": [other]}).stdout)[2] == "locked graphics clock to 210-1200 MHz (set, not readable)"
    assert [line[2:4] for line in lines_of(cards) if line[1] == "graphics"] == [["210", "1200"]] * 3
    wrong = cards.apply({"gpus": [{"match": {}, "locked_memory_mhz": [405, 12000]}]}).stderr
    assert "405-12000 MHz is not within 405 to 9751 MHz: locked_memory_mhz: [405, 9751] is the nearest" in wrong


def test_a_lock_without_persistence_and_a_refused_one_leave_no_record(host: Host) -> None:
    done = host.apply({"gpus": [{"match": {}, "locked_graphics_mhz": [210, 1005]}]})
    assert said(done.stdout)[0].endswith("to 210-1005 MHz (lost with its last client, as persistence is off)")
    assert not host.record.exists()
    host.driver.put(gpu0__fault__call__nvmlDeviceSetGpuLockedClocks=4)
    assert host.apply(LOCKED).returncode == 1
    assert [line[0] for line in lines_of(host)] == sorted(UUIDS[1:])


def test_a_geforce_has_its_other_limits_without_application_clocks(cards: Host) -> None:
    rule = {**ALL["gpus"][0], "match": {}}
    assert "application_clocks" in rule
    gpus = cards.show()["gpus"]
    assert [(gpu["power_limit_max_w"], gpu["application_clocks"]) for gpu in gpus] == [
        (350, None),
        (375, None),
        (480, None),
    ]
    assert gpus[0]["errors"] == {"application_clocks": "Not Supported", "default_application_clocks": "Not Supported"}
    cards.driver.put(gpu1__fault__call__nvmlDeviceGetApplicationsClock=26)  # a driver that has them no longer
    done = cards.apply({"gpus": [rule]})
    assert (done.returncode, done.stderr) == (0, "")
    assert [gpu["power_limit_w"] for gpu in cards.show()["gpus"]] == [rule["power_limit_w"]] * 3
    watched = cards.run("watch")
    assert (watched.returncode, watched.stdout, watched.stderr) == (0, "", "")
    cards.driver.put(gpu1__fault__call__nvmlDeviceGetApplicationsClock=999)  # they are not missing
    assert "application clocks: Unknown Error" in cards.apply({"gpus": [rule]}).stderr


def test_pascal_locks_nothing_and_turing_no_memory(cards: Host) -> None:
    cards.driver.put(gpu0__arch=4, gpu0__clocks__supported="", gpu1__arch=6)
    cards.driver.put(gpu0__clocks__memory_lockable=0, gpu1__clocks__memory_lockable=0)
    rule = {"match": {}, "persistence": True, "locked_graphics_mhz": [210, 1400], "locked_memory_mhz": [5001, 9501]}
    done = cards.apply({"gpus": [rule]})
    assert done.returncode == 1
    cannot = "Not Supported; this GPU cannot do it: take {} out of its limits"
    assert [line.split(" NVIDIA GeForce RTX 3090: refused: ") for line in done.stderr.splitlines()] == [
        [f"0000:08:00.0 {FRAME[0][:12]}", "locked graphics clock: " + cannot.format("locked_graphics_mhz")],
        [f"0000:08:00.0 {FRAME[0][:12]}", "locked memory clock: " + cannot.format("locked_memory_mhz")],
        [f"0000:09:00.0 {FRAME[1][:12]}", "locked memory clock: " + cannot.format("locked_memory_mhz")],
    ]
    assert sorted(line[:2] for line in lines_of(cards)) == sorted(
        [[FRAME[1], "graphics"], [FRAME[2], "graphics"], [FRAME[2], "memory"]]
    )


@pytest.mark.nightly
def test_sixteen_at_once_lose_nothing(host: Host) -> None:
    for number in range(4):
        host.wants(LOCKED)
        path = host.root / f"{number}.json"
        rule = {"match": {"uuid": UUIDS[number]}, "persistence": True, "locked_graphics_mhz": [210, 1005]}
        path.write_text(json.dumps({"gpus": [rule]}))
    null = subprocess.DEVNULL
    argv = [sys.executable, "-I", str(host.program), "apply", "--wait-s", "0", "--config"]
    words = [[*argv, str(host.root / f"{number % 4}.json")] for number in range(16)]
    running = [subprocess.Popen(one, env=host.env(), stdout=null, stderr=null) for one in words]
    assert [one.wait(timeout=60) for one in running] == [0] * 16
    assert sorted(line[0] for line in lines_of(host)) == sorted(UUIDS)
    assert [gpu["locked_graphics_mhz"] for gpu in host.show()["gpus"]] == [[210, 1005]] * 4


# --- watch


@pytest.fixture
def watched(host: Host) -> Host:
    """Returns a host whose GPUs all have the wanted values, after one run of watch."""
    assert host.apply(ALL).returncode == 0
    assert look(host) == (0, [], [])
    return host


def look(host: Host) -> tuple[int, list[str], list[str]]:
    """Runs watch once; returns its exit status, stdout and stderr."""
    done = host.run("watch", "--gpu-timeout-s", "5")
    return done.returncode, done.stdout.splitlines(), done.stderr.splitlines()


def reset_of_gpu_2(host: Host) -> None:
    names = "power_limit_mw application_memory_mhz application_graphics_mhz locked_graphics_max locked_graphics_min"
    host.driver.put(**{f"gpu1__set__{name}": "" for name in names.split()})


def test_what_a_reset_took_is_given_again_and_said_three_times_in_a_row(watched: Host) -> None:
    line = (
        f"{title(2)}: forgotten (power limit 300 W is the default; application clocks 877,1312 MHz is the default): "
        "power limit 300 -> 200 W; application clocks 877,1312 -> 877,1005 MHz"
    )
    reset_of_gpu_2(watched)
    assert look(watched) == (0, [line], [])
    assert look(watched) == (0, [], [])
    for out in ([line], [line], [f"{line} (at each of 3 looks, said no more)"], [], []):
        reset_of_gpu_2(watched)
        assert look(watched) == (0, out, [])
    assert watched.show()["gpus"][1]["power_limit_w"] == 200, "repaired anyway"


@pytest.mark.parametrize("event", [Host.load_driver, Host.boot])
def test_after_a_load_of_the_driver_or_a_boot_all_is_set_again(watched: Host, event: Callable[[Host], None]) -> None:
    event(watched)
    code, out, errors = look(watched)
    assert (code, errors, len(out)) == (0, [], 4)
    assert out[0].startswith(f"{title(1)}: forgotten (persistence is off")
    assert [gpu["power_limit_w"] for gpu in watched.show()["gpus"]] == [200] * 4
    assert look(watched) == (0, [], [])


@pytest.mark.nightly
def test_a_limit_that_somebody_typed_is_left_alone_and_said_once(watched: Host) -> None:
    watched.driver.put(gpu1__set__power_limit_mw=250000)
    line = f"{title(2)}: drift: power limit 250 W, wanted 200 W; left alone"
    assert look(watched) == (0, [line], [])
    assert look(watched) == (0, [], [])
    watched.driver.put(gpu1__set__power_limit_mw=240000)
    assert look(watched) == (0, [line.replace("250", "240")], [])
    assert watched.show()["gpus"][1]["power_limit_w"] == 240
    assert said(watched.apply(ALL).stdout)[1] == "power limit 240 -> 200 W", "apply repairs it"
    watched.driver.put(gpu1__set__power_limit_mw=240000)
    assert look(watched) == (0, [line.replace("250", "240")], []), "a new decision, said anew"


@pytest.mark.parametrize("event", [Host.load_driver, Host.boot])
def test_a_lock_ends_with_its_boot_or_load_and_is_set_again(host: Host, event: Callable[[Host], None]) -> None:
    host.apply(LOCKED)
    assert look(host) == (0, [], [])
    assert host.show()["gpus"][3]["locked_graphics_mhz"] == [210, 1005]
    event(host)
    assert host.show()["gpus"][3]["locked_graphics_mhz"] is None
    code, out, errors = look(host)
    assert (code, errors) == (0, [])
    assert out[0].startswith(f"{title(1)}: forgotten (persistence is off; no locked graphics clock on record)"), out[0]
    assert host.driver.kept()["gpu0.set.locked_graphics_max"] == "1005"
    assert look(host) == (0, [], [])


@pytest.mark.nightly
def test_a_reset_takes_the_lock_with_it_though_its_record_stays(host: Host) -> None:
    """The other values show the reset; without other values, the clock under load shows it."""
    both = {"positions": POSITIONS, "gpus": [{**RULE, "locked_graphics_mhz": [210, 1005]}]}
    host.apply(both)
    reset_of_gpu_2(host)
    assert "locked graphics clock to 210-1005 MHz" in look(host)[1][0]
    host.apply(LOCKED)
    reset_of_gpu_2(host)
    host.driver.put(gpu1__set__power_limit_mw=200000)
    assert look(host) == (0, [], []), "nobody can tell while it idles"
    host.driver.put(gpu1__load=100)
    time.sleep(0.5)  # simulated clocks follow their load in ticks of 0.1 s
    line = (
        f"{title(2)}: forgotten (locked graphics clock: runs above 1005 MHz): "
        "locked graphics clock to 210-1005 MHz (set, not readable)"
    )
    assert look(host) == (0, [line], [])
    assert look(host) == (0, [], [])


@pytest.mark.nightly
def test_what_is_refused_is_refused_at_every_look_and_said_once(watched: Host) -> None:
    reset_of_gpu_2(watched)
    watched.driver.put(gpu1__fault__call__nvmlDeviceSetPowerManagementLimit=4)
    code, out, errors = look(watched)
    assert (code, len(out)) == (1, 1)
    assert errors == [
        f"{title(2)}: refused: power limit: Insufficient Permissions; it wants root: "
        "sudo systemctl restart gpu-limits.service"
    ]
    again = [look(watched) for _ in range(4)]
    assert [(code, errors) for code, _, errors in again] == [(1, [])] * 4
    assert again[3][1] == []


def test_a_lost_a_missing_and_a_hanging_gpu_are_said_once_and_the_others_are_mended(watched: Host) -> None:
    watched.driver.put(gpu1__fault__open=15, gpu3__absent=1)
    code, out, errors = look(watched)
    assert (code, out) == (1, [])
    assert errors[0].startswith("SXM2-2 0000:07:00.0: GPU is lost")
    assert errors[1:] == ["3 of 4 expected GPUs present, missing: SXM2-4 0000:0b:00.0"]
    assert look(watched) == (1, [], [])
    watched.driver.put(gpu1__fault__open="", gpu3__absent="")
    watched.load_driver()
    watched.driver.put(gpu2__fault__delay_ms=120000)
    started = time.monotonic()
    code, out, errors = look(watched)
    assert time.monotonic() - started < 60
    assert (code, len(out), errors) == (1, 3, ["SXM2-3 0000:0a:00.0: no answer within 5 s"])


def test_a_gpu_whose_asker_hangs_in_the_kernel_is_not_asked_again(watched: Host) -> None:
    """Otherwise every minute would leave one more process that cannot be killed."""
    hanging = subprocess.Popen(["sleep", "60"])
    try:
        fields = Path(f"/proc/{hanging.pid}/stat").read_text().rpartition(")")[2].split()
        memory = watched.root / "run/rigwright/limits-drift"
        memory.write_text(json.dumps({"stuck": {"GPU 2": [hanging.pid, fields[19]]}}))
        line = f"SXM2-3 0000:0a:00.0: no answer; process {hanging.pid} that asked it still hangs in the kernel"
        assert look(watched) == (1, [], [line])
        assert "no answer" in watched.show()["gpus"][2]["errors"]["gpu"]
    finally:
        hanging.send_signal(signal.SIGKILL)
        hanging.wait()
    assert look(watched) == (0, [], [])


def test_an_unloaded_driver_is_left_unloaded(watched: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """An NVML call would load the driver in the middle of an upgrade."""
    watched.unload_driver()
    trace = watched.root / "trace"
    monkeypatch.setenv("NVMLSIM_TRACE", str(trace))
    assert look(watched) == (0, ["the driver is not loaded: nothing to look at"], [])
    assert look(watched) == (0, [], [])
    assert not trace.exists()


def test_a_gpu_without_a_rule_is_said_once(host: Host) -> None:
    host.wants({"gpus": [{"match": {"pci_bus_id": BUS_IDS[0]}, "persistence": True}]})
    code, out, _ = look(host)
    assert (code, said("\n".join(out))[1:]) == (0, ["no rule for it, left alone"] * 3)
    assert look(host) == (0, [], [])


def test_watch_is_quick_when_there_is_nothing_to_do_and_waits_for_nobody(watched: Host) -> None:
    began, state = resource.getrusage(resource.RUSAGE_CHILDREN), watched.driver.kept()
    look(watched)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert within(ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime, 2)
    assert watched.driver.kept() == state
    reset_of_gpu_2(watched)
    with (watched.root / "run/rigwright/limits.lock").open("a") as lock:
        subprocess.run(["flock", "--exclusive", str(lock.fileno())], pass_fds=[lock.fileno()], check=True)
        assert look(watched) == (0, [], [])
    assert len(look(watched)[1]) == 1


# --- show and reset


def test_show_tells_everything_of_a_v100(host: Host) -> None:
    document = host.show()
    assert (document["driver_version"], document["nvml_version"]) == (VERSION, "12." + VERSION)
    gpu = document["gpus"][2]
    clocks, links = gpu.pop("supported_application_clocks"), gpu.pop("nvlinks")
    assert clocks["877"][:2] == [1530, 1522]
    assert len(links) == 6
    assert links[0] == {"link": 0, "mb_s": 25781, "peer": "00000000:06:00.0", "errors": 0}
    assert gpu == {
        "index": 2,
        "uuid": UUIDS[2],
        "pci_bus_id": "00000000:0A:00.0",
        "place": "0000:0a:00.0",
        "name": "Tesla V100-SXM2-16GB",
        "persistence": False,
        "power_limit_w": 300,
        "power_limit_default_w": 300,
        "power_limit_min_w": 150,
        "power_limit_max_w": 300,
        "application_clocks": {"memory_mhz": 877, "graphics_mhz": 1312},
        "default_application_clocks": {"memory_mhz": 877, "graphics_mhz": 1312},
        "clocks": {"memory_mhz": 877, "graphics_mhz": 135},
        "locked_graphics_mhz": None,
        "locked_memory_mhz": None,
        "locked_clocks_readable": False,
        "errors": {},
    }


def test_show_tells_which_links_are_down_what_they_counted_and_why_it_does_not_tell(host: Host) -> None:
    host.driver.put(gpu0__link0__state=0, gpu0__link1__crc=4, gpu0__link1__replay=3, gpu0__link1__recovery=2)
    links = host.show()["gpus"][0]["nvlinks"]
    assert links[0] == {"link": 0, "mb_s": None, "peer": None, "errors": None}
    assert links[1] == {"link": 1, "mb_s": 25781, "peer": "00000000:07:00.0", "errors": 9}
    for gpu, code in enumerate((3, 2, 999)):
        host.driver.put(**{f"gpu{gpu}.fault.call.nvmlDeviceGetFieldValues": code})
    gpus = host.show()["gpus"]
    assert [gpu["nvlinks"] for gpu in gpus[:3]] == [None] * 3
    assert [gpu["errors"]["nvlinks"] for gpu in gpus[:3]] == ["Not Supported", "Invalid Argument", "Unknown Error"]
    assert len(gpus[3]["nvlinks"]) == 6


def test_reset_gives_the_defaults_back_and_leaves_persistence(host: Host) -> None:
    config = {**ALL, "gpus": [{**RULE, "locked_graphics_mhz": [210, 900]}]}
    host.apply(config)
    assert len(lines_of(host)) == 4
    done = host.run("reset")
    assert (done.returncode, done.stderr) == (0, "")
    assert said(done.stdout)[0] == "power limit 200 -> 300 W; application clocks 877,1005 -> 877,1312 MHz"
    kept = host.driver.kept()
    assert kept["gpu0.set.persistence"] == "1"
    assert "gpu0.set.locked_graphics_max" not in kept
    assert lines_of(host) == []
    assert said(host.run("reset").stdout)[0] == "as wanted, nothing to change"
    assert look(host) == (0, [], []), "watch rests"
    assert host.show()["gpus"][0]["power_limit_w"] == 300
    host.apply(config)
    reset_of_gpu_2(host)
    assert len(look(host)[1]) == 1, "until the next apply"


# --- the command that rigwright runs on the host


def command_of(host: Host, *words: str, path: str = os.environ["PATH"]) -> Done:
    """Returns the command of `invoke limits`, with this host's program in place of the installed one."""
    argv = [
        {limits.PROGRAM: str(host.program), "sh": "/bin/sh"}.get(word, word)
        for word in script(limits._RUN, limits.PROGRAM, *words).argv
    ]
    env = {**host.env(), "PATH": path}
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_the_command_of_limits_sets_them_and_resets_them(host: Host) -> None:
    host.wants(ALL)
    done = command_of(host, "apply", "--wait-s", "0")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert [gpu["power_limit_w"] for gpu in host.show()["gpus"]] == [200] * 4
    assert command_of(host, "reset").returncode == 0
    assert [gpu["power_limit_w"] for gpu in host.show()["gpus"]] == [300] * 4
    assert look(host) == (0, [], []), "the timer's check is paused"


def test_the_command_of_limits_fails_for_a_gpu_that_refuses_and_not_for_a_lost_one(host: Host) -> None:
    """The following plan names the lost GPU; the others have their limits."""
    host.wants(ALL)
    host.driver.put(gpu2__fault__open=15)
    assert command_of(host, "apply", "--wait-s", "0").returncode == 0
    host.driver.put(gpu2__fault__open="", gpu1__fault__call__nvmlDeviceSetPowerManagementLimit=4)
    assert [gpu["power_limit_w"] for gpu in host.show()["gpus"]] == [200, 200, 300, 200]
    host.boot()
    done = command_of(host, "apply", "--wait-s", "0")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"E: {title(2)}: refused: power limit: Insufficient Permissions; it wants root: "
        "sudo systemctl restart gpu-limits.service\n"
    )
    assert [gpu["power_limit_w"] for gpu in host.show()["gpus"]] == [200, 300, 200, 200]


def test_the_command_of_limits_without_python(host: Host, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    done = command_of(host, "apply", path=str(tmp_path / "bin"))
    assert (done.returncode, done.stderr) == (1, "E: the host has no python3: sudo apt-get install python3\n")


# --- pynvml of other versions, and users other than root

OLD_PYNVML = '''
"""Strings are bytes, as before 11.5, and memory clocks cannot be locked."""
import functools
from newer import *
import newer

def _bytes(function):
    def call(*arguments):
        value = function(*arguments)
        return value.encode() if isinstance(value, str) else value
    return call

for _name in ("nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlSystemGetDriverVersion", "nvmlSystemGetNVMLVersion"):
    globals()[_name] = _bytes(getattr(newer, _name))

class _Info:
    def __init__(self, bus_id):
        self.busId = bus_id

def nvmlDeviceGetPciInfo(handle):
    return _Info(newer.nvmlDeviceGetPciInfo(handle).busId.encode())

del nvmlDeviceSetMemoryLockedClocks
'''


def test_pynvml_of_bytes(cards: Host) -> None:
    folder = cards.program.parent
    (folder / "pynvml.py").rename(folder / "newer.py")
    (folder / "pynvml.py").write_text(OLD_PYNVML)
    gpu = cards.show()["gpus"][0]
    assert (gpu["pci_bus_id"], gpu["name"]) == ("00000000:08:00.0", "NVIDIA GeForce RTX 3090")
    rule = {"match": {}, "persistence": True, "locked_graphics_mhz": [210, 1400], "locked_memory_mhz": [5001, 9501]}
    done = cards.apply({"gpus": [rule]})
    assert done.returncode == 1
    assert "locked memory clock: pynvml.py beside this program is too old for it" in done.stderr
    assert [line[1] for line in lines_of(cards)] == ["graphics"] * 3


def test_a_user_may_look_and_not_set() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        host = host_of("servbadge", Path(folder))
        host.apply(LOCKED)

        def run(*words: str) -> Done:
            argv = ["/usr/bin/python3", "-I", str(host.program), *words]
            env, nobody = host.env(), 65534
            return subprocess.run(argv, env=env, user=nobody, capture_output=True, text=True, timeout=60, check=False)

        assert json.loads(run("show").stdout)["gpus"][0]["locked_graphics_mhz"] == [210, 1005]
        done = run("apply")
        assert done.returncode == 1
        assert done.stderr.startswith("apply wants root: sudo ")
