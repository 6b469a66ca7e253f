"""The choice between KVM and emulation: by what a program in QEMU's place answers, and by the deadline."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.vm import accelerator

ANSWERS = """#!/bin/sh
for word in "$@"; do case "$word" in file:*) answer=${word#file:};; esac; done
case " $* " in *" -cpu host "*) kind=host;; *) kind=default;; esac
"""


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes the results of this test its own, and KVM's device a file that opens."""
    monkeypatch.setattr(accelerator, "RESULT", tmp_path / "result.json")
    monkeypatch.setattr(accelerator, "KVM_DEVICE", tmp_path / "kvm")
    (tmp_path / "kvm").touch()
    accelerator.accelerator.cache_clear()
    yield
    accelerator.accelerator.cache_clear()


@pytest.fixture
def qemu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the program that is found as QEMU; its argument "-cpu host" is in $kind, its answer's file in $answer."""
    path = tmp_path / "bin/qemu-system-x86_64"
    path.parent.mkdir()
    monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")
    return path


def does(program: Path, script: str) -> None:
    program.write_text(ANSWERS + script)
    program.chmod(0o755)


@pytest.mark.parametrize(
    ("before", "options"),
    [
        ("", ["-accel", "kvm", "-cpu", "host"]),
        ('[ $kind = host ] && { echo "Assertion failed" >&2; exit 134; }; ', ["-accel", "kvm"]),
    ],
    ids=["host's processor", "a processor that QEMU cannot show"],
)
def test_a_guest_that_runs_to_its_end_is_kvm(qemu: Path, before: str, options: list[str]) -> None:
    does(qemu, f'{before}printf rplt >"$answer"; exit 33\n')
    assert (accelerator.accelerator().options, accelerator.accelerator().text) == (options, "KVM")


def test_a_guest_that_stands_still_is_emulated(qemu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator, "PROBE_S", 1.5)
    does(qemu, 'printf r >"$answer"; exec sleep 150\n')
    began = time.monotonic()
    found = accelerator.accelerator()
    assert time.monotonic() - began < 60
    assert found.options[:2] == ["-accel", "tcg,tb-size=256,thread=multi"]
    assert re.fullmatch(
        r"software emulation \(KVM runs no guest here: no answer in [12] s before protected mode\)", found.text
    )


def test_what_qemu_says_is_one_line_without_control_characters(qemu: Path) -> None:
    does(qemu, "printf 'first\\nsecond \\033[31mred\\n' >&2; exit 1\n")
    text = accelerator.accelerator().text
    assert text.endswith("before its first instruction)")
    assert "second" in text
    assert "\033" not in text


@pytest.mark.usefixtures("qemu")
def test_without_the_device_nothing_is_tried(tmp_path: Path) -> None:
    (tmp_path / "kvm").unlink()
    assert accelerator.accelerator().text == "software emulation (no /dev/kvm)"


@pytest.mark.usefixtures("as_root")
def test_the_result_is_kept_until_the_next_boot(qemu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    does(qemu, 'printf rplt >"$answer"\n')
    assert accelerator.accelerator().option == "kvm"
    does(qemu, "exit 1\n")
    accelerator.accelerator.cache_clear()
    assert accelerator.accelerator().option == "kvm"
    monkeypatch.setattr(accelerator, "BOOT_ID", tmp_path / "boot")
    (tmp_path / "boot").write_text("another\n")
    accelerator.accelerator.cache_clear()
    assert accelerator.accelerator().option != "kvm"


def test_without_a_compiler_it_is_emulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "not tried" in accelerator.accelerator().text
