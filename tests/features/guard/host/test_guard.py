"""The guard as on a GPU host: over the simulated driver, and in this process with readings and a clock that the test
gives."""

from __future__ import annotations

import contextlib
import http.server
import importlib
import io
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.simulators.nvml.bare import bare
from rigwright.features.guard import operations

BOOT = "1d9c1c14-6f0e-4b7e-9d0a-0a3c5f0f7f01"
HEAT = {"gpu_temperature_c": {"above": 90, "for_s": 2}}
GPU = {"index": 0, "bus_id": "0000:06:00.0", "uuid": "GPU-6", "name": "V100", "limit_w": 300.0, "slowdown_c": 87}
OTHER = {**GPU, "index": 1, "bus_id": "0000:07:00.0", "uuid": "GPU-7"}
SDR = """\
12V,12.240,Volts,ok
PS1 Power In,700,Watts,ok
PS1 Power Out,650,Watts,ok
PS2 Power In,300,Watts,ok
FAN1,7500,RPM,ok
"""


def until(is_so: Callable[[], object], within_s: float = 20) -> None:
    """Waits for a condition."""
    ends = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < ends
        time.sleep(0.02)


def text_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text_of(path).splitlines()]


def host_folders(root: Path, *names: str) -> None:
    """Makes the folders of a host and its files, and the programs that it calls."""
    for name in ("bin", "dev", "proc/sys/kernel/random", "sys/module/nvidia", *names):
        (root / name).mkdir(parents=True)
    (root / "proc/sys/kernel/random/boot_id").write_text(f"{BOOT}\n")
    os.mkfifo(root / "dev/kmsg")
    stand_ins(root / "bin")


def stand_ins(folder: Path) -> None:
    """Programs of systemd that write down how they were called; systemd-run runs what it is given."""
    log = folder / "calls"
    (folder / "systemctl").write_text(f'#!/bin/sh\necho "systemctl $*" >>{log}\n')
    (folder / "systemd-run").write_text(
        f'#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done; shift\necho "tell" >>{log}\nexec "$@"\n'
    )
    (folder / "ipmitool").write_text(f"#!/bin/sh\ncat <<'END'\n{SDR}END\n")
    (folder / "tell").write_text(f'#!/bin/sh\n{{ echo "== $1"; cat; }} >>{folder}/told\n')
    for path in folder.iterdir():
        path.chmod(0o755)


class Gpus:
    """A reader of GPUs whose samples the test gives: a number is the temperature of the first GPU."""

    def __init__(self) -> None:
        self.gpus, self.why = [dict(GPU), dict(OTHER)], None
        self.next: Any = 60
        self.asked: list[float | None] = []
        self.obeys = True

    def take(self, _now: float) -> Any:
        if isinstance(self.next, (int, float)):
            return [[250.0, 1500, 877, self.next, 55, 0, 40], [50.0, 135, 877, 40, 40, 0, None]]
        return self.next

    def lower(self, watts: float | None) -> bool:
        self.asked.append(watts)
        return self.obeys

    def take_lowered(self) -> list[Any]:
        return []


class Guarded:
    """A guard in this process, with a clock that the test moves."""

    def __init__(self, modules: Any, root: Path, **config: Any) -> None:
        self.root, self.gpus = root, Gpus()
        whole = {"thresholds": HEAT, "steps": [], **config}
        assert list(modules.mistakes(whole)) == []
        (root / "guard.json").write_text(json.dumps(whole))
        self.said: list[str] = []
        self.guard = modules.Guard(whole, str(root / "guard.json"), 300, 0, BOOT, self.gpus, self.said.append)
        self.now, self.up_s = time.monotonic(), 10_000.0

    def ticks(self, seconds: int, *, t: float | None = None) -> None:
        for _ in range(seconds):
            self.guard.tick(self.now, time.time() if t is None else t, self.up_s)
            self.now, self.up_s = self.now + 1, self.up_s + 1
        self.guard.store.flush()

    def events(self) -> list[str]:
        return [event["event"] for event in self.recorded()]

    def recorded(self) -> list[dict[str, Any]]:
        return lines_of(self.root / "data/events.jsonl")

    def until_called(self, text: str) -> str:
        """Goes on until a program of systemd was called with a text; returns all calls."""
        calls = self.root / "bin/calls"
        until(lambda: self.guard.acts.tick(self.now) == "" or text in text_of(calls))
        return text_of(calls)

    def until_event(self, kind: str) -> None:
        """Goes on until there is an event of a kind."""
        until(lambda: self.ticks(1) or kind in self.events())  # type: ignore[func-returns-value]


