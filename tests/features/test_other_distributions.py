"""The feature of another distribution is found by its entry point: its operation, check, variable and command."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.paths import ROOT

EXAMPLE = ROOT / "tests" / "features" / "example"
PLAY = """- name: Scratch
  hosts: all
  tasks:
    - name: A folder for scratch data
      scratch.present:
  checks:
    - name: Its room
      scratch.room:
"""
BIND = """
from pathlib import Path
from rigwright import inventory
from rigwright.engine import playbook
hosts = inventory.read(Path("inventory.yml"))
bound = playbook.bind(Path("play.yml"), hosts, hosts.only())
print([step.operation for step in bound.steps], [check.name for check in bound.checks], bound.steps[0].parameters)
"""


def _python(folder: Path, *words: str, example: Path | None = EXAMPLE) -> subprocess.CompletedProcess[str]:
    paths = [str(ROOT), *([str(example)] if example else [])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
    argv = [sys.executable, *words]
    return subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def _inventory(folder: Path, scratch: str) -> None:
    host = f"all: {{hosts: {{box: {{ansible_host: 192.0.2.1, scratch: {scratch}}}}}}}\n"
    (folder / "inventory.yml").write_text(host)
    (folder / "play.yml").write_text(PLAY)


def test_a_playbook_uses_it(tmp_path: Path) -> None:
    _inventory(tmp_path, "{path: /data}")
    done = _python(tmp_path, "-c", BIND)
    assert done.returncode == 0, done.stderr
    assert "Scratch(path='/data', least_gib=100)" in done.stdout


def test_its_programs_for_hosts_are_found(tmp_path: Path) -> None:
    package = tmp_path / "rigwright_scratch"
    shutil.copytree(EXAMPLE, tmp_path, dirs_exist_ok=True)
    (package / "host").mkdir()
    (package / "host" / "scratch_speed.py").touch()
    code = "from rigwright.core import features; print(features.host_programs()['scratch_speed.py'])"
    done = _python(tmp_path, "-c", code, example=tmp_path)
    assert done.stdout == f"{package}/host/scratch_speed.py\n", done.stderr


def test_a_value_that_does_not_fit_is_refused_with_its_line(tmp_path: Path) -> None:
    _inventory(tmp_path, "{path: data}")
    done = _python(tmp_path, "-c", BIND)
    assert "inventory.yml:1: 'scratch.path': 'data' is no path from the root" in done.stderr


def test_its_command_is_listed_and_explained(tmp_path: Path) -> None:
    program = ("-c", "from rigwright.cli.program import main; main()")
    assert "scratch.room" in _python(tmp_path, *program, "--list").stdout
    assert "the folder" in _python(tmp_path, *program, "scratch.room", "--help").stdout


def test_without_the_distribution_it_is_unknown(tmp_path: Path) -> None:
    _inventory(tmp_path, "{path: /data}")
    done = _python(tmp_path, "-c", BIND, example=None)
    assert "play.yml:5: unknown operation 'scratch.present'" in done.stderr
