"""The build of the simulated GPU: which QEMU it accepts, what it is compiled for, and with a mirror, that it
compiles."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from lab.vm.device import build
from rigwright.core.errors import UsageError

DEBIAN_12 = "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)"


@pytest.fixture
def qemu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the path of a program that prints what a QEMU prints, and is found first."""
    program = tmp_path / "bin" / build.QEMU
    program.parent.mkdir()
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("lab.base.programs._PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return program


def prints(program: Path, line: str) -> None:
    program.write_text(f"#!/bin/sh\necho '{line}'\n")
    program.chmod(0o755)


def test_the_version_of_the_source_is_without_the_rebuild(qemu: Path) -> None:
    prints(qemu, DEBIAN_12)
    found = build.version()
    assert (found.major, found.minor, found.source) == (7, 2, "1:7.2+dfsg-7+deb12u18")
    prints(qemu, "QEMU emulator version 10.0.13 (Debian 1:10.0.13+ds-0+deb13u1)")
    assert build.version().source == "1:10.0.13+ds-0+deb13u1"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("QEMU emulator version 8.2.2 (Debian 1:8.2.2+ds-0ubuntu1.7)", "version 8.2 on"),
        ("QEMU emulator version 7.2.0", "not a package of Debian"),
        ("", "not a package of Debian"),
    ],
)
def test_another_qemu_is_refused(qemu: Path, line: str, words: str) -> None:
    prints(qemu, line)
    with pytest.raises(UsageError, match=words) as error:
        build.version()
    assert "7.2 or 10.0" in error.value.expected


def test_a_machine_without_qemu_is_told_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=r"no qemu-system-x86_64") as error:
        build.version()
    assert error.value.fix == "sudo apt-get install qemu-system-x86"


def test_a_path_that_ld_preload_cannot_name_is_refused(qemu: Path, tmp_path: Path) -> None:
    prints(qemu, DEBIAN_12)
    with pytest.raises(UsageError, match="a colon or a space"):
        build.library(print, tmp_path / "my cache")


def test_a_missing_compiler_is_named(qemu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prints(qemu, DEBIAN_12)
    monkeypatch.setattr(build, "PROGRAMS", build.PROGRAMS | {"no-such-compiler": "gcc"})
    with pytest.raises(UsageError, match="cannot be compiled") as error:
        build.library(print, tmp_path)
    assert error.value.fix == "sudo apt-get install gcc"
    assert list((tmp_path / "device").glob("*.so")) == []


def test_the_source_has_its_own_licence() -> None:
    assert "SPDX-License-Identifier: GPL-2.0-or-later" in (build.HERE / "gpu.c").read_text()[:400]
    assert "gpu.c in this folder" in (build.HERE / "LICENSE").read_text()


@pytest.mark.network
def test_it_compiles_for_the_installed_qemu_and_is_loaded(tmp_path: Path) -> None:
    library = build.library(print, tmp_path)
    env = {**os.environ, "LD_PRELOAD": str(library)}
    argv = ["sh", "-c", 'exec "$0" -device help', build.QEMU]  # the shell loads it too
    listed = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=True).stdout
    for name in ("gpu", "root-port", "switch-upstream", "switch-downstream"):
        assert f'"rigwright-{name}"' in listed
