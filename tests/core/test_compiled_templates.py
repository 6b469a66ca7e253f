"""What Jinja2 made of shipped texts is kept: the same results, never of other files, and nothing of an owner's texts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT

SHIPPED = "driver is defined and driver"
OWN = "secret_word ~ 'of an inventory'"
PRINT = f"""
import re, sys
from rigwright.core import rendering, shipped_files
text = (shipped_files.folder("templates") / "systemd/gpu-limits.timer.j2").read_text()
playbook = (shipped_files.folder("playbooks") / "provision.yml").read_text()
[when, *_] = [word for word in re.findall("when: (.*)", playbook) if "driver" in word]
names = rendering.names("{{{{ a.b }}}}"), rendering.names(text)
print(rendering.render_text(text, {{}}, "x"), sorted(map(sorted, names)), rendering.evaluate({OWN!r}, {{"secret_word": "word"}}, "x"))
try:
    print(rendering.evaluate(when, {{"driver": {{"branch": "535"}}, "limits": {{}}, "cuda": {{}}}}, "x"))
except Exception as error:
    print(error)
"""
NO_COMPILER = "import jinja2\njinja2.Environment.compile = None\n"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of rigwright that a test may change, without anything compiled."""
    for name in ("rigwright", "playbooks", "templates"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def run(package: Path, code: str = PRINT, expected: int = 0, **environment: str) -> str:
    """What a new process that imports this copy prints."""
    outer = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=package, env={**outer, "PYTHONPATH": str(package), **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == expected, done.stderr
    return done.stdout


def kept(package: Path) -> Path:
    """The path of the kept file."""
    return package / "rigwright/core/__pycache__" / f"templates.{sys.implementation.cache_tag}.marshal"


def test_the_next_process_has_the_same_results_and_compiles_only_an_owners_texts(package: Path) -> None:
    first = run(package)
    assert "OnBootSec" in first or "[Timer]" in first
    content = kept(package).read_bytes()
    assert b"of an inventory" not in content
    assert b"secret_word" not in content
    assert run(package) == first
    without_own = PRINT.replace(f"rendering.evaluate({OWN!r}", "str(").replace(', {"secret_word": "word"}, "x")', '"")')
    assert run(package, NO_COMPILER + without_own)
    run(package, NO_COMPILER + PRINT, expected=1)


def test_a_changed_template_counts_at_once(package: Path) -> None:
    run(package)
    path = package / "templates/systemd/gpu-limits.timer.j2"
    path.write_text(path.read_text() + "# changed {{ 1 + 1 }}\n")
    assert "# changed 2" in run(package)


@pytest.mark.parametrize("damage", [b"", b"damaged", b"\0" * 100])
def test_a_damaged_file_is_made_again(package: Path, damage: bytes) -> None:
    first = run(package)
    path = kept(package)
    whole = path.read_bytes()
    path.write_bytes(damage or whole[:-20])
    assert run(package) == first
    assert path.read_bytes()[:32] == whole[:32]
    assert len(path.read_bytes()) == len(whole)


def test_nothing_is_kept_where_python_keeps_nothing(package: Path) -> None:
    run(package, PYTHONDONTWRITEBYTECODE="1")
    assert not kept(package).exists()
