"""The module that a kernel would load, by the names that the distributions give it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from rigwright.facts import kernel

MODINFO = """#!/bin/sh
[ "$1 $2 $3 $4 $5" = "-k 6.12.73+deb13-amd64 -F license --" ] || exit 2
[ "$6" = %s ] || { echo "modinfo: ERROR: Module $6 not found." >&2; exit 1; }
echo Dual MIT/GPL
"""


@pytest.mark.parametrize("name", ["nvidia", "nvidia-current", "nvidia-current-open"])
def test_the_names_of_ubuntu_and_debian_are_asked_for(name: str, tmp_path: Path) -> None:
    (tmp_path / "modinfo").write_text(MODINFO % name)
    (tmp_path / "modinfo").chmod(0o755)
    asked = kernel.module_licence("6.12.73+deb13-amd64", "nvidia").command
    answer = subprocess.run(asked.argv, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, check=False)
    assert (answer.returncode, answer.stdout) == (0, b"Dual MIT/GPL\n")
