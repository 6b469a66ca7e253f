"""Which packages make a server's driver: their names in Ubuntu's, Debian's and NVIDIA's archives, and what a pin keeps out."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rigwright.facts.os import OsRelease
from rigwright.wanted import Driver

FABRIC_MANAGER = "nvidia-fabricmanager"
BESIDE = ("nvidia-settings", "nvidia-modprobe", "nvidia-persistenced")
"""Packages with a driver's version that work beside every driver."""
MODULES = "linux-modules-nvidia-"
"""How the packages begin that hold a kernel module which Ubuntu has built and signed: BRANCH[-server][-open]-KERNEL follows."""
BLOCK = "/^(lib|linux-modules-|linux-objects-|linux-signatures-|xserver-xorg-video-)?nvidia-(.*-)?[0-9][0-9][0-9](-|$)/ cuda-drivers*"
"""Names that carry a driver branch; with the closure pinned first, every other branch is kept out. Not nvidia-container-toolkit."""
UNBRANCHED_FROM = 590
"""From this branch on NVIDIA's repository for Ubuntu has names without the branch (its installation guide, 2025-12)."""
UNBRANCHED = (
    "/^nvidia-(driver|dkms|headless|headless-no-dkms|kernel-source)(-open)?$/ nvidia-open nvidia-utils nvidia-compute-utils "
    "nvidia-kernel-common nvidia-firmware /^libnvidia-(cfg1|common|compute|decode|encode|extra|fbc1|gl|gpucomp)$/ "
    "xserver-xorg-video-nvidia"
)
"""Those names. No package of Ubuntu's own is called so; Debian's are, and there the pin on them is what keeps the branch."""


def not_from(source: str, os_release: OsRelease) -> str:
    """The other archive with packages called the same: never mixed with those of `source`. "" for a directory."""
    own = "release o=Debian" if os_release.id == "debian" else "release o=Ubuntu"
    return {"distribution": "release l=NVIDIA CUDA", "cuda": own}.get(source, "")


def upstream(version: str) -> str:
    """535.261.03 of a package version 535.261.03-0ubuntu1, epoch or none."""
    return re.split(r"[-+~]", version.split(":", 1)[-1])[0]


def branch_of(version: str) -> str:
    """The driver branch that a package version belongs to, "" when it is no driver's version (container toolkit 1.14)."""
    found = re.match(r"(\d{3})\.\d", upstream(version))
    return found[1] if found else ""


def families(
    branch: str, os_release: OsRelease, flavour: str = "proprietary", fabric_manager: bool = False
) -> tuple[tuple[str, ...], ...]:
    """The sets of packages that make a server's driver with a module that dkms builds, best first; the fabric manager is
    of the driver's version."""
    if os_release.id == "debian":
        return _debian(branch, flavour, (f"{FABRIC_MANAGER}-{branch}",) if fabric_manager else ())
    end = "-open" if flavour == "open" else ""
    found: list[tuple[str, ...]] = [
        (f"nvidia-headless-{branch}-server{end}", f"nvidia-utils-{branch}-server"),
        (f"nvidia-headless-{branch}{end}", f"nvidia-utils-{branch}"),
    ]
    if int(branch) >= UNBRANCHED_FROM:
        libraries = ("libnvidia-compute", "libnvidia-cfg1", "nvidia-compute-utils", "nvidia-utils")
        found += [(f"nvidia-headless{end}", "nvidia-utils"), (f"nvidia-dkms{end}", *libraries)]
    if not fabric_manager:
        return tuple(found)
    managers = (f"{FABRIC_MANAGER}-{branch}", *([FABRIC_MANAGER] if int(branch) >= UNBRANCHED_FROM else []))
    return tuple((*one, manager) for one in found for manager in managers)


def _debian(branch: str, flavour: str, also: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    module = "nvidia-open-kernel-dkms" if flavour == "open" else "nvidia-kernel-dkms"
    tesla = f"nvidia-tesla-{branch}"  # a second branch, kept for servers beside the release's own
    libraries = (f"lib{tesla}-cuda1", f"lib{tesla}-cfg1")
    own = (module, "nvidia-smi", "nvidia-persistenced", "libcuda1", *also)
    if flavour == "open":
        return (own,)
    return own, (f"{tesla}-kernel-dkms", f"{tesla}-smi", "nvidia-persistenced", *libraries, *also)


def prebuilt(
    branch: str, flavour: str = "proprietary", fabric_manager: bool = False
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The same with a module that Ubuntu has built and signed: how the module's package begins, and what goes with it."""
    also = (f"{FABRIC_MANAGER}-{branch}",) if fabric_manager else ()
    end = "-open" if flavour == "open" else ""
    return tuple(
        (f"{MODULES}{name}{end}-", (f"nvidia-headless-no-dkms-{name}{end}", f"nvidia-utils-{name}", *also))
        for name in (f"{branch}-server", branch)
    )


def wants_prebuilt(driver: Driver, os_release: OsRelease, secure_boot: bool) -> bool:
    """Whether the module shall come built and signed: the inventory says so, or Secure Boot takes no other and Ubuntu has it."""
    if driver.modules != "auto":
        return driver.modules == "prebuilt"
    return secure_boot and os_release.id == "ubuntu" and driver.source in ("auto", "distribution")


def kernel_of(name: str) -> str:
    """The kernel release that a package of built modules is for, "" for every other name and for those of a whole flavour."""
    found = re.fullmatch(rf"{MODULES}\d{{3}}(?:-server)?(?:-open)?-(\d+\.\d+\.\d+.*)", name)
    return found[1] if found else ""


def flavours_of(kernel: str, os_release: OsRelease) -> tuple[str, ...]:
    """What the packages that follow a kernel are called after: generic, generic-hwe-24.04; () when its release has no word."""
    found = re.search(r"\d-([a-z][a-z0-9-]*)$", kernel)
    return (found[1], f"{found[1]}-hwe-{os_release.version_id}") if found else ()


KERNELS = (
    "linux-image-*",
    "linux-headers-*",
    "linux-modules-*",
    "linux-generic*",
    "linux-virtual*",
    "linux-lowlatency*",
)
"""Globs of the packages that make a kernel or bring the next one."""


def holding(installed: Iterable[str], kernel: str) -> list[str]:
    """Of installed kernel packages those that a held kernel consists of, and those that would bring the next one."""
    return sorted(name for name in installed if kernel in name or not re.search(r"\d+\.\d+\.\d+-", name))
