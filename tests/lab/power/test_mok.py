"""MokManager of a simulated machine: a request is decided on at the next power on, and gone after it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from lab.hardware import hw_state
from lab.power import mok
from tests.paths import ROOT

PASSWORD = "Tulip2026"


def mokutil(root: Path, *words: str, typed: str = "") -> str:
    """Runs the stand-in for mokutil on the disk; returns what it says, without the questions."""
    text = (ROOT / "lab/simulators/guest_gpu/mokutil").read_text().replace("/boot/efi", f"{root}/boot/efi")
    done = subprocess.run(
        ["sh", "-c", text, "mokutil", *words], input=typed, capture_output=True, text=True, check=False, env=os.environ
    )
    return done.stdout + done.stderr


@pytest.fixture
def machine(tmp_path: Path) -> tuple[Path, Path]:
    """Returns the disk and the hardware of a machine that was switched on once, with a certificate on the disk."""
    root, hw = tmp_path / "root", tmp_path / "hw"
    for folder in (root / "boot", hw / "nvram", hw / "volatile"):
        folder.mkdir(parents=True)
    (hw / "board.conf").touch()
    (hw / "nvram/nvram").touch()
    (root / "mok.pub").write_bytes(b"\x30\x82\x01\x00a certificate")
    mok.power_on(root, hw)
    return root, hw


@pytest.mark.parametrize(
    ("types", "said"), [(PASSWORD, "already enrolled"), ("tulip2026", "is not enrolled"), ("", "is not enrolled")]
)
def test_the_request_is_decided_on_at_the_next_boot(machine: tuple[Path, Path], types: str, said: str) -> None:
    root, hw = machine
    certificate = str(root / "mok.pub")
    assert "is not enrolled" in mokutil(root, "--test-key", certificate)
    mokutil(root, "--import", certificate, typed=f"{PASSWORD}\n{PASSWORD}\n")
    assert "already in the enrollment request" in mokutil(root, "--test-key", certificate)
    if types:
        hw_state.edit(hw, nvram={mok.TYPES: types})
    mok.power_on(root, hw)
    assert said in mokutil(root, "--test-key", certificate)
    assert mok.TYPES not in hw_state.values(hw), "typed once"


def test_two_passwords_that_differ_are_no_request(machine: tuple[Path, Path]) -> None:
    root, _ = machine
    certificate = str(root / "mok.pub")
    assert "password doesn't match" in mokutil(root, "--import", certificate, typed="one\ntwo\n")
    assert "is not enrolled" in mokutil(root, "--test-key", certificate)
