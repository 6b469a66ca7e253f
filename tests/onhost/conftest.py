"""The programs for hosts as on a host: in one folder with pynvml.py, over a simulated driver."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from lab.simulators.cuda.bare import add_cuda
from lab.simulators.nvml.bare import Bare, bare
from rigwright.core import features

VERSION = "535.261.03"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Returns a function that imports a program for hosts, as these modules import each other."""
    for path in {path.parent for path in features.host_programs().values()}:
        monkeypatch.syspath_prepend(str(path))
    return importlib.import_module


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with all programs, which every user may read."""
    made = tmp_path_factory.mktemp("onhost")
    for path in (*made.parents, made):
        if path.is_relative_to("/tmp") and path != Path("/tmp"):
            path.chmod(0o755)
    for path in (*features.host_programs().values(), Path(str(pynvml.__file__))):
        shutil.copy(path, made / path.name)
    return made


@pytest.fixture(scope="module")
def rigs(folder: Path) -> dict[str, Bare]:
    """Returns the drivers of a rig with NVLinks and of one with PCIe only."""
    return {rig: add_cuda(bare(rig, VERSION, folder / rig), VERSION) for rig in ("servbadge", "rig-3090")}


def restored(driver: Bare) -> Iterator[Bare]:
    """Yields the driver; its state is as before afterwards."""
    state = driver.hardware / "volatile/state"
    before = state.read_text()
    yield driver
    state.write_text(before)


@pytest.fixture
def servbadge(rigs: dict[str, Bare]) -> Iterator[Bare]:
    yield from restored(rigs["servbadge"])


@pytest.fixture
def rig_3090(rigs: dict[str, Bare]) -> Iterator[Bare]:
    yield from restored(rigs["rig-3090"])
