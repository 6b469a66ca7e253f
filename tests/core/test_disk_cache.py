"""What is kept on disk of shipped files: the same values, never those of other files, and nothing of an owner's
texts."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.paths import ROOT

OWN = "secret_word ~ 'of an inventory'"
PRINT_CATALOGUE = """
from rigwright.catalogue import advisories, cards, drivers, gpus, rigs, symptoms
found = (symptoms.all_symptoms(), symptoms.xids(), drivers.branches(), rigs.rig("servbadge", ""), gpus.model("t4"),
         cards.chip_table(), advisories.advisories())
print(repr(found))
print(symptoms.all_symptoms()["driver.mismatch"].title)
"""
PRINT_TEMPLATES = """
import re
from rigwright.core.files import shipped_files
from rigwright.core.templates import rendering
text = (shipped_files.folder("templates") / "systemd/gpu-limits.timer.j2").read_text()
playbook = (shipped_files.folder("playbooks") / "provision.yml").read_text()
[when, *_] = [word for word in re.findall("when: (.*)", playbook) if "driver" in word]
print(rendering.render_text(text, {}, "x"), sorted(rendering.names("{{ a.b }}")), sorted(rendering.names(text)))
print(rendering.evaluate(when, {"driver": {"branch": "535"}, "limits": {}, "cuda": {}}, "x"))
"""
PRINT_OWN = f'print(rendering.evaluate({OWN!r}, {{"secret_word": "word"}}, "x"))\n'
PRINT = PRINT_CATALOGUE + PRINT_TEMPLATES + PRINT_OWN
NO_YAML = "import rigwright.core.yaml_source as source\nsource.loads = None\n"
NO_COMPILER = "import jinja2\njinja2.Environment.compile = None\n"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of rigwright that a test may change, with nothing kept."""
    for name in ("rigwright", "playbooks", "templates"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def run(package: Path, code: str = PRINT, expected: int = 0, **environment: str) -> str:
    """What a new process that imports this copy prints."""
    outer = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=package, env={**outer, "PYTHONPATH": str(package), **environment}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == expected, done.stderr
    return done.stdout


def kept(package: Path) -> dict[str, Path]:
    """The kept files by name."""
    folder = package / "rigwright" / "core" / "files" / "__pycache__"
    return {path.name.partition(".cpython")[0]: path for path in folder.glob("*.pickle")}


def test_the_second_process_has_the_same_values_and_makes_none(package: Path) -> None:
    first = run(package)
    assert {"symptoms.all_symptoms", "drivers.branches", "rigs.servbadge", "gpus.model.t4"} <= kept(package).keys()
    assert run(package, NO_YAML + PRINT) == first
    assert first.startswith(run(package, NO_YAML + NO_COMPILER + PRINT_CATALOGUE + PRINT_TEMPLATES))


def test_nothing_of_an_owners_texts_is_kept(package: Path) -> None:
    run(package)
    assert not [path for path in kept(package).values() if b"of an inventory" in path.read_bytes()]
    run(package, NO_COMPILER + PRINT, expected=1)


def test_a_changed_file_counts_at_once(package: Path) -> None:
    run(package)
    path = package / "rigwright" / "catalogue" / "symptoms.yml"
    title = "The loaded kernel module and the driver's libraries are of different versions"
    text = path.read_text(encoding="utf-8")
    assert title in text
    path.write_text(text.replace(title, title.swapcase()), encoding="utf-8")  # of the same length
    template = package / "templates/systemd/gpu-limits.timer.j2"
    template.write_text(template.read_text() + "# changed {{ 1 + 1 }}\n")
    found = run(package)
    assert title.swapcase() in found.splitlines()
    assert "# changed 2" in found


def test_a_changed_class_counts_at_once(package: Path) -> None:
    run(package)
    path = package / "rigwright" / "catalogue" / "symptoms.py"
    path.write_text(
        path.read_text(encoding="utf-8").replace('    key: str = ""\n', '    key: str = ""\n    more: int = 7\n')
    )
    code = "from rigwright.catalogue import symptoms\nprint(symptoms.all_symptoms()['driver.mismatch'].more)"
    assert run(package, code) == "7\n"


def test_a_mistake_is_told_each_time(package: Path) -> None:
    run(package)
    path = package / "rigwright" / "catalogue" / "symptoms.yml"
    path.write_text(path.read_text(encoding="utf-8").replace("kind: driver", "kind: nonsense", 1), encoding="utf-8")
    code = (
        "from rigwright.catalogue import symptoms\ntry: symptoms.all_symptoms()\n"
        "except Exception as error: print(error.where)"
    )
    assert run(package, code) == run(package, code)
    assert run(package, code).startswith("catalogue/symptoms.yml:")


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-100]),
        lambda path: path.write_bytes(b"\x80" * 999),
    ],
    ids=["empty", "cut short", "other bytes"],
)
def test_a_damaged_file_is_made_again(package: Path, damage: Callable[[Path], object]) -> None:
    first = run(package)
    whole = {name: path.stat().st_size for name, path in kept(package).items()}
    for path in kept(package).values():
        damage(path)
    assert run(package) == first
    assert {name: path.stat().st_size for name, path in kept(package).items()} == whole
    assert run(package, NO_YAML + PRINT) == first


def test_where_nothing_can_be_written_it_is_no_error_and_modes_are_those_of_python(package: Path) -> None:
    run(package, PYTHONDONTWRITEBYTECODE="1")
    assert kept(package) == {}
    (package / "rigwright" / "core" / "files" / "__pycache__").write_text("a file in its place")
    assert run(package) == run(package)


def test_a_kept_file_has_the_mode_of_other_compiled_files(package: Path) -> None:
    run(package)
    mask = os.umask(0)
    os.umask(mask)
    assert {stat.S_IMODE(path.stat().st_mode) for path in kept(package).values()} == {0o666 & ~mask}
