"""Security bulletins: every claim with its source, and what a driver of each kind lacks."""

from __future__ import annotations

import re

import pytest

from rigwright import catalogue
from rigwright.catalogue import advisories
from rigwright.catalogue.advisories import floor, shortfall

CLAIMS = {
    "5383": "470.141.03 510.85.02 515.65.01",
    "5415": "470.161.03 510.108.03 515.86.01",
    "5452": "470.182.03 515.105.01 525.105.17 530.41.03",
    "5468": "470.199.02 525.125.06 535.54.03",
    "5491": "470.223.02 525.147.05 535.129.03 545.29.02",
    "5520": "470.239.06 535.161.07 550.54.14",
    "5551": "470.256.02 535.183.01 550.90.07 555.52.04",
    "5586": "535.216.01 550.127.05 565.57.01",
    "5614": "535.230.02 550.144.03 570.86.16",
    "5630": "535.247.01 550.163.01 570.133.07 575.51.02",
    "5670": "535.261.03 570.172.08",
    "5703": "535.274.02 570.195.03 580.95.05",
    "5747": "535.288.01 570.211.01 580.126.09 590.48.01",
    "5821": "535.309.01 580.159.03 595.71.05",
    "5861": "580.178.04 595.91.07 610.57.04 615.71.09",
}
"""The first fixed releases by bulletin, as NVIDIA's tables of updated versions have them."""


def test_the_bulletins() -> None:
    known = {entry.number: entry for entry in advisories.advisories()}
    assert {name: " ".join(entry.fixed.values()) for name, entry in known.items()} == CLAIMS
    assert list(known) == sorted(known)
    for name, entry in known.items():
        assert (
            entry.source == f"https://github.com/NVIDIA/product-security/blob/main/{entry.date.year}/{name}/{name}.md"
        )
        assert entry.date <= catalogue.release_table().read


def test_fixed_releases_are_known() -> None:
    for entry in advisories.advisories():
        for branch, release in entry.fixed.items():
            assert branch in catalogue.branches()
            newest = catalogue.branches()[branch].versions[-1]
            assert shortfall(newest) is None or not getattr(shortfall(newest), "missing", ())
            assert floor(branch) is not None
            assert re.fullmatch(rf"{branch}\.\d+\.\d+", release)


@pytest.mark.parametrize(
    ("version", "text", "fix"),
    [
        (
            "535.161.08",
            "driver 535.161.08 lacks security fixes: those of 8 bulletins, the last is bulletin 5821 (2026-05-19); "
            "535.309.01 is the first release of branch 535 with all of them; "
            "branch 535 has had no fixes since 2026-06, bulletin 5861 (2026-09-30) names no release of it",
            "driver: {branch: '580'} in the inventory, then invoke provision",
        ),
        (
            "535.309.01",
            "branch 535 has had no fixes since 2026-06, bulletin 5861 (2026-09-30) names no release of it; "
            "535.309.01 was the last release with fixes",
            "driver: {branch: '580'} in the inventory, then invoke provision",
        ),
        (
            "590.48.01",
            "bulletin 5821 (2026-05-19) names no release of it; 590.48.01 was the last release with fixes",
            "driver: {branch: '580'} in the inventory, then invoke provision",
        ),
        (
            "580.173.02",
            "driver 580.173.02 lacks security fixes: those of bulletin 5861 (2026-09-30); "
            "580.178.04 is the first release of branch 580 with all of them",
            "driver: {branch: '580', version: '580.178.04'} in the inventory, then invoke provision",
        ),
        (
            "560.35.03",
            "no bulletin names a release of branch 560, the last is bulletin 5861 (2026-09-30)",
            "driver: {branch: '580'} in the inventory, then invoke provision",
        ),
        ("570.86.15", "those of 5 bulletins, the last is bulletin 5747", "driver: {branch: '580'}"),
        ("610.43.02", "those of bulletin 5861", "driver: {branch: '610', version: '610.57.04'}"),
        ("535", "branch 535 has had no fixes since 2026-06", "driver: {branch: '580'}"),
        ("550", "branch 550 has had no fixes since 2025-06, bulletin 5670", "driver: {branch: '580'}"),
    ],
)
def test_what_is_lacking(version: str, text: str, fix: str) -> None:
    lacking = shortfall(version)
    assert lacking is not None
    assert text in lacking.text
    assert lacking.fix.startswith(fix)
    assert lacking.source.startswith("https://")


@pytest.mark.parametrize(
    "version",
    ["580", "580.178.04", "595.91.07", "610.57.04", "615.71.09", "615.71.10", "620.70.06", "", "none", "580..1"],
)
def test_nothing_is_lacking(version: str) -> None:
    assert shortfall(version) is None


def test_the_branch_to_move_to_is_one_that_the_gpus_support() -> None:
    turing = shortfall("590.48.01", ["590", "595", "610", "615"])
    assert turing is not None
    assert turing.fix.startswith("driver: {branch: '595'}")
    kepler, old_kepler = shortfall("470.256.02", ["470"]), shortfall("470.199.02", ["470"])
    assert kepler is not None
    assert old_kepler is not None
    assert kepler.fix.startswith("no branch with fixes supports these GPUs")
    assert old_kepler.fix.startswith("driver: {branch: '470', version: '470.256.02'}")
