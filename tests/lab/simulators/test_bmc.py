"""The simulated management controller refuses what makes no sense. End-to-end tests read its sensors with ipmitool."""

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


@dataclass
class Controller:
    """A running controller and the state that it reads."""

    driver: Bare
    process: subprocess.Popen[bytes]

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


@pytest.fixture
def badge() -> Iterator[Controller]:
    with tempfile.TemporaryDirectory(prefix="rigwright-bmc.") as name:
        driver = bare("servbadge", "535.261.03", Path(name) / "rig")
        argv = [controller.built(CACHE), driver.hardware, "0", "/bin/true"]
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
        ends = time.monotonic() + 10
        while not (driver.hardware / "bmc").exists():
            assert time.monotonic() < ends
            time.sleep(0.02)
        yield Controller(driver, process)
        process.kill()
        process.wait()


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
