"""The steps that the driver asks for: NVML's own, and mistakes in their file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from rigwright.catalogue import loader
from rigwright.catalogue.recovery_actions import all_recovery_actions
from rigwright.core.errors import InputError

NVML_NAMES = {
    "Reset": "GPU_RESET",
    "Reboot": "NODE_REBOOT",
    "Drain P2P": "DRAIN_P2P",
    "Drain and Reset": "DRAIN_AND_RESET",
}


def test_every_step_is_one_of_nvml() -> None:
    assert list(all_recovery_actions()) == list(NVML_NAMES)
    numbers = [getattr(pynvml, f"NVML_GPU_RECOVERY_ACTION_{name}") for name in NVML_NAMES.values()]
    assert numbers == [1, 2, 3, 4]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(loader, "FOLDER", tmp_path)
    all_recovery_actions.cache_clear()
    yield tmp_path / "recovery_actions.yml"
    all_recovery_actions.cache_clear()


GOOD = """sources: {level: a, cause: a, fix: a}
actions:
  Reset:
    level: fail
    cause: An error.
    fix: sudo reboot
"""


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("level: fail", "level: bad", "bad"),
        ("    fix: sudo reboot\n", "", "lacks fix"),
        ("level: a, ", "", "'level' has no source"),
        ("fix: sudo", "fixx: sudo", "fixx"),
    ],
)
def test_a_mistake_is_named(file: Path, old: str, new: str, words: str) -> None:
    file.write_text(GOOD, encoding="utf-8")
    assert all_recovery_actions()["Reset"].fix == "sudo reboot"
    all_recovery_actions.cache_clear()
    file.write_text(GOOD.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        all_recovery_actions()
    assert words in str(caught.value)
    assert caught.value.where.startswith("catalogue/recovery_actions.yml:")
