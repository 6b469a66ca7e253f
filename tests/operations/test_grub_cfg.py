"""grub.cfg is replaced as a whole: no moment of update-grub leaves a part of a menu in its place."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from rigwright.operations.grub import update_grub

TAKES_OPTIONS = """#!/bin/sh
[ "$1" = -o ] || exit 9
umask 077
printf 'a whole ' >"$2"; cat "$CFG" >"$SEEN"; echo menu >>"$2"; : >"$2.new"
"""
TAKES_NONE = """#!/bin/sh
echo 'a whole menu' >"$CFG"
"""
FAILS = """#!/bin/sh
echo half >"$2"; exit 3
"""


class Host:
    """A host with an update-grub."""

    def __init__(self, folder: Path, program: str) -> None:
        self.folder, self.cfg = folder, folder / "grub" / "grub.cfg"
        self.cfg.parent.mkdir()
        (folder / "update-grub").write_text(program)
        (folder / "update-grub").chmod(0o755)

    def runs(self) -> int:
        """Runs the command; returns its exit code."""
        argv = [word.replace("/boot/grub", str(self.cfg.parent)) for word in update_grub().argv]
        own = {"PATH": f"{self.folder}:{os.environ['PATH']}", "CFG": str(self.cfg), "SEEN": str(self.folder / "seen")}
        return subprocess.run(argv, env={**os.environ, **own}, timeout=30, check=False).returncode

    @property
    def names(self) -> list[str]:
        """The names beside grub.cfg."""
        return sorted(path.name for path in self.cfg.parent.iterdir())


@pytest.mark.parametrize("mode", [0o444, 0o600])
def test_the_old_menu_is_whole_until_the_new_one_is(tmp_path: Path, mode: int) -> None:
    host = Host(tmp_path, TAKES_OPTIONS)
    host.cfg.write_text("the old menu\n")
    host.cfg.chmod(mode)
    before = host.cfg.stat().st_ino
    assert host.runs() == 0
    assert (tmp_path / "seen").read_text() == "the old menu\n"
    assert host.cfg.read_text() == "a whole menu\n"
    assert host.cfg.stat().st_mode & 0o777 == mode
    assert (host.cfg.stat().st_ino != before, host.names) == (True, ["grub.cfg"])


def test_a_link_stays_one(tmp_path: Path) -> None:
    host = Host(tmp_path, TAKES_OPTIONS)
    (tmp_path / "elsewhere").write_text("the old menu\n")
    host.cfg.symlink_to(tmp_path / "elsewhere")
    assert host.runs() == 0
    assert (host.cfg.is_symlink(), host.cfg.read_text(), host.names) == (True, "a whole menu\n", ["grub.cfg"])


@pytest.mark.parametrize(("program", "code", "text"), [(TAKES_NONE, 0, "a whole menu\n"), (FAILS, 3, "the old menu\n")])
def test_other_programs(tmp_path: Path, program: str, code: int, text: str) -> None:
    host = Host(tmp_path, program)
    host.cfg.write_text("the old menu\n")
    assert (host.runs(), host.cfg.read_text(), host.names) == (code, text, ["grub.cfg"])
