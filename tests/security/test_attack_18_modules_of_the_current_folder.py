"""Attack 18: an inventory directory has a file pip.py, which Python imported when a user in that directory fetched
wheels."""

from __future__ import annotations

from pathlib import Path

import pytest

from rigwright.catalogue.nccl_wheels import Wheel
from rigwright.engine.p2p import wheels as wheel_copy


@pytest.mark.parametrize("cache", ["a folder elsewhere", "relative"])
def test_the_current_folder_has_no_part_in_fetching(
    cache: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inventory, ran = tmp_path / "inventory", tmp_path / "ran"
    inventory.mkdir()
    for module in ("pip", "sitecustomize", "runpy", "encodings"):
        (inventory / f"{module}.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
    monkeypatch.chdir(inventory)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    folder = Path("cache") if cache == "relative" else tmp_path / "cache"
    with pytest.raises(wheel_copy.NoWheels, match="No matching distribution"):
        wheel_copy.fetch({"nvidia-x": Wheel("1.2.3", 1, "0" * 64)}, print, folder)
    assert not ran.exists()
