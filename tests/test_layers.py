"""Modules import only from lower layers (the table in CONTRIBUTING.md)."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent / "rigwright"
LAYERS = {
    "errors": 0,
    "shell": 1, "yamlfile": 1, "patterns": 1, "versions": 1, "asking": 1, "editing": 1, "figures": 1,
    "typed": 2, "preferences": 2, "templates": 2, "batch": 2, "hostkeys": 2, "state": 2,
    "login": 3, "wanted": 3, "positions": 3, "hosts": 3, "facts": 3, "change": 3, "history": 3, "rollout": 3,
    "catalogue": 4, "inventory": 4, "session": 4, "ssh": 5, "exchange": 4, "events": 4, "remembered": 4,
    "compatibility": 5, "families": 5,
    "choices": 6, "draft": 6, "limitable": 6, "offers": 6, "transport": 6, "recorded": 7,
    "peering": 6, "wheels": 12,
    "resolution": 7, "explain": 7, "power": 7, "lifecycle": 7,
    "operations": 8,
    "checks": 9, "variables": 9,
    "playbook": 10, "drift": 10,
    "plan": 11, "jobs": 11,
    "hostrun": 12, "errand": 12,
    "apply": 13, "verify": 13, "p2p": 13, "programs": 13, "hostreport": 13,
    "crew": 14,
    "orders": 15,
    "fleet": 16,
    "report": 17, "binding": 17, "workers": 17,
    "showing": 18, "watch": 18,
    "rolling": 19, "hints": 19,
    "commands": 20,
    "trust": 21, "knowledge": 21, "oneoff": 21,
    "init": 22, "past": 22,
    "survey": 23,
    "overview": 24,
    "cli": 25,
}  # fmt: skip


def _layer(module: str) -> int:
    return LAYERS[module.split(".")[0]]


def _imports(path: Path) -> list[str]:
    """The parts after `rigwright.` of every import in a file, at any depth of it."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "rigwright":
            rest = node.module.partition(".")[2]
            found += [rest] if rest else [alias.name for alias in node.names]
        if isinstance(node, ast.Import):
            found += [alias.name.partition(".")[2] for alias in node.names if alias.name.startswith("rigwright.")]
    return found


def test_imports_go_down() -> None:
    wrong = []
    for path in ROOT.rglob("*.py"):
        own = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if own in ("__init__", "") or own.startswith("onhost"):
            continue
        for used in _imports(path):
            same_package = used.split(".")[0] == own.split(".")[0]
            if not same_package and _layer(used) >= _layer(own):
                wrong.append(f"{own} imports {used}")
    assert wrong == []


def test_every_module_has_a_layer() -> None:
    names = {
        path.stem if path.is_file() else path.name for path in ROOT.iterdir() if path.suffix == ".py" or path.is_dir()
    }
    assert names - set(LAYERS) - {"__init__", "__pycache__", "onhost"} == set()


def test_only_ssh_makes_connections() -> None:
    makers = [path.name for path in ROOT.rglob("*.py") if " Connection(" in path.read_text(encoding="utf-8")]
    assert makers == ["ssh.py"]


def test_small_modules() -> None:
    long = [
        f"{path.name}: {len(path.read_text().splitlines())}"
        for path in ROOT.rglob("*.py")
        if len(path.read_text().splitlines()) > 300 and path.parent.name != "onhost"
    ]
    assert long == []
