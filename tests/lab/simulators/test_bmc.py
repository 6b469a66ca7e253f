"""The simulated management controller, asked as ipmitool's dummy interface does. End-to-end tests ask it with
ipmitool."""

from __future__ import annotations

import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.simulators.bmc import controller
from lab.simulators.nvml.bare import CACHE, Bare, bare

pytestmark = pytest.mark.usefixtures("as_root")
HEAD = "@BBBBHxxP"
ANSWER = "@BBBBBiP"
FULL, COMPACT = 1, 2


@dataclass
class Controller:
    """A running controller and the state that it reads."""

    driver: Bare
    process: subprocess.Popen[bytes]
    events: Path

    def ask(self, netfn: int, cmd: int, data: bytes = b"") -> tuple[int, bytes]:
        """Returns the completion code and the data of a response."""
        with socket.socket(socket.AF_UNIX) as to:
            to.settimeout(10)
            to.connect(str(self.driver.hardware / "bmc"))
            to.sendall(struct.pack(HEAD, netfn, 0, cmd, 0, len(data), 0) + data)
            head = to.recv(struct.calcsize(ANSWER), socket.MSG_WAITALL)
            answered, replied, _, _, code, size, _ = struct.unpack(ANSWER, head)
            assert (answered, replied) == (netfn + 1, cmd)
            return code, to.recv(size, socket.MSG_WAITALL) if size else b""

    def records(self) -> dict[str, bytes]:
        """Returns the sensor data records by name, read in parts as ipmitool reads them."""
        found, number = {}, 0
        while number != 0xFFFF:
            parts, at, following = b"", 0, 0
            while at < 5 or at < 5 + parts[4]:
                code, data = self.ask(0x0A, 0x23, struct.pack("<HHBB", 0x0101, number, at, 22))
                assert code == 0
                following, parts = int.from_bytes(data[:2], "little"), parts + data[2:]
                at = len(parts)
            name = parts[48 if parts[3] == FULL else 32 :].decode()
            found[name], number = parts, following
        return found

    def readings(self) -> dict[str, tuple[float, int]]:
        """Returns each sensor's value, by its record's factors, and its state."""
        found = {}
        for name, record in self.records().items():
            code, data = self.ask(0x04, 0x2D, record[7:8])
            assert code == 0
            exponent = record[29] >> 4 if record[3] == FULL else 0
            exponent -= 16 * (exponent > 7)
            factor = record[24] * 10**exponent if record[3] == FULL else 0
            found[name] = (data[0] * factor, data[2] & 0x3F)
        return found

    def wait_for(self, events: set[str]) -> None:
        """Waits until exactly these events have been reported."""
        ends = time.monotonic() + 20
        while set(self.events.read_text().split()) != events:
            assert time.monotonic() < ends, self.events.read_text()
            time.sleep(0.05)


@pytest.fixture
def badge() -> Iterator[Controller]:
    with tempfile.TemporaryDirectory(prefix="rigwright-bmc.") as name:
        driver = bare("servbadge", "535.261.03", Path(name) / "rig")
        events = Path(name) / "events"
        events.touch()
        script = f'echo "$1" >>{events}'
        argv = [controller.built(CACHE), driver.hardware, "0", "/bin/sh", "-c", script, "sh"]
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
        ends = time.monotonic() + 10
        while not (driver.hardware / "bmc").exists():
            assert time.monotonic() < ends
            time.sleep(0.02)
        yield Controller(driver, process, events)
        process.kill()
        process.wait()


def ramp(badge: Controller) -> None:
    """Loads all four GPUs at the same moment."""
    badge.driver.put(**{f"gpu{gpu}__load": 100 for gpu in range(4)})


