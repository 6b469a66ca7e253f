"""rigwright's own checks compare the lab's rigs with the catalogue's: they agree, and report one changed number."""

from __future__ import annotations

import datetime
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pynvml
import pytest

from lab.hardware import board, rigfile
from lab.simulators.nvml.bare import bare
from rigwright import catalogue
from rigwright.catalogue import Rig
from rigwright.catalogue.summary import choices
from rigwright.checks import Finding, gpu as checks
from rigwright.core.command import Result
from rigwright.core.desired import Driver
from rigwright.facts import FactStore, parsed, pci
from tests.paths import ROOT

EVERY = pytest.mark.parametrize("name", catalogue.all_rigs())
PROGRAM = ROOT / "onhost" / "gpu_limits.py"


def _bus(described: dict[str, Any]) -> str:
    """Returns the answer of such a machine to rigwright's query of the PCI bus."""
    ids = {gpu["model"]: board.model(gpu["model"])["pci_ids"][0] for gpu in described["gpus"]}
    return "".join(f"{gpu['bus_id']} 0x030200 {ids[gpu['model']]} nvidia\n" for gpu in described["gpus"])


def _findings(described: dict[str, Any], rig: Rig) -> list[Finding]:
    store = FactStore()
    store.known[pci.gpus] = parsed(pci.gpus, Result(0, _bus(described).encode()))
    slots = {gpu["bus_id"]: gpu["position"] for gpu in rigfile.describe(rig.key)["gpus"]}
    return list(checks.present(store, rig=rig, slots=slots))


@EVERY
def test_a_missing_gpu_and_another_card_are_named_by_their_position(name: str) -> None:
    rig, described = catalogue.rig(name, "a test"), rigfile.describe(name)
    assert [finding.verdict for finding in _findings(described, rig)] == ["pass"]
    first, *_, gone = described["gpus"]
    fewer = {**described, "gpus": described["gpus"][:-1]}
    failed = [finding for finding in _findings(fewer, rig) if finding.verdict == "fail"]
    assert [finding.subject for finding in failed] == ["GPUs", f"{gone['position']} {gone['bus_id']}"]
    assert all("reseat" in finding.fix for finding in failed)
    swapped = {**described, "gpus": [{**first, "model": "t4"}, *described["gpus"][1:]]}
    found = _findings(swapped, rig)
    assert [finding.verdict for finding in found] == ["fail", "warn"]
    assert (found[1].subject, found[1].seen) == (f"{first['position']} {first['bus_id']}", "Tesla T4")


@EVERY
def test_limits_hold_by_the_verbs_of_every_rig(name: str, tmp_path: Path) -> None:
    """The boot unit's program sets the limits that each model supports, and reads them back."""
    rig = catalogue.rig(name, "a test")
    rules = []
    for gpu in rigfile.describe(name)["gpus"]:
        model = catalogue.model(gpu["model"])
        rule: dict[str, Any] = {"match": {"pci_bus_id": gpu["bus_id"]}, "persistence": True}
        own = (gpu.get("power_w") or {}).get("default") or model.power_w.default or 200
        rule["power_limit_w"] = int(max(own * 0.9, model.power_w.min or 0))
        if model.clocks_mhz.default_application and "application" in model.clock_verbs:
            pair = model.clocks_mhz.default_application
            rule["application_clocks"] = {"memory_mhz": pair.memory, "graphics_mhz": pair.graphics}
        if "locked_graphics" in model.clock_verbs and model.clocks_mhz.graphics_min:
            top = int(model.clocks_mhz.graphics_max or 0)
            rule["locked_graphics_mhz"] = [top // 2, top]
        rules.append(rule)
    version = "470.256.02" if rig.driver == "470" else "535.261.03"
    driver = bare(name, version, tmp_path / "rig")
    shutil.copy(PROGRAM, tmp_path / "gpu_limits.py")
    shutil.copy(pynvml.__file__, tmp_path / "pynvml.py")
    (tmp_path / "limits.json").write_text(json.dumps({"expected_gpus": len(rules), "gpus": rules}))
    argv = [sys.executable, "-I", str(tmp_path / "gpu_limits.py"), "apply", "--wait-s", "0"]
    argv += ["--config", str(tmp_path / "limits.json")]
    env = {**driver.env(), "RIGWRIGHT_ROOT": str(tmp_path / "root")}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(rules)


@EVERY
def test_the_rig_s_driver_line_is_chosen_without_a_refusal(name: str) -> None:
    rig = catalogue.rig(name, "a test")
    gpus = {position: catalogue.model(key) for position, key in rig.gpus.items()}
    said = [note.text for note in choices(gpus, Driver(rig.driver), rig.nvswitches, datetime.date(2026, 11, 21))]
    assert any("fabric manager: required" in line for line in said) == (rig.nvswitches > 0)
