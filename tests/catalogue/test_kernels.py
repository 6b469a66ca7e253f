"""The kernels for which drivers build. Each row's source is in drivers.yml, or named beside it."""

from __future__ import annotations

import pytest

from rigwright import catalogue
from rigwright.catalogue.kernels import any_builds, builds, first_builders, newest_kernel, series
from rigwright.core.numbers import numbers

TRIED = [
    ("590.48.01", "6.18", "builds"),
    ("590.48.01", "6.19", "fails"),  # open-gpu-kernel-modules 1021
    ("590.48.01", "7.0", "fails"),  # GoogleCloudPlatform/ops-agent PR 2426
    ("595.58.03", "7.0", "builds"),
    ("580.119.02", "7.0", "fails"),  # nvidia-all 379
    ("580.142", "7.1", "fails"),  # void-packages 61087, and the next row
    ("580.159.04", "7.1", "builds"),
    ("580.178.04", "7.2", "builds"),
    ("580.178.04", "7.3", "unknown"),  # nobody tried
    ("575.64.05", "6.17", "fails"),  # nvidia-all's patch for 6.17
    ("570.153.02", "6.15", "fails"),  # liquorix-package 198; 570.169 builds
    ("570.169", "6.15", "builds"),
    ("565.77", "6.13", "fails"),  # open-gpu-kernel-modules 751
    ("530.41.03", "6.4", "fails"),  # open-gpu-kernel-modules 501
    ("535.161.08", "6.8", "builds"),
    ("535.161.08", "6.17", "fails"),
    ("535.183.06", "6.10", "unknown"),  # between 535.171.04 (6.9) and 535.216.01 (6.11)
    ("470.256.02", "6.10", "fails"),  # joanbm's list of patches begins at 6.10
    ("610.43.02", "7.2", "fails"),  # nixpkgs 539211
    ("610.57.04", "7.2", "unknown"),  # not read
    ("615.71.09", "7.2", "builds"),
    ("620.70.06", "6.8", "unknown"),  # nothing is known of 620
    ("999.1", "6.8", "unknown"),
]


@pytest.mark.parametrize(("version", "kernel", "answer"), TRIED)
def test_a_release_and_a_kernel(version: str, kernel: str, answer: str) -> None:
    assert builds(version, kernel) == answer


def test_a_branch_is_as_good_as_its_best_release() -> None:
    versions = catalogue.branches()["580"].versions
    assert [any_builds(versions, kernel) for kernel in ("5.15", "7.2", "7.3")] == ["builds", "builds", "unknown"]
    assert any_builds(catalogue.branches()["590"].versions, "7.0") == "fails"
    assert newest_kernel(versions) == "7.2"
    assert any_builds((), "6.8") == "unknown"
    assert first_builders("7.0") == {"580": "580.142", "595": "595.58.03", "610": "610.43.02", "615": "615.71.09"}


@pytest.mark.parametrize(
    ("release", "words"),
    [("6.8.0-31-generic", "6.8"), ("7.0.0-1011-gcp", "7.0"), ("6.1.0-18-amd64", "6.1"), ("generic", "")],
)
def test_the_series_of_a_release(release: str, words: str) -> None:
    assert series(release) == words


def test_the_table_is_in_order() -> None:
    """Each release of the table is known, and a later one builds for no older kernel only."""
    for branch in catalogue.branches().values():
        table = branch.builds_to_kernel
        assert set(table) <= set(branch.versions), branch.name
        assert list(table) == sorted(table, key=numbers)
        assert list(table.values()) == sorted(table.values(), key=numbers)
        assert set(branch.desktop) <= set(branch.versions)
