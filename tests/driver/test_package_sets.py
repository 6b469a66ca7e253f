"""The sets of packages of a driver: the compute set and the full set of each archive."""

from __future__ import annotations

import pytest

from rigwright.driver.package_sets import FULL_SET, families, of_other_set
from rigwright.facts.system import OsRelease

UBUNTU = OsRelease("ubuntu", "24.04", "noble", "Ubuntu 24.04")
DEBIAN = OsRelease("debian", "13", "trixie", "Debian 13")
SERVER = ("libnvidia-compute-580-server", "nvidia-dkms-580-server", "nvidia-utils-580-server")
ALSO = "libnvidia-gl-580-server libnvidia-decode-580-server libnvidia-common-580 xserver-xorg-video-nvidia-580".split()


@pytest.mark.parametrize(
    ("os_release", "branch", "flavour", "full"),
    [
        (UBUNTU, "580", "proprietary", {"nvidia-driver-580-server", "nvidia-driver-580"}),
        (UBUNTU, "580", "open", {"nvidia-driver-580-server-open", "nvidia-driver-580-open"}),
        (UBUNTU, "595", "open", {"nvidia-driver-595-server-open", "nvidia-driver-595-open", "nvidia-driver-open"}),
        (DEBIAN, "535", "proprietary", {"nvidia-driver", "nvidia-tesla-535-driver"}),
        (DEBIAN, "580", "open", {"nvidia-driver"}),
    ],
)
def test_the_full_set_of_each_archive(os_release: OsRelease, branch: str, flavour: str, full: set[str]) -> None:
    """Every full set has one metapackage of X and Wayland, no compute set has one."""
    sets = families(branch, os_release, flavour, display=True)
    assert [sum(bool(FULL_SET.fullmatch(name)) for name in names) for names in sets] == [1] * len(sets)
    assert {name for names in sets for name in names if FULL_SET.fullmatch(name)} == full
    compute = families(branch, os_release, flavour)
    assert not [name for names in compute for name in names if FULL_SET.fullmatch(name)]


def test_nvidias_full_set_on_debian_has_cuda() -> None:
    """In NVIDIA's repository for Debian nvidia-driver is the part without CUDA."""
    names = ("nvidia-kernel-open-dkms", "nvidia-driver-cuda", "nvidia-driver")
    assert families("580", DEBIAN, "open", display=True)[-1] == names


def test_packages_of_the_other_set() -> None:
    """Neither set's removal takes a package that both have, a tool beside the driver, or one of containers."""
    both = (*SERVER, "nvidia-settings", "nvidia-container-toolkit", "nvidia-driver-cuda", "libnvidia-nscq-580")
    full = (*ALSO, "nvidia-driver-580-server-open", "nvidia-driver-open", "cuda-drivers-580", "libglx-nvidia0")
    assert of_other_set((*both, *full, "nvidia-headless-580-server"), display=False) == list(full)
    headless = "nvidia-headless-no-dkms-580-server"
    assert of_other_set((*both, *full, headless), display=True) == [headless]
