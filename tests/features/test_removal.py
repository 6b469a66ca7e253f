"""Each feature can be deleted: what is left imports, lists its commands, plans, verifies, and refuses the operations
that are gone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rigwright.core import features
from rigwright.engine import plugins
from tests.paths import ROOT
from tests.test_floors import floors

NAMES = tuple(features.features())


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a copy of what rigwright runs with."""
    folder = tmp_path_factory.mktemp("removal")
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("rigwright", "playbooks", "templates", "onhost"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignore)
    return folder


def _python(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", "HOME": str(folder)}
    argv = [sys.executable, "-c", code]
    return subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def _needing(removed: str) -> set[str]:
    """Returns the feature and those that import it."""
    gone = {removed}
    while more := {name for name, needed in floors.FEATURES.items() if gone & set(needed)} - gone:
        gone |= more
    return gone


LEFT = """
import importlib, pkgutil, sys
import rigwright
from pathlib import Path
from rigwright import inventory
from rigwright.cli import program
from rigwright.engine import playbook, plugins
for module in pkgutil.walk_packages(rigwright.__path__, 'rigwright.'):
    importlib.import_module(module.name)
print(*(each.command for each in program.commands()))
hosts = inventory.read(Path("inventory.yml"))
print(len(playbook.bind(Path("play.yml"), hosts, hosts.only()).steps), "steps")
"""

PLAY = """- name: A play
  hosts: all
  tasks:
    - name: The kernel command line
      grub.cmdline:
        kernel_cmdline: [iommu=pt]
"""


@pytest.mark.parametrize("name", NAMES)
def test_what_is_left_works(copy: Path, name: str, tmp_path: Path) -> None:
    gone = _needing(name)
    folder = tmp_path / "copy"
    shutil.copytree(copy, folder, symlinks=True)
    for each in gone:
        shutil.rmtree(folder / "rigwright" / "features" / each)
    (folder / "inventory.yml").write_text("all: {hosts: {box: {ansible_host: 192.0.2.1}}}\n")
    (folder / "play.yml").write_text(PLAY)
    done = _python(folder, LEFT)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "1 steps" in done.stdout
    commands = {command for each in gone for command in getattr(features.features()[each], "COMMANDS", {})}
    assert not commands & set(done.stdout.split())


@pytest.mark.parametrize("name", NAMES)
def test_an_operation_that_is_gone_is_refused_with_its_line(copy: Path, name: str, tmp_path: Path) -> None:
    prefix = features.prefix(f"rigwright.features.{name}")
    operations = [each for each in plugins.known("operations") if each.startswith(f"{prefix}.")]
    if not operations:
        assert features.part(name, "operations") is None
        return
    folder = tmp_path / "copy"
    shutil.copytree(copy, folder)
    for each in _needing(name):
        shutil.rmtree(folder / "rigwright" / "features" / each)
    (folder / "inventory.yml").write_text("all: {hosts: {box: {ansible_host: 192.0.2.1}}}\n")
    (folder / "play.yml").write_text(f"- name: A play\n  hosts: all\n  tasks:\n    - {operations[0]}:\n")
    done = _python(folder, LEFT.replace("pkgutil.walk_packages(rigwright.__path__, 'rigwright.')", "()"))
    assert done.returncode != 0
    assert f"play.yml:4: unknown operation '{operations[0]}'" in done.stderr, done.stderr[-2000:]
