"""The units that rigwright puts on a host have few rights, by systemd's own measure (10 is everything, 0 nothing)."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from rigwright.core.templates.host_files import HOST_FILES, SHIPPED
from tests.paths import ROOT

MOST = 4.0
WITHOUT_NAMESPACES = 5.0
"""For a unit that must start with a file system that is damaged or not mounted, so that it has no mount namespace."""
EARLY = ("systemd/rigwright-trial.service.j2",)
PROVISIONS = "systemd/rigwright-continue.service.j2"
"""It runs `invoke provision` for this machine, and so needs every right that sudo gives."""
UNITS = sorted(name for name in HOST_FILES if name.startswith("systemd/") and name.endswith(".service.j2"))


@pytest.mark.parametrize("name", [name for name in UNITS if name != PROVISIONS])
def test_exposure(name: str, tmp_path: Path) -> None:
    text = SHIPPED.render(name, HOST_FILES[name].example)
    most = WITHOUT_NAMESPACES if name in EARLY else MOST
    judged = _judged(tmp_path / Path(name).stem, text.replace("/usr/bin/python3", "/bin/sh"), most)
    assert judged.returncode == 0, judged.stdout[-200:]


def _worker_unit() -> str:
    """The unit of docs/guide/rollouts.md."""
    page = (ROOT / "docs" / "guide" / "rollouts.md").read_text(encoding="utf-8")
    block = re.search(r"^    \[Unit\]\n(?:(?:    .*)?\n)+?    WantedBy=.*\n", page, re.MULTILINE)
    assert block
    return re.sub(r"^    ", "", block[0], flags=re.MULTILINE)


def test_exposure_of_the_worker_in_the_docs(tmp_path: Path) -> None:
    unit = tmp_path / "rigwright-worker.service"
    judged = _judged(unit, _worker_unit(), 2.0)
    assert judged.returncode == 0, judged.stdout[-200:]
    unit.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/sh", unit.read_text(), flags=re.MULTILINE))
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    assert "rigwright-worker.service:" not in verified.stderr, verified.stderr


def test_a_unit_without_restrictions_is_above(tmp_path: Path) -> None:
    assert _judged(tmp_path / "open.service", "[Service]\nExecStart=/bin/sh\n").returncode != 0


def _judged(unit: Path, text: str, most: float = MOST) -> subprocess.CompletedProcess[str]:
    """The answer of systemd-analyze, which fails when the exposure is above `most`."""
    unit.write_text(text)
    argv = ["systemd-analyze", "security", "--offline=true", "--no-pager", f"--threshold={most * 10:g}", str(unit)]
    return subprocess.run(argv, capture_output=True, text=True, check=False)
