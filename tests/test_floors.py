"""Packages import only from lower floors and without cycles (scripts/floors); docs/develop/run.md has the same
floors."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.paths import ROOT


def _script() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("floors", str(ROOT / "scripts" / "floors"))
    spec = importlib.util.spec_from_file_location("floors", ROOT / "scripts" / "floors", loader=loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    sys.modules["floors"] = module
    loader.exec_module(module)
    return module


floors = _script()


@pytest.mark.parametrize("tree", floors.TREES, ids=lambda tree: str(tree.name))
def test_no_upward_import_and_no_cycle(tree: Any) -> None:
    assert floors.problems(ROOT / tree.name, tree) == []


@pytest.mark.parametrize(
    ("file", "text", "found"),
    [
        ("core/errors.py", "from rigwright.facts import gpu", "arrow up: core.errors imports facts.gpu"),
        ("core/errors.py", "def late():\n    import rigwright.cli.init", "arrow up: core.errors imports cli.init"),
        ("facts/gpu.py", "from rigwright.history import machines", "arrow up: facts.gpu imports history.machines"),
        ("tools/x.py", "", "tools: scripts/floors names no floor for it"),
        (
            "features/dcgm/host/x.py",
            "import recorder",
            "features.dcgm.host.x imports features.recorder.host.recorder: scripts/floors does not list this pair of "
            "features",
        ),
        ("cli/x.py", "import lab.power", "cli.x imports lab.power: the product imports nothing of the lab"),
    ],
)
def test_upward_import_is_found(tmp_path: Path, file: str, text: str, found: str) -> None:
    for name in (name for names in floors.RIGWRIGHT.floors for name in names):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    for name in ("facts/gpu.py", "history/machines.py", "cli/init.py", "features/recorder/host/recorder.py", file):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / file).write_text(text)
    assert found in floors.problems(tmp_path)


def test_cycle_is_found(tmp_path: Path) -> None:
    core = tmp_path / "core"
    core.mkdir()
    (core / "a.py").write_text("from rigwright.core import b")
    (core / "b.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from rigwright.core.a import A"
    )
    assert any(line.startswith("cycle: ") for line in floors.problems(tmp_path))


def test_the_page_names_the_same_floors() -> None:
    rows = re.findall(r"^\| ([\d]) \| `([a-z]+)/` \|", (ROOT / "docs/develop/run.md").read_text(encoding="utf-8"), re.M)
    written = {name: int(floor) for floor, name in rows}
    assert written == {name: floor for floor, names in enumerate(floors.RIGWRIGHT.floors, 1) for name in names}


def test_only_the_module_that_checks_the_way_makes_connections() -> None:
    makers = [
        path.name
        for path in (ROOT / "rigwright").rglob("*.py")
        if re.search(r" _?Connection\(", path.read_text("utf-8"))
    ]
    assert makers == ["route.py"]
