"""The table of cuts: names of programs, the sample, and docs/measurements/reliability.md, which scripts/reliability
writes from measured outcomes."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import re
from typing import Any

import pytest
import yaml

from tests.end_to_end.plugs.state import differences
from tests.paths import ROOT

STEPS = [
    task["name"]
    for name in ("provision", "rollback", "remove", "remove-driver")
    for task in yaml.safe_load((ROOT / f"playbooks/{name}.yml").read_text())[0]["tasks"]
]


def test_differences_have_both_sides_and_may_be_those_of_a_boot() -> None:
    here, reference = {"holds": frozenset({"a", "b"})}, {"holds": frozenset({"b", "c"})}
    assert [str(one) for one in differences(here, reference)] == ["holds: + a", "holds: - c"]
    run, booted = ({"boot": frozenset(line), "limits": frozenset(watts)} for line, watts in (("a", "2"), ("b", "3")))
    here = {"boot": frozenset("a"), "limits": frozenset("3")}
    assert [str(one) for one in differences(here, run)] == ["limits: + 3", "limits: - 2"]
    assert differences(here, run, booted) == []
    assert len(differences({**here, "boot": frozenset("c")}, run, booted)) == 2


def _script() -> Any:
    loader = importlib.machinery.SourceFileLoader("reliability", str(ROOT / "scripts" / "reliability"))
    spec = importlib.util.spec_from_loader("reliability", loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def _row(**changed: Any) -> dict[str, Any]:
    return {
        "when": "2026-11-22 20:00", "seed": 7, "rig": "servbadge", "command": "provision", "host": "nspawn",
        "number": 3, "step": "Reboot", "place": "in sync",
        "kind": "power", "reached": True, "first": 3, "said": "gone", "second": 0, "seconds": 12.4, "changes": 3,
        "error": "", "differs": [],
        "ends": "same", "of": 315, **changed,
    }  # fmt: skip


def test_the_page_tells_what_went_wrong() -> None:
    outcomes = [
        _row(),
        _row(kind="controller", second=1, error="no", ends="stops: no"),
        _row(kind="connection", second=None, first=0, reached=False),
        _row(number=1, step="Base packages", place="in dpkg", differs=["holds: + a"], ends="differs"),
    ]
    text = _script().page(outcomes)
    assert "| Reboot | in sync | goes on * | **stops** | same, 12 s |" in text
    assert "| Base packages | in dpkg | - | - | **differs** |" in text
    assert "4 cuts of 315, at 2 places: 1 differ, 2 in the same state, 1 stopped" in text
    assert "- Reboot, in sync, controller killed: stops: no" in text
    assert "  - `holds: + a`" in text


def test_each_host_and_command_has_its_own_figures() -> None:
    text = _script().page([_row(), _row(host="vm", when="2026-11-23 01:00", seed=8, of=12, step="A step of before")])
    assert "Measured 2026-11-22, seed 7: 1 cuts of 315, at 1 places: 1 in the same state." in text
    assert "Measured 2026-11-23, seed 8: 1 cuts of 12, at 1 places: 1 in the same state." in text
    assert "| A step of before | in sync | - | - | same, 12 s |" in text
    sweep = _row(
        command="limits.find",
        step="sweep",
        place="in limits_sweep.py",
        commit="0123abcd",
        refused_s=20.1,
        settled_s=99.6,
    )
    text = _script().page([sweep, _row(), _row(command="remove --driver", step="Units")])
    titles = [line for line in text.splitlines() if line.startswith("## ")]
    assert titles == [f"## {name}: nspawn, rig servbadge" for name in ("provision", "remove --driver", "limits.find")]
    assert "Measured 2026-11-22, commit 0123abcd, seed 7" in text
    assert "| sweep | in limits_sweep.py | - | - | same, 12 s (refused for 20 s) (after 100 s) |" in text
    assert re.search(r"not measured yet: dpkg is whole, .*Files, Records\.", text)


@pytest.mark.parametrize("line", ['{"host": "nspawn", "st', "[]", '{"host": 1}'])
def test_a_line_that_was_cut_is_named(tmp_path: Any, capsys: pytest.CaptureFixture[str], line: str) -> None:
    """The test that writes the file may have been killed."""
    results = tmp_path / "results.jsonl"
    results.write_text(f"{json.dumps(_row())}\n{line}\n")
    with pytest.raises(SystemExit):
        _script().rows([results])
    assert f"error scripts/reliability: {results}:2 is no outcome of a cut" in capsys.readouterr().err


def test_the_page_has_the_steps_of_the_playbook() -> None:
    text = (ROOT / "docs" / "measurements" / "reliability.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| ([A-Z][^|]+?) \| .+ \| .+ \| .+ \| .+ \|$", text, re.MULTILINE))
    assert named
    assert named <= set(STEPS)
