"""Compiled parts of the catalogue: the same values, never those of other files, and never in the way."""

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

PRINT = """
from rigwright.catalogue import advisories, cards, drivers, gpus, rigs, symptoms
found = (symptoms.all_symptoms(), symptoms.xids(), drivers.branches(), rigs.rig("servbadge", ""), gpus.model("t4"), cards.chip_table(),
         advisories.advisories())
print(repr(found))
print(symptoms.all_symptoms()["driver.mismatch"].title)
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package that a test may change, without anything compiled."""
    shutil.copytree(ROOT / "rigwright", tmp_path / "rigwright", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "rigwright"


def run(package: Path, code: str = PRINT, **environment: str) -> str:
    """What a new process that imports this copy prints."""
    outer = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=package.parent, env={**outer, "PYTHONPATH": str(package.parent), **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def parts(package: Path) -> dict[str, Path]:
    """The compiled parts by name."""
    return {path.name.partition(".cpython")[0]: path for path in package.glob("catalogue/__pycache__/*.pickle")}


def test_the_second_process_has_the_same_values_and_reads_no_yaml(package: Path) -> None:
    first = run(package)
    assert {"symptoms.all_symptoms", "drivers.branches", "rigs.servbadge", "gpus.model.t4"} <= parts(package).keys()
    no_yaml = "import rigwright.core.yaml_source as source\nsource.loads = None\n"
    assert run(package, no_yaml + PRINT) == first


def test_a_changed_file_counts_at_once(package: Path) -> None:
    run(package)
    path = package / "catalogue" / "symptoms.yml"
    title = "The loaded kernel module and the driver's libraries are of different versions"
    text = path.read_text(encoding="utf-8")
    assert title in text
    path.write_text(text.replace(title, title.swapcase()), encoding="utf-8")  # of the same length
    assert run(package).splitlines()[-1] == title.swapcase()


def test_a_changed_class_counts_at_once(package: Path) -> None:
    run(package)
    path = package / "catalogue" / "symptoms.py"
    path.write_text(
        path.read_text(encoding="utf-8").replace('    key: str = ""\n', '    key: str = ""\n    more: int = 7\n')
    )
    assert (
        run(package, "from rigwright.catalogue import symptoms\nprint(symptoms.all_symptoms()['driver.mismatch'].more)")
        == "7\n"
    )


def test_a_mistake_is_told_each_time(package: Path) -> None:
    run(package)
    path = package / "catalogue" / "symptoms.yml"
    path.write_text(path.read_text(encoding="utf-8").replace("kind: driver", "kind: nonsense", 1), encoding="utf-8")
    code = "from rigwright.catalogue import symptoms\ntry: symptoms.all_symptoms()\nexcept Exception as error: print(error.where)"
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
def test_a_damaged_part_is_made_again(package: Path, damage: Callable[[Path], object]) -> None:
    first = run(package)
    whole = {name: path.read_bytes() for name, path in parts(package).items()}
    for path in parts(package).values():
        damage(path)
    assert run(package) == first
    assert {name: path.read_bytes() for name, path in parts(package).items()} == whole


def test_nothing_is_written_where_python_keeps_no_modules(package: Path) -> None:
    run(package, PYTHONDONTWRITEBYTECODE="1")
    assert parts(package) == {}


def test_a_folder_that_cannot_be_written_is_no_error(package: Path) -> None:
    (package / "catalogue" / "__pycache__").write_text("a file in its place")
    assert run(package) == run(package)


def test_a_part_has_the_mode_of_other_compiled_files(package: Path) -> None:
    run(package)
    mask = os.umask(0)
    os.umask(mask)
    assert {stat.S_IMODE(path.stat().st_mode) for path in parts(package).values()} == {0o666 & ~mask}
