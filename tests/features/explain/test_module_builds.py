"""Which driver release is named where the module does not build: one of the branch only where the branch has one."""

from __future__ import annotations

import datetime

import pytest

from rigwright.features.explain.module_builds import ModuleBuilds

DKMS = "/var/lib/dkms/nvidia/{}/build/nvidia/nv-mmap.c:475:5: error: implicit declaration"


@pytest.mark.parametrize(
    ("driver", "kernel", "words", "missing"),
    [
        (
            "550.163.01",
            "",
            ["no release of branch 550", "newer than 6.14", "these do: 580.178.04 up to 7.2 (580)"],
            "575",
        ),
        ("550.54.15", "6.17", ["no release of branch 550", "for kernel 6.17", "580.82.09 (580)"], "550.5"),
        ("535.183.01", "6.14", ["535.247.01 of branch 535 builds for kernel 6.14"], "580"),
        ("570.133.07", "", ["570.211.01 of branch 570 builds up to kernel 6.18"], "580"),
        ("999.10", "6.17", [], "999"),
    ],
)
def test_advice(driver: str, kernel: str, words: list[str], missing: str) -> None:
    reader = ModuleBuilds()
    if kernel:
        reader.feed(f"make -C /lib/modules/{kernel}.0-22-generic/build")
    reader.feed(DKMS.format(driver))
    advice = reader.advice(datetime.date(2026, 11, 22))
    assert [word for word in words if word not in advice] == []
    assert missing not in advice
    assert bool(words) == bool(advice)
