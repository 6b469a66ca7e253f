"""The report package imports no module that connects to a host."""

from __future__ import annotations

import ast

from tests.paths import files

ALLOWED_ENGINE = {
    "rigwright.engine.events",
    "rigwright.engine.report",
    "rigwright.engine.limits",
    "rigwright.engine.machine",
    "rigwright.engine.plan",
}
"""Modules of the engine that a report may import: they hold what a run returns."""


def test_a_report_imports_nothing_that_connects() -> None:
    imported = set()
    for file in files("rigwright/report/**/*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    ours = {name for name in imported if name.startswith("rigwright.")}
    assert ours
    assert not {name for name in ours if name.split(".")[1] in ("ssh", "fleet", "operations", "cli")}
    modules = {".".join(name.split(".")[:3]) for name in ours if name.startswith("rigwright.engine.")}
    assert modules <= ALLOWED_ENGINE