def test_the_sensors_of_a_machine(badge: Controller) -> None:
    code, device = badge.ask(0x06, 0x01)
    assert (code, device[4]) == (0, 0x02), "IPMI 2.0"
    seen = badge.readings()
    assert seen["Inlet Temp"] == (22, 0)
    assert seen["12V"] == (pytest.approx(12.24, abs=0.07), 0)
    assert seen["PS3 Status"][1] == 0x1
    assert seen["PS3 Power"][0] == pytest.approx(190, abs=10)
    assert seen["FAN4"] == (7500, 0)
    assert seen["GPU1 Temp"] == (33, 0)
    record = badge.records()["12V"]
    assert [value * 0.06 for value in record[36:42]] == pytest.approx([13.2, 12.6, 12.48, 10.8, 11.4, 11.58])


def test_load_and_faults_show_in_the_sensors(badge: Controller) -> None:
    badge.driver.put(heat__speed=60, inlet_c=41, gpu1__fan_speed=0)
    ramp(badge)
    time.sleep(3)
    seen = badge.readings()
    assert seen["PS1 Power"][0] == pytest.approx(460, abs=50)
    assert seen["12V"][0] == pytest.approx(12.06, abs=0.07)
    assert seen["GPU1 Temp"][0] > 60
    assert seen["Inlet Temp"] == (41, 0x08), "above its first limit"
    assert seen["FAN2"] == (0, 0x07), "below all its limits"
    assert badge.events.read_text() == ""


def test_two_supplies_lose_gpus_when_all_ramp(badge: Controller) -> None:
    badge.driver.put(supply1__out=1)
    time.sleep(0.4)
    assert badge.readings()["PS2 Status"][1] == 0x9, "present, without input"
    ramp(badge)
    badge.wait_for({"0"})
    assert "GPU1 Temp" not in badge.records()


def test_one_supply_resets_the_machine(badge: Controller) -> None:
    badge.driver.put(supply1__out=1, supply2__out=1)
    time.sleep(0.4)
    assert badge.events.read_text() == ""
    ramp(badge)
    badge.wait_for({"0", "1", "2", "3", "reset"})
    assert badge.readings()["PS1 Status"][1] == 0x3, "failed"
    assert badge.readings()["12V"] == (0, 0x07)


def test_it_ends_with_the_boot(badge: Controller) -> None:
    badge.driver.cut_power()
    assert badge.process.wait(timeout=10) == 0


def test_what_makes_no_sense_is_refused_and_does_no_harm(badge: Controller) -> None:
    with socket.socket(socket.AF_UNIX) as rude:
        rude.connect(str(badge.driver.hardware / "bmc"))
        rude.sendall(b"\xff" * 4000)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(badge.driver.hardware / "bmc"))
        silent.sendall(b"\x06")
        assert badge.ask(0x06, 0x01)[0] == 0
    assert badge.ask(0x06, 0x02)[0] == 0xC1, "an unknown command"
    assert badge.ask(0x04, 0x2D, b"\xfe")[0] == 0xCB, "no such sensor"
    assert badge.ask(0x0A, 0x23, struct.pack("<HHBB", 0x0101, 999, 0, 22))[0] == 0xCB
    assert badge.ask(0x0A, 0x23, struct.pack("<HHBB", 0x0202, 1, 5, 22))[0] == 0xC5, "not its reservation"
    assert badge.ask(0x0A, 0x23, b"\x01")[0] == 0xC9
    assert badge.process.poll() is None


def test_a_link_in_the_hosts_files_leads_out_of_nowhere(tmp_path: Path) -> None:
    """The host's root may write there; the controller is root of the machine."""
    with tempfile.TemporaryDirectory(prefix="rigwright-bmc.") as name:
        driver = bare("servbadge", "535.261.03", Path(name) / "rig")
        target = tmp_path / "of-the-machine"
        target.write_text("kept")
        (driver.hardware / "volatile/physics").unlink()
        (driver.hardware / "volatile/physics").symlink_to(target)
        (driver.hardware / "bmc").symlink_to(target)
        process = subprocess.Popen([controller.built(CACHE), driver.hardware, "0", "/bin/true"])
        time.sleep(1)
        process.kill()
        process.wait()
        assert target.read_text() == "kept"
