"""recorder.py as on a GPU host, over the simulated driver: its samples, its journal, and what it does when a part of
the machine hangs."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import stat
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pynvml
import pytest

from lab.simulators.nvml.bare import Bare
from rigwright.core import features
from rigwright.core.command import Result
from rigwright.facts import parsed
from rigwright.features.recorder.facts import HUNG, LOST, Recording, unfetched

PROGRAM = features.host_programs()["recorder.py"]
BOOT = "1d9c1c14-6f0e-4b7e-9d0a-0a3c5f0f7f01"
SDR = """\
12V,12.240,Volts,ok
P12V_CPU,11.94,Volts,ok
3.3V,3.31,Volts,ok
PS1 Status,03h,ok,10.1,Presence detected, Power Supply AC lost
PS1 Power,190,Watts,ok
FAN1,7500,RPM,ok
FAN2,no reading,RPM,ns
Inlet Temp,22,degrees C,ok
"""


@pytest.fixture
def program(module: Callable[[str], Any]) -> Any:
    """Returns the program as a module."""
    return module("recorder")


@dataclass
class Host:
    """A simulated driver, the program and pynvml.py in a folder, and the folders of the host that the program reads."""

    driver: Bare
    root: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.root / "recording"

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Starts the program; returns it once its journal has a sample."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(mode=0o700)
        argv = [sys.executable, "-I", "-B", f"{self.root}/program/recorder.py", "--folder", str(self.folder), *words]
        env = {**self.driver.env(), "RIGWRIGHT_ROOT": str(self.root), "PATH": f"{self.root}/bin:{os.environ['PATH']}"}
        child = subprocess.Popen(argv, env=env, cwd="/", stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.started.append(child)
        ends = time.monotonic() + 20
        while not self.has('"g":'):
            assert time.monotonic() < ends, "no sample within 20 s"
            if child.poll() is not None:
                break
            time.sleep(0.02)
        return child

    def has(self, text: str) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return text in (self.folder / "samples.jsonl").read_text()
        return False

    def wait_for(self, text: str, within_s: float) -> float:
        """Waits until the journal on the disk has this text; returns how long that took."""
        began = time.monotonic()
        while not self.has(text):
            assert time.monotonic() - began < within_s, f"no {text} within {within_s} s"
            time.sleep(0.02)
        return time.monotonic() - began

    def recording(self) -> Recording:
        """Returns the journal as the controller reads it."""
        body = (self.folder / "samples.jsonl").read_bytes()
        first = body.partition(b"\n")[0].decode()
        head = f"recording r\nboot {BOOT}\nheader {first}\nsize {len(body)}\nplain\n"
        found = parsed(unfetched, Result(0, head.encode() + body))
        assert isinstance(found, Recording), found
        assert found.damaged == 0
        return found

    def has_ipmitool(self, script: str) -> None:
        path = self.root / "bin/ipmitool"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)


@pytest.fixture
def host(servbadge: Bare, tmp_path: Path) -> Iterator[Host]:
    made = Host(servbadge, tmp_path)
    for name in ("program", "bin", "dev", "proc/sys/kernel/random", "sys/class/hwmon"):
        (tmp_path / name).mkdir(parents=True)
    for path in (PROGRAM, Path(str(pynvml.__file__))):
        shutil.copy(path, tmp_path / "program")
    (tmp_path / "proc/sys/kernel/random/boot_id").write_text(f"{BOOT}\n")
    os.mkfifo(tmp_path / "dev/kmsg")
    made.has_ipmitool("exit 1")
    yield made
    for child in made.started:
        child.kill()
        child.communicate()


def test_it_samples_ten_times_a_second_and_ends_at_its_limit(host: Host) -> None:
    began = time.monotonic()
    child = host.start("--limit-s", "3")
    assert child.wait(60) == 0
    assert time.monotonic() - began > 2.9
    found = host.recording()
    assert found.end == "limit"
    assert 10 <= len(found.series) <= 31
    gaps = [later - earlier for earlier, later in itertools.pairwise(found.series.m)]
    assert statistics.median(gaps) == pytest.approx(0.1, abs=0.02)
    assert found.boot_id == BOOT
    assert [gpu.bus_id for gpu in found.gpus] == ["0000:06:00.0", "0000:07:00.0", "0000:0a:00.0", "0000:0b:00.0"]
    assert found.power == "instant"
    assert found.gpus[0].limit_w == 300
    assert found.peak(0).most_w == 40
    assert found.peak(0).lowest_sm_mhz == 135
    assert stat.S_IMODE((host.folder / "samples.jsonl").stat().st_mode) == 0o600
    assert not (host.folder / "reserve").exists()


@pytest.mark.parametrize(
    ("number", "end"), [(None, "stop"), (signal.SIGTERM, "signal"), (signal.SIGHUP, "signal"), (signal.SIGKILL, "")]
)
def test_after_every_end_the_journal_can_be_read(host: Host, number: signal.Signals | None, end: str) -> None:
    child = host.start("--limit-s", "60")
    time.sleep(1.5)
    if number is None:
        (host.folder / "stop").touch()
    else:
        child.send_signal(number)
    assert child.wait(60) == (-9 if number == signal.SIGKILL else 0)
    found = host.recording()
    assert (found.end, len(found.series) >= 5) == (end, True)


def test_it_ends_when_nobody_follows_it(host: Host) -> None:
    child = host.start("--limit-s", "60", "--idle-s", "3")
    for _ in range(8):
        (host.folder / "alive").touch()
        time.sleep(0.5)
        assert child.poll() is None
    assert child.wait(60) == 0
    assert host.recording().end == "idle"


def test_a_peak_of_three_tenths_of_a_second_is_not_missed(host: Host) -> None:
    child = host.start("--limit-s", "60")
    time.sleep(0.53)
    for _ in range(3):
        host.driver.put(gpu0__load=100)
        time.sleep(0.3)
        host.driver.put(gpu0__load="")
        time.sleep(0.77)
    (host.folder / "stop").touch()
    child.wait(60)
    found = host.recording()
    loaded = [row for row in range(len(found.series)) if found.series.power_w[0][row] > 250]
    times = [found.series.m[row] for row in loaded]
    peaks = 1 + sum(later - earlier > 0.5 for earlier, later in itertools.pairwise(times))
    assert peaks == 3
    assert found.peak(1).most_w == 40


def test_a_gpu_that_hangs_stops_neither_the_others_nor_the_end(host: Host) -> None:
    child = host.start("--limit-s", "7")
    host.driver.put(gpu1__fault__delay_ms=150_000)
    assert child.wait(60) == 0
    found = host.recording()
    assert found.end == "limit"
    assert found.series.state[1][-1] == HUNG
    assert set(found.series.state[0]) == {0}
    assert sum(watts == 40 for watts in found.series.power_w[3]) > len(found.series) / 2


def test_a_lost_gpu_is_recorded_as_lost(host: Host) -> None:
    child = host.start("--limit-s", "60")
    host.driver.put(gpu2__fault=15)
    host.wait_for('"lost"', 5)
    (host.folder / "stop").touch()
    child.wait(60)
    found = host.recording()
    assert found.series.state[2][-1] == LOST
    assert found.series.state[1][-1] == 0


SET_LIMIT = """
import pynvml
pynvml.nvmlInit()
pynvml.nvmlDeviceSetPowerManagementLimit(pynvml.nvmlDeviceGetHandleByIndex(3), 200000)
"""


@pytest.mark.usefixtures("as_root")
def test_a_changed_power_limit_is_recorded(host: Host) -> None:
    host.start("--limit-s", "60")
    subprocess.run([sys.executable, "-c", SET_LIMIT], env=host.driver.env(), check=True)
    host.wait_for('"limits":[300.0,300.0,300.0,200.0]', 5)


def test_without_a_driver_it_records_the_rest(host: Host) -> None:
    host.has_ipmitool(f"cat <<'END'\n{SDR}END")
    host.driver.put(driver__loaded="none")
    child = host.start("--limit-s", "2")
    assert child.wait(60) == 0
    found = host.recording()
    assert found.without_gpus
    assert found.gpus == ()
    assert found.lowest_voltage() is not None


def test_supplies_and_the_12_v_rail_are_read_at_their_own_pace(host: Host) -> None:
    reading = '*"sensor reading"*) echo 12V,11.310; echo P12V_CPU,11.94;;'
    host.has_ipmitool(f"case \"$*\" in {reading} *elist*) cat <<'END'\n{SDR}END\n;; esac")
    child = host.start("--limit-s", "4")
    assert child.wait(60) == 0
    found = host.recording()
    assert found.sensors is not None
    assert found.sensors.source == "ipmi"
    assert found.sensors.fans == {"FAN1": 7500}
    assert found.sensors.rails["3.3V"] == 3.31
    assert found.sensors.supplies == {"PS1 Status": "Presence detected,Power Supply AC lost", "PS1 Power W": "190.0"}
    assert [voltage.volts for voltage in found.voltages][:2] == [11.94, 11.31], "the lowest of the 12 V rails"
    assert len(found.voltages) >= 3


def test_readings_are_bounded(program: Any) -> None:
    many = "".join(f"FAN{number}{'x' * 500},1,RPM,ok\n" for number in range(1000)) + "12V,nan,Volts,ok\n,,\n12V\n"
    read = program.of_ipmi(many)
    assert len(read["fans"]) == program.MOST_SENSORS
    assert max(map(len, read["fans"])) == program.LONGEST_NAME
    assert read["12V"] is None


def test_the_entity_tells_supplies_with_sensors_of_one_name_apart(program: Any) -> None:
    dell = "Input Power,110,Watts,ok,10.1\nInput Power,0,Watts,ok,10.2\n12V,12.1,Volts,ok,10.1\n"
    dell += "Status,62h,ok,10.1,Presence detected\nStatus,63h,ok,10.2,Presence detected,Power Supply AC lost\n"
    read = program.of_ipmi(f"{dell}Power Supply 1,240,Watts,ok,10.3\nPS2 Status,62h,ok,10.4,Presence detected\n")
    assert read["psu"] == {
        "Supply 10.1 Input Power W": 110,
        "Supply 10.2 Input Power W": 0,
        "Supply 10.1 Status": "Presence detected",
        "Supply 10.2 Status": "Presence detected,Power Supply AC lost",
        "Power Supply 1 W": 240,
        "PS2 Status": "Presence detected",
    }
    assert read["rails"] == {"12V": 12.1}, "ipmitool sensor reading takes this name"


def test_names_of_12_v_rails(program: Any) -> None:
    names = ("12V", "P12V", "+12 V", "PSU1 12Vout", "3.3V", "1.12V", "112V")
    assert [name for name in names if program.is_12_v(name)] == ["12V", "P12V", "+12 V", "PSU1 12Vout"]


def test_without_ipmitool_the_kernels_sensors_are_read(host: Host) -> None:
    chip = host.root / "sys/class/hwmon/hwmon3"
    chip.mkdir()
    files = {"name": "nct6798", "in4_input": "11904", "in4_label": "+12V", "in1_input": "x", "fan2_input": "1200"}
    for name, text in files.items():
        (chip / name).write_text(f"{text}\n")
    child = host.start("--limit-s", "2")
    assert child.wait(60) == 0
    found = host.recording()
    assert found.sensors is not None
    assert (found.sensors.source, found.sensors.rails) == ("hwmon", {"nct6798 +12V": 11.904})
    assert found.sensors.fans == {"nct6798 fan2": 1200}
    assert found.voltages[0].volts == 11.904


def test_a_program_that_hangs_is_a_reading(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one = program.Program()
    began = time.monotonic()
    assert one.run(["sleep", "150"], 0.3) == "hung"
    assert time.monotonic() - began < 60
    assert one.run(["echo", "well"], 60) == "well\n"
    assert one.run(["false"], 60) is None
    assert one.run(["/nowhere/ipmitool"], 60) is None
    killed: list[Any] = []
    dies = lambda process: killed.append(process)  # noqa: E731 (bound to the process, which in the kernel does not die)
    monkeypatch.setattr(program.subprocess.Popen, "kill", dies)
    assert one.run(["sleep", "150"], 0.1) == "hung"
    assert one.run(["echo", "well"], 60) == "hung", "a second one is not started beside it"
    monkeypatch.undo()
    killed[0].kill()
    killed[0].wait()
    assert one.run(["echo", "well"], 5) == "well\n"


def test_an_xid_is_on_the_disk_at_once(host: Host) -> None:
    log = os.open(host.root / "dev/kmsg", os.O_RDWR)
    child = host.start("--limit-s", "60")
    try:
        os.write(log, b"6,1,1000,-;usb 1-3: new device\n")
        time.sleep(0.1)
        os.write(log, b"4,2,2000,-;NVRM: Xid (PCI:0000:0B:00): 79, pid='<unknown>', GPU has fallen off the bus.\n")
        assert host.wait_for('"xid":["0000:0b:00.0",79]', 2) < 1
    finally:
        os.close(log)
    (host.folder / "stop").touch()
    child.wait(60)
    (xid,) = host.recording().xids
    assert (xid.bus_id, xid.code) == ("0000:0b:00.0", 79)


def test_a_flood_of_xids_is_bounded(program: Any) -> None:
    record = "4,2,2000,-;NVRM: Xid (PCI:0000:0b:00.1): 13, " + "x" * 5000 + "\n SUBSYSTEM=pci"
    bus_id, code, text = program.xid_of(record)
    assert (bus_id, code, len(text)) == ("0000:0b:00.1", 13, 200)
    assert program.xid_of("4,2,2000,-;NVRM: GPU at PCI:0000:0b:00") is None


# --- the journal

HEADER = {"schema": 1, "boot_id": BOOT, "hz": 10, "gpus": []}


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_lines_are_synced_within_a_second(program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert program.SYNC_S <= 1
    synced: list[int] = []
    real = os.fsync

    def fsync(file: int) -> None:
        real(file)
        synced.append(os.fstat(file).st_size)

    monkeypatch.setattr(program.os, "fsync", fsync)
    journal = program.Journal(str(tmp_path), HEADER, 0)
    journal.start()
    journal.add({"g": []})
    began = time.monotonic()
    while not synced or synced[-1] < len(program.json_line(HEADER)) + 10:
        assert time.monotonic() - began < 60, "not synced"
        time.sleep(0.01)
    journal.close("stop")
    assert synced[-1] == (tmp_path / "samples.jsonl").stat().st_size
    assert lines_of(tmp_path / "samples.jsonl")[-1]["end"] == "stop"


def test_the_newest_part_of_a_long_journal_is_kept(
    program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "MOST_BYTES", 2000)
    monkeypatch.setattr(program, "SYNC_S", 0.01)
    journal = program.Journal(str(tmp_path), HEADER, 0)
    journal.start()
    for number in range(300):
        journal.add({"g": [number]})
        time.sleep(0.002)
    journal.close("limit")
    older, newer = lines_of(tmp_path / "samples.1.jsonl"), lines_of(tmp_path / "samples.jsonl")
    assert older[0] == newer[0] == HEADER
    numbers = [line["g"][0] for line in (*older, *newer) if "g" in line]
    assert numbers == list(range(numbers[0], 300))
    assert newer[-1]["end"] == "limit"
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 4000


def test_a_disk_that_does_not_answer_costs_samples_and_no_memory(
    program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "WAITING_LINES", 10)
    answers = threading.Event()
    journal = program.Journal(str(tmp_path), HEADER, 0)
    real = os.fsync

    def fsync(file: int) -> None:
        answers.wait(20)
        real(file)

    monkeypatch.setattr(program.os, "fsync", fsync)
    journal.start()
    journal.add({"g": [0]}, urgent=True)
    time.sleep(0.2)
    for number in range(1, 31):
        journal.add({"g": [number]})
    answers.set()
    time.sleep(0.6)
    journal.add({"g": [31]})
    journal.close("stop")
    found = lines_of(tmp_path / "samples.jsonl")
    assert [line["g"][0] for line in found if "g" in line] == [*range(11), 31]
    assert [line["dropped"] for line in found if "dropped" in line] == [20]


def test_too_little_room_ends_it_with_a_mark(host: Host) -> None:
    child = host.start("--limit-s", "60", "--least-free-mib", str(1 << 30))
    assert child.wait(60) == 0
    last = lines_of(host.folder / "samples.jsonl")[-1]
    assert (last["end"], last["why"]) == ("disk", f"less than {1 << 30} MiB free")


@pytest.mark.usefixtures("as_root")
def test_a_full_disk_ends_it_with_a_mark_and_a_readable_journal(
    program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "SYNC_S", 0.01)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(tmp_path)], check=True)
    try:
        journal = program.Journal(str(tmp_path), HEADER, 0)
        journal.start()
        began = time.monotonic()
        while not journal.failed.wait(0.002):
            assert time.monotonic() - began < 60, "the disk is never full"
            journal.add({"g": ["x" * 500]})
        journal.close("disk")
        found = lines_of(tmp_path / "samples.jsonl")
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
    assert (found[-1]["end"], found[-1]["why"]) == ("disk", "No space left on device")
    assert len(found) > 100


@pytest.mark.parametrize(
    "words", [("--limit-s", "0"), ("--limit-s", "5", "--hz", "1000"), ("--limit-s", "5", "--idle-s", "-1"), ()]
)
def test_wrong_usage_is_one_message(tmp_path: Path, words: tuple[str, ...]) -> None:
    argv = [sys.executable, str(PROGRAM), "--folder", str(tmp_path), *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "error:" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_one_message(host: Host) -> None:
    host.start("--limit-s", "1").wait(10)
    argv = [sys.executable, f"{host.root}/program/recorder.py", "--folder", str(host.folder), "--limit-s", "1"]
    done = subprocess.run(argv, env=host.driver.env(), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == f"recorder.py: {host.folder}: File exists\n"
