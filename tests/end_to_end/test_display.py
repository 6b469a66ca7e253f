"""A desktop with GPUs becomes a GPU server that keeps its screen: refused, full set, compute set, full set again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.cli import commands
from lab.faults import inject
from tests.end_to_end.conftest import reboot
from tests.end_to_end.rw import document, inventory
from tests.end_to_end.test_driver import BARE, root, state, whole

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]
NAME = "t-desktop"
SCREENS = "cat $(grep -l 0x030000 /sys/bus/pci/devices/*/class | sed 's/class$/boot_vga/')"
MODESET = "cat /sys/module/nvidia_drm/parameters/modeset 2>/dev/null || :"


@pytest.fixture(name="desktop")
def _desktop(lab_root: None) -> Iterator[str]:  # noqa: ARG001
    """Yields a fresh Debian 12 on which alice works under Wayland."""
    commands.down(name=NAME, say=print)
    commands.up(name=NAME, rig="rig-3090", distro="debian12", say=print)
    inject.fault(NAME, "desktop", "", print)
    yield NAME
    commands.down(name=NAME, say=print)


@pytest.mark.nightly
def test_a_desktop_keeps_its_screen(desktop: str, tmp_path: Path) -> None:
    """Debian gives nvidia-drm no option, so this covers rigwright's file too."""

    def run(task: str, *words: str, **display: bool) -> dict[str, Any]:
        driver = {"branch": "535", **display}
        where = inventory(tmp_path / str(display), **{desktop: {**BARE, "driver": driver}})
        found = document(task, "--inventory", where, "--host", desktop, *words, deadline=500)
        host: dict[str, Any] = found["hosts"][desktop]
        return host

    def notes(host: dict[str, Any]) -> str:
        return " ".join(note for step in host["steps"] for note in step["notes"])

    refused = run("provision", "--yes")
    assert refused["error"]["found"] == "a graphical session runs: alice (wayland, seat0)", refused["error"]
    assert "display: true" in refused["error"]["fix"]
    assert state(desktop)["packages"] == {}

    warned = notes(run("plan", display=True))
    assert "unsaved work is lost. Log out first" in warned
    assert "the reboot ends a graphical session: alice (wayland, seat0)" in warned

    reboot(desktop)
    assert root(desktop, SCREENS).split() == ["1", "0", "0"]  # three GPUs, no management controller
    assert "gdm.service starts a graphical session" in notes(run("plan"))

    for display, moved in ((True, {"rebooted": True}), (False, {"rebooted": False}), (True, {"rebooted": False})):
        first, second = (run("provision", "--yes", display=display) for _ in range(2))
        assert (first["status"], first["rebooted"]) == ("changed", moved["rebooted"]), first["findings"]
        assert (second["status"], second["changes"]) == ("ok", []), second
        now = state(desktop)
        assert whole(now, "535"), now
        assert {"nvidia-driver", "xserver-xorg-video-nvidia"} & now["packages"].keys() == (
            {"nvidia-driver", "xserver-xorg-video-nvidia"} if display else set()
        )
        assert root(desktop, MODESET).strip() == "1"