@pytest.fixture
def modules(module: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Returns the module of the guard, whose host is a folder."""
    host_folders(tmp_path, "run", "data", "sys/devices/system/edac/mc/mc0")
    for name in ("ce_count", "ue_count"):
        (tmp_path / "sys/devices/system/edac/mc/mc0" / name).write_text("0\n")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    guard = module("guard")
    for one in (guard, guard.guard_sensors, guard.recorder):
        monkeypatch.setattr(one, "ROOT", str(tmp_path))
    monkeypatch.setattr(guard, "FOLDER", str(tmp_path / "data"))
    monkeypatch.setattr(guard, "RUN", str(tmp_path / "run"))
    monkeypatch.setattr(guard.guard_sensors.Machine, "take", lambda *_: None)
    return guard


@pytest.fixture
def host(modules: Any, tmp_path: Path) -> Any:
    """Returns `host(**config)`, which makes a guard."""
    return lambda **config: Guarded(modules, tmp_path, **config)


# --- the whole program


@pytest.mark.usefixtures("as_root")
def test_it_lowers_the_limit_stops_a_unit_powers_off_and_tells(folder: Path, tmp_path: Path) -> None:
    driver = bare("servbadge", "535.261.03", tmp_path / "driver")
    host_folders(tmp_path, "program", "etc/rigwright", "metrics")
    for name in (*operations.NAMES, "pynvml.py"):
        shutil.copy(folder / name, tmp_path / "program")
    config: dict[str, Any] = {
        "thresholds": {"gpu_temperature_c": {"above": 90, "for_s": 1}}, "steps": ["lower-limit", "stop", "power-off"],
        "step_s": 1, "stop": ["training.service"], "textfile": f"{tmp_path}/metrics/guard.prom",
        "notify": {"command": f"{tmp_path}/bin/tell"}, "positions": {"0000:0a:00.0": "SXM2-3"},
    }  # fmt: skip
    (tmp_path / "etc/rigwright/guard.json").write_text(json.dumps(config))
    words = ["run", "--after-boot-s", "0", "--least-free-mib", "0"]
    env = {**driver.env(), "RIGWRIGHT_ROOT": str(tmp_path), "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    child = subprocess.Popen(
        [sys.executable, "-I", "-B", f"{tmp_path}/program/guard.py", *words],
        env=env, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    calls, told = tmp_path / "bin/calls", tmp_path / "bin/told"
    driver.put(gpu2__temp=97)
    try:
        until(lambda: "poweroff" in text_of(calls) or child.poll() is not None, 40)
    finally:
        child.send_signal(signal.SIGTERM)
        out = child.communicate(timeout=20)[0]
    assert child.returncode == 0
    lines = calls.read_text().splitlines()
    end = lines.index("systemctl poweroff -i")
    assert [line for line in lines[:end] if line != "tell"] == ["systemctl stop -- training.service"]
    assert lines[:end].count("tell") >= 2, "it tells before"
    text = told.read_text()
    assert text.startswith("== lower-limit\n")
    assert "== power-off\n" in text
    assert "GPU SXM2-3 0000:0a:00.0: 97 C" in text
    assert "the machine is powered off: GPU SXM2-3 0000:0a:00.0 at 97 C (limit 90 C) for" in text
    assert "lowered: SXM2-3 0000:0a:00.0: power limit 300 W -> 150 W" in out, "the lowest that a V100 has"
    assert out.count("power limit 300 W -> 150 W") == 4, "all GPUs"
    data = tmp_path / "var/lib/rigwright/guard"
    ring = lines_of(data / "ring.jsonl")
    assert ring[0]["boot_id"] == BOOT.replace("-", "")
    assert [line["g"][2][3] for line in ring if "g" in line][-1] == 97
    assert any(line.get("ipmi", {}).get("fans") == {"FAN1": 7500} for line in ring)
    steps = ["started", *config["steps"]]
    assert [event["event"] for event in lines_of(data / "events.jsonl") if event["event"] in steps] == steps
    months = json.loads((data / "energy.json").read_text())["months"]
    assert months[time.strftime("%Y-%m")]["gpus_j"] > 100
    assert max(heat for hour in lines_of(data / "hours.jsonl") for heat, _ in hour["gpus"].values()) == 97
    metrics = (tmp_path / "metrics/guard.prom").read_text()
    assert 'rigwright_guard_gpu_temperature_celsius{bus_id="0000:0a:00.0",uuid="GPU-' in metrics
    assert 'rigwright_guard_fan_rpm{fan="FAN1"} 7500' in metrics
    assert "rigwright_guard_machine_power_watts 1000\n" in metrics
    assert {stat.S_IMODE(path.stat().st_mode) for path in data.iterdir()} == {0o600}


# --- the readings


def test_a_driver_that_hangs_is_a_reading_and_does_not_stop_the_guard(modules: Any, tmp_path: Path) -> None:
    header = json.dumps({"gpus": [GPU], "why": None})
    line = json.dumps({"g": [[250.0, 1, 1, 60, 50, 0, 40]], "limits": [300.0]})
    script = f"echo '{header}'; echo '{line}'; trap '' TERM; echo $$ >>{tmp_path}/started; exec sleep 100"
    reader = modules.guard_sensors.GpuReader(["sh", "-c", script])
    assert reader.take(0.0) is None
    until(lambda: reader.take(1.0) == [[250.0, 1, 1, 60, 50, 0, 40]])
    began = time.monotonic()
    assert reader.take(5.0) is None
    assert reader.take(7.0) == "hung"
    assert reader.why == "the driver does not answer"
    assert reader.take(40.0) == "hung"
    assert reader.process is not None
    reader.process.wait(60)  # it was killed after half a minute
    assert reader.take(41.0) is None
    assert reader.take(60.0) is None, "not started again at once"
    reader.take(102.0)
    assert time.monotonic() - began < 60
    until(lambda: len((tmp_path / "started").read_text().split()) == 2)
    assert reader.process is not None
    reader.process.kill()


def test_no_second_process_is_started_beside_one_that_cannot_be_killed(
    modules: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = modules.guard_sensors.GpuReader(["sleep", "100"])
    reader.take(0.0)
    process = reader.process
    with monkeypatch.context() as patch:
        patch.setattr(modules.guard_sensors.subprocess.Popen, "kill", lambda _: None)
        for now in range(1, 400):
            reader.take(float(now))
    assert reader.process is process
    assert reader.take(400.0) == "hung"
    process.kill()


def test_hung_and_lost_gpus_are_told_once_and_nothing_is_powered_off(host: Any) -> None:
    one = host(steps=["power-off"])
    one.gpus.next = 97
    one.ticks(2)
    one.gpus.next = [[250.0, 1, 1, "hung", 5, 0, 0], "lost"]
    one.ticks(3)
    one.gpus.next, one.gpus.why = "hung", "the driver does not answer"
    one.ticks(600)
    assert one.events() == ["gpu-lost", "gpu-hung"]
    assert not (one.root / "bin/calls").exists()
    assert one.guard.samples == ["hung", "hung"]
    one.gpus.next, one.gpus.why = 60, None
    one.ticks(2)
    assert one.events()[2:] == ["gpu-back", "gpu-back"]


def test_without_a_driver_it_says_so_and_goes_on(host: Any) -> None:
    one = host()
    one.gpus.next, one.gpus.gpus, one.gpus.why = None, [], "the driver is not loaded"
    one.ticks(50)
    assert one.events() == []
    one.ticks(30)
    assert [(event["event"], event["text"]) for event in one.recorded()] == [("no-gpus", "the driver is not loaded")]
    assert json.loads((one.root / "run/state.json").read_text())["without_gpus"] == "the driver is not loaded"


def test_a_driver_that_is_not_loaded_is_not_asked_and_one_that_refuses_again_after_a_minute(
    modules: Any, tmp_path: Path
) -> None:
    line = json.dumps({"gpus": [], "why": "Driver/library version mismatch"})
    reader = modules.guard_sensors.GpuReader(["sh", "-c", f"echo '{line}'; echo x >>{tmp_path}/started"])
    (tmp_path / "sys/module/nvidia").rmdir()
    reader.take(0.0)
    assert (reader.process, reader.why) == (None, "the driver is not loaded")
    (tmp_path / "sys/module/nvidia").mkdir()
    reader.take(1.0)
    until(lambda: reader.take(2.0) or reader.process is None)
    assert reader.why == "Driver/library version mismatch"
    assert not reader.lower(150)
    reader.take(61.0)
    assert reader.process is None
    reader.take(62.0)
    assert reader.process is not None
    reader.process.wait(10)


def test_the_kernel_tells_of_kills_machine_checks_and_memory_errors(modules: Any, tmp_path: Path) -> None:
    log = os.open(tmp_path / "dev/kmsg", os.O_RDWR)
    try:
        kernel = modules.guard_sensors.Kernel()
        os.write(log, b"3,1,1,-;Out of memory: Killed process 4242 (python3) total-vm:1kB\n")
        assert kernel.take(0.0) == [("oom-kill", "out of memory: process 4242 (python3) was killed")]
        os.write(log, b"3,1,1,-;Memory cgroup out of memory: Killed process 7 (sh) total-vm:1kB\n")
        assert kernel.take(1.0) == [("oom-kill", "out of memory: process 7 (sh) was killed")]
        os.write(log, b"0,1,1,-;mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 5: be00000000800400\n")
        assert [kind for kind, _ in kernel.take(2.0)] == ["machine-check"]
        os.write(log, b"4,2,2,-;NVRM: Xid (PCI:0000:0B:00): 79, pid=1\n")
        assert kernel.take(3.0) == [("xid", "Xid 79 on GPU 0000:0b:00.0")]
        (tmp_path / "sys/devices/system/edac/mc/mc0/ue_count").write_text("3\n")
        (tmp_path / "sys/devices/system/edac/mc/mc0/ce_count").write_text("many\n")
        os.write(log, b"6,2,2,-;usb 1-3: new device\n")
        assert kernel.take(4.0) == []
    finally:
        os.close(log)
    assert list(kernel.counters.values()) == [0, 3, 1, 2, 1], kernel.counters


def test_uncorrected_memory_errors_are_told_with_the_readings(host: Any, tmp_path: Path) -> None:
    (tmp_path / "sys/devices/system/edac/mc/mc0/ue_count").write_text("1\n")
    one = host(notify={"mail": "root"})
    one.ticks(2)
    assert one.events() == [], "what was counted before the start is no news"
    (one.root / "sys/devices/system/edac/mc/mc0/ue_count").write_text("3\n")
    one.ticks(2)
    (event,) = one.recorded()
    assert (event["event"], event["text"]) == ("memory-error", "2 uncorrected errors of the main memory (EDAC)")
    (path,) = (one.root / "run").glob("message-*.json")
    message = json.loads(path.read_text())
    assert message["readings"]["GPU 0000:06:00.0"] == "60 C, memory 55 C, 250.0 W of 300.0 W, fan 40 %"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_controller_that_hangs_is_one_event_and_fans_are_judged(host: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one = host(thresholds={"fan_rpm_min": {"below": 500, "for_s": 10}}, steps=["lower-limit"], lower_limit_w=180)
    given: list[Any] = [{"ipmi": "hung"}] * 3
    monkeypatch.setattr(one.guard.machine, "take", lambda _now: given.pop(0) if given else None)
    one.ticks(4)
    assert one.events() == ["bmc"]
    for fan in (7000, 0, 0):
        given.append({"ipmi": {"fans": {"FAN1": fan}, "psu": {}, "12V": 12.0}, "from": "ipmi"})
        one.ticks(10)
    assert one.events() == ["bmc", "bmc", "lower-limit"]
    assert one.gpus.asked == [180]
    assert "fan FAN1 at 0 RPM (least 500) for 10 s" in one.recorded()[-1]["text"]


def test_a_header_without_a_fan_is_not_judged(host: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one = host(thresholds={"fan_rpm_min": {"below": 500, "for_s": 1}}, steps=["lower-limit"])
    read = {"ipmi": {"fans": {"nct fan7": 0.0, "nct fan1": 900.0}}, "from": "hwmon"}
    monkeypatch.setattr(one.guard.machine, "take", lambda _now: read)
    one.ticks(60)
    assert one.events() == []
    read["ipmi"]["fans"]["nct fan1"] = 0.0
    one.ticks(5)
    assert one.events() == ["lower-limit"], "one that has turned is"


def test_the_power_of_the_machine(modules: Any) -> None:
    for psu, watts in (
        ({"PS1 Power In W": 700, "PS1 Power Out W": 650, "PS2 Power In W": 300}, 1000),
        ({"Power Supply 1 W": 200.0, "Total_Power W": 190}, 200),
        ({"Pwr Consumption W": 420}, 420),
        ({"CPU Power W": 90}, None),
        ({"PS1 Status": "Presence detected", "PS1 Curr A": 3}, None),
        ({"PS1 W": 1e9}, None),
    ):
        assert modules.guard_sensors.machine_watts(psu) == watts, psu


# --- the steps' effects


def test_a_limit_that_cannot_be_lowered_is_told_and_the_next_step_comes(host: Any) -> None:
    one = host(steps=["lower-limit", "stop"], step_s=5, stop=["a.service"])
    one.gpus.obeys, one.gpus.next = False, 95
    one.ticks(12)
    assert one.events() == ["lower-limit", "failed", "stop"]
    assert one.until_called("stop") == "systemctl stop -- a.service\n"


def test_a_unit_that_does_not_stop_is_told_and_a_machine_that_does_not_power_off_is_forced(host: Any) -> None:
    one = host(steps=["stop", "power-off"], stop=["a.service"], step_s=5)
    log = one.root / "bin/calls"
    (one.root / "bin/systemctl").write_text(f'#!/bin/sh\necho "$*" >>{log}\necho "not  loaded." >&2; exit 5\n')
    one.gpus.next = 95
    one.ticks(4)
    one.until_event("failed")
    assert one.recorded()[-1]["text"] == "stop: not loaded."
    one.until_event("power-off")
    assert one.until_called("--force").splitlines() == ["stop -- a.service", "poweroff -i", "poweroff --force"]


def test_a_notification_that_hangs_delays_the_power_off_by_a_quarter_of_a_minute(host: Any) -> None:
    one = host(steps=["lower-limit", "power-off"], step_s=1, notify={"mail": "root"})
    (one.root / "bin/systemd-run").write_text("#!/bin/sh\nexec sleep 100\n")
    one.gpus.next, monotonic = 95, one.now
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: one.now)
        one.ticks(15)
        assert one.events() == ["lower-limit", "power-off"]
        assert len(one.guard.acts.telling) == 2, "the last message does not wait for the one before it"
        assert not (one.root / "bin/calls").exists()
        one.ticks(5)
    assert one.now - monotonic == 20
    assert "poweroff" in one.until_called("poweroff")
    for program, _ in one.guard.acts.telling:
        program.process.kill()


def test_a_notification_that_fails_is_an_event_with_its_reason(host: Any) -> None:
    one = host(steps=["lower-limit"], notify={"command": "/nowhere/tell"})
    one.gpus.next = 95
    one.ticks(4)
    one.until_event("not-told")
    assert one.recorded()[-1]["text"] == "notify: command /nowhere/tell: No such file or directory"
    assert [path.name for path in (one.root / "run").iterdir()] == ["state.json"]


def test_events_are_recorded_always_and_told_seldom(host: Any) -> None:
    one = host(notify={"command": "/bin/true"})
    for _ in range(5):
        one.guard.event("oom-kill", "out of memory: process 1 (x) was killed")
    one.guard.store.flush()
    assert one.events() == ["oom-kill"] * 5
    assert len(one.guard.acts.waiting) == 1


def test_a_clock_that_is_set_is_an_event_and_costs_no_energy(host: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one = host()
    one.ticks(11)
    before = one.guard.energy.months[time.strftime("%Y-%m")]["gpus_j"]
    assert before == pytest.approx(3000)
    shifted = time.time() + 40 * 86400
    monkeypatch.setattr(time, "time", lambda: shifted)
    one.ticks(11, t=shifted)
    assert one.events() == ["clock"]
    assert one.guard.energy.months[time.strftime("%Y-%m", time.localtime(shifted))]["gpus_j"] == pytest.approx(3300)
    assert one.guard.steps.made == 0


# --- the store


def test_energy_before_the_clock_is_set_counts_for_the_month_in_which_it_is(modules: Any) -> None:
    energy = modules.guard_store.Energy("")
    for now in range(11):
        energy.add(float(now), 100.0, None)
        energy.book(3600.0)
    assert energy.months == {}
    energy.book(1795000000.0)
    assert energy.months == {"2026-11": {"gpus_j": 1000.0, "machine_j": 0.0, "s": 10.0, "machine_s": 0.0}}
    energy.add(500.0, 100.0, 200.0)
    energy.book(1795000000.0)
    assert energy.months["2026-11"]["gpus_j"] == 2000.0, "a pause counts for ten seconds at most"
    assert modules.guard_store.Energy(energy.text()).months == energy.months
    for text in ("{", "[]", '{"months": {"2026-11": {}}}', '{"months": []}'):
        damaged = modules.guard_store.Energy(text)
        assert (damaged.months, damaged.damaged) == ({}, True)


def test_the_ring_keeps_an_hour_and_goes_on_after_a_restart(
    modules: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modules.guard_store.os, "fdatasync", lambda _: None)
    folder = tmp_path / "ring"
    folder.mkdir()
    t0 = 1_800_000_000.0

    def written(begin: int, end: int) -> None:
        ring = modules.guard_store.Ring(str(folder), 0)
        for second in range(begin, end, 5):
            lines = [{"m": number} for number in range(second, second + 5)]
            ring.write(lines, {"t": t0 + second, "boot_id": BOOT}, float(second))
        ring.close()

    written(0, 6000)
    written(6000, 6300)
    names = ["ring.jsonl", *(f"ring.{part}.jsonl" for part in range(1, 7))]
    assert sorted(path.name for path in folder.iterdir()) == sorted(names)
    kept = [line["m"] for name in reversed(names) for line in lines_of(folder / name) if "m" in line]
    assert kept == list(range(kept[0], 6300)), "no line is lost, and none is double"
    assert 3600 <= len(kept) <= 4200
    for start in range(20):  # restarts within ten minutes continue the newest part
        written(6300 + start, 6301 + start)
    assert len(list(folder.iterdir())) == 7
    assert (folder / "ring.1.jsonl").read_text().count("boot_id") == 1


def test_a_full_disk_stops_the_ring_only_and_is_told(host: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one = host(steps=["lower-limit"], lower_limit_w=200)
    monkeypatch.setattr(one.guard.store.ring, "least_free", 1 << 60)
    one.ticks(1)
    one.gpus.next = 95
    one.ticks(5)
    assert one.events() == ["ring", "lower-limit"]
    assert "the ring of the last hour is not written: less than" in one.recorded()[0]["text"]
    monkeypatch.setattr(one.guard.store.ring, "least_free", 0)
    one.ticks(2)
    one.ticks(1)
    assert one.recorded()[-1]["text"] == "the ring of the last hour is written again"
    assert (one.root / "data/ring.jsonl").exists()


def test_a_disk_that_does_not_answer_costs_the_oldest_lines_and_events_are_bounded(
    modules: Any, tmp_path: Path
) -> None:
    store = modules.guard_store.Store(str(tmp_path), {"t": 0}, None, 0)
    for number in range(1000):
        store.add({"m": number})
    store.flush()
    lines = lines_of(tmp_path / "ring.jsonl")
    assert [line["m"] for line in lines if "m" in line] == list(range(400, 1000))
    assert lines[-1] == {"dropped": 400}
    for number in range(700):
        store.add_event({"event": "x", "t": number})
        store.flush() if number % 100 == 99 else None
    lines = lines_of(tmp_path / "events.jsonl")
    assert (len(lines), lines[-1]["t"]) == (500, 699)


def test_hours_have_the_hottest_reading_and_the_mean_power(modules: Any) -> None:
    hours, t = modules.guard_store.Hours(), 1_800_000_000.0
    for second in range(0, 600):
        hours.add(t + second, "GPU-6", 60 + second % 10, 200.0 if second % 2 else None)
    assert hours.ended(t + 600) is None
    assert hours.ended(t + 3600) == {"t": 1_800_000_000, "gpus": {"GPU-6": [69, 200.0]}}
    assert hours.ended(t + 3600) is None
    hours.add(t + 3600, "GPU-6", 50, 100.0)
    assert hours.ended(t + 3601, closing=True) == {"t": 1_800_003_600, "gpus": {"GPU-6": [50, 100.0]}}


def test_metrics_without_a_folder_are_told(host: Any) -> None:
    one = host(textfile="/nowhere/x/guard.prom")
    one.ticks(20)
    one.ticks(1)
    assert [event["text"] for event in one.recorded()] == ["the metrics are not written: no folder /nowhere/x"]


def test_a_link_in_the_folder_of_the_metrics_is_not_followed(modules: Any, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("mine")
    for name, make in (("a", os.symlink), ("b", os.link)):
        make(mine, tmp_path / f"{name}.prom.new")
        modules.guard_store.replace(str(tmp_path / f"{name}.prom"), b"metrics", 0o644)
        assert (tmp_path / f"{name}.prom").read_text() == "metrics"
    assert mine.read_text() == "mine"


def test_names_of_fans_cannot_break_the_metrics(modules: Any) -> None:
    samples = [("fan_rpm", {"fan": 'a"b\\c\nd\x1b[31m'}, 1.5), ("machine_power_watts", {}, None)]
    text = modules.guard_metrics.text(samples)
    assert text.splitlines()[-1] == 'rigwright_guard_fan_rpm{fan="a\\"b\\\\c d [31m"} 1.5'
    assert "machine_power" not in text


# --- the configuration


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "thresholds is missing"),
        ({"steps": ["power-off", "stop"]}, "steps: expected of lower-limit, stop, power-off, in this order"),
        ({"thresholds": {"gpu_c": {}}}, "thresholds: gpu_c is not one of"),
        ({"thresholds": {"gpu_temperature_c": {"above": 255, "for_s": 1}}}, "temperature_c.above: expected 40 to 110"),
        ({"thresholds": {"gpu_temperature_c": {"above": 90}}}, "gpu_temperature_c.for_s: expected 1 to 600"),
        ({"thresholds": {"fan_rpm_min": {"above": 9, "for_s": 1}}}, "unknown key: fan_rpm_min.above"),
        ({"stops": []}, "unknown key: stops"),
        ({"stop": ["--force"]}, "stop: expected a list of units"),
        ({"notify": {"mail": "-t"}}, "notify.mail: expected an address"),
        ({"notify": {"webhook": "ftp://u:secret@x"}}, "notify.webhook: expected http"),
        ({"positions": {"0000:06:00.0": 1}}, "positions: expected names by bus id"),
        ([], "no JSON object"),
    ],
)  # fmt: skip
def test_a_wrong_configuration_is_one_message(
    modules: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], config: Any, said: str
) -> None:
    path = tmp_path / "guard.json"
    path.write_text(json.dumps({"thresholds": {}, "steps": []} | config if config else config))
    with pytest.raises(SystemExit) as ended:
        modules.load_config(str(path))
    assert ended.value.code == 2
    found = capsys.readouterr().err
    assert said in found
    assert "secret" not in found
    assert found.count("\n") == 1


def test_a_configuration_that_is_not_there(modules: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        modules.load_config(str(tmp_path / "none.json"))
    assert "none.json: No such file or directory; invoke provision writes it again" in capsys.readouterr().err


# --- telling


class Hook(http.server.BaseHTTPRequestHandler):
    """A webhook that answers with the status of its server and keeps what it got."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append(json.loads(body))  # type: ignore[attr-defined]
        self.send_response(self.server.status)  # type: ignore[attr-defined]
        self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Writes nothing."""


@pytest.fixture
def hook() -> Iterator[Any]:
    server = http.server.HTTPServer(("127.0.0.1", 0), Hook)
    server.got, server.status = [], 200  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


MESSAGE = {"event": "power-off", "machine": "box", "text": "too hot", "time": "now", "readings": {"GPU 0": "97 C"}}


def told(monkeypatch: pytest.MonkeyPatch, folder: Path, **ways: str) -> tuple[int, str]:
    """Returns the exit status and stderr of guard_notify with these ways."""
    notify = importlib.import_module("guard_notify")
    monkeypatch.setattr(notify, "PAUSES_S", (0, 0))
    monkeypatch.setattr(notify, "SENDMAILS", (str(folder / "bin/sendmail"),))
    (folder / "config").write_text(json.dumps({"notify": ways}))
    (folder / "message").write_text(json.dumps(MESSAGE))
    monkeypatch.setattr(sys, "argv", ["x", "--config", str(folder / "config"), "--message", str(folder / "message")])
    with contextlib.redirect_stderr(io.StringIO()) as err:
        status = notify.main()
    return status, err.getvalue()


@pytest.mark.usefixtures("modules")
def test_all_three_ways_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, hook: Any) -> None:
    mail = tmp_path / "bin/sendmail"
    mail.write_text(f'#!/bin/sh\n{{ echo "$*"; cat; }} >{tmp_path}/mail\n')
    mail.chmod(0o755)
    url = f"http://127.0.0.1:{hook.server_port}/canary-key"
    found = told(monkeypatch, tmp_path, command=f"{tmp_path}/bin/tell", webhook=url, mail="root")
    assert found == (0, "")
    assert hook.got == [MESSAGE]
    text = (tmp_path / "mail").read_text()
    assert text.startswith("-oi root\nTo: root\nSubject: box: GPU guard: power-off\n")
    assert "too hot\n\nmachine: box\ntime: now\n\nGPU 0: 97 C\n" in text
    assert "too hot" in (tmp_path / "bin/told").read_text()
    assert "canary" not in text


@pytest.mark.usefixtures("modules")
def test_what_cannot_be_told_is_said_without_the_address(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, hook: Any
) -> None:
    hook.status = 302
    url = f"http://127.0.0.1:{hook.server_port}/canary-key"
    status, said = told(monkeypatch, tmp_path, command="/nowhere/tell", webhook=url, mail="root")
    assert status == 1
    assert "command /nowhere/tell: No such file or directory" in said
    assert "webhook: HTTP status 302, 2 times" in said
    assert "there is no" in said
    assert "sendmail: install a mail program" in said
    assert "canary" not in said
    assert len(hook.got) == 2, "a redirect is not followed"


@pytest.mark.usefixtures("modules")
def test_a_webhook_that_is_away_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, hook: Any) -> None:
    hook.server_close()
    found = told(monkeypatch, tmp_path, webhook=f"http://127.0.0.1:{hook.server_port}/canary")
    assert found == (1, "webhook: Connection refused, 2 times\n")
    status, said = told(monkeypatch, tmp_path, webhook="http://[canary/")
    assert (status, "canary" in said) == (1, False)
