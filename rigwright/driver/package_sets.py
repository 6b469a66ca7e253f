"""Names of a driver's packages in the archives of Ubuntu, Debian and NVIDIA, and names that a pin blocks."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rigwright.core import lazy_re
from rigwright.core.desired import Driver
from rigwright.facts.system import OsRelease

FABRIC_MANAGER = "nvidia-fabricmanager"
BESIDE = ("nvidia-settings", "nvidia-modprobe", "nvidia-persistenced", "nvidia-egl-common", "nvidia-vulkan-common")
"""Packages that have the version of a driver, but work with every driver."""
MODULES = "linux-modules-nvidia-"
"""The prefix of packages with a module that Ubuntu built and signed; the rest is BRANCH[-server][-open]-KERNEL."""
BLOCK = (
    "/^(lib|linux-modules-|linux-objects-|linux-signatures-|xserver-xorg-video-)?nvidia-(.*-)?[0-9][0-9][0-9](-|$)/ "
    "cuda-drivers*"
)
"""Package names that contain a driver branch. The wanted packages are pinned before this pattern, so it blocks all
other branches. It does not match nvidia-container-toolkit."""
UNBRANCHED_FROM = 590
"""The first branch whose package names in NVIDIA's repository for Ubuntu do not contain the branch (NVIDIA's
installation guide, 2025-12)."""
UNBRANCHED = (
    "/^nvidia-(driver|dkms|headless|headless-no-dkms|kernel-source)(-open)?$/ nvidia-open nvidia-utils "
    "nvidia-compute-utils "
    "nvidia-kernel-common nvidia-firmware /^libnvidia-(cfg1|common|compute|decode|encode|extra|fbc1|gl|gpucomp)$/ "
    "xserver-xorg-video-nvidia"
)
"""The package names without the branch. Ubuntu's own archive has no such names. Debian's archive has such names, and
there the pin on these names keeps the branch."""


def not_from(source: str, os_release: OsRelease) -> str:
    """The pin selector of the other archive with packages of the same names; "" if the source is a directory."""
    own = "release o=Debian" if os_release.id == "debian" else "release o=Ubuntu"
    return {"distribution": "release l=NVIDIA CUDA", "cuda": own}.get(source, "")


def upstream(version: str) -> str:
    """The upstream part of a package version without epoch and revision: 535.261.03 of 535.261.03-0ubuntu1."""
    return re.split(r"[-+~]", version.split(":", 1)[-1])[0]


def branch_of(version: str) -> str:
    """The driver branch of a package version; "" if it is not that of a driver (container toolkit 1.14)."""
    match = re.match(r"(\d{3})\.\d", upstream(version))
    return match[1] if match else ""


def families(
    branch: str,
    os_release: OsRelease,
    flavour: str = "proprietary",
    fabric_manager: bool = False,
    server_only: bool = False,
    display: bool = False,
) -> tuple[tuple[str, ...], ...]:
    """The sets of packages of a driver with a dkms module, the preferred set first.

    `display`: sets with the libraries for X, Wayland, OpenGL and video, in the same order as the compute sets, so that
    one follows the other at the same release. `fabric_manager`: each set contains the fabric manager. `server_only`:
    only Ubuntu's -server set.
    """
    if os_release.id == "debian":
        return _debian(branch, flavour, (f"{FABRIC_MANAGER}-{branch}",) if fabric_manager else (), display)
    end = "-open" if flavour == "open" else ""
    main = "nvidia-driver" if display else "nvidia-headless"
    sets: list[tuple[str, ...]] = [
        (f"{main}-{branch}-server{end}", f"nvidia-utils-{branch}-server"),
        (f"{main}-{branch}{end}", f"nvidia-utils-{branch}"),
    ]
    sets = sets[:1] if server_only else sets
    if int(branch) >= UNBRANCHED_FROM and not server_only:
        libraries = ("libnvidia-compute", "libnvidia-cfg1", "nvidia-compute-utils", "nvidia-utils")
        sets += [(f"{main}{end}", "nvidia-utils")]
        sets += [] if display else [(f"nvidia-dkms{end}", *libraries)]
    if not fabric_manager:
        return tuple(sets)
    managers = (f"{FABRIC_MANAGER}-{branch}", *([FABRIC_MANAGER] if int(branch) >= UNBRANCHED_FROM else []))
    return tuple((*names, manager) for names in sets for manager in managers)


DEBIAN_CUDA_FROM = 560
"""The first branch whose libraries and nvidia-smi are one package, nvidia-driver-cuda, in NVIDIA's repository for
Debian."""


def _debian(branch: str, flavour: str, also: tuple[str, ...], display: bool) -> tuple[tuple[str, ...], ...]:
    module = "nvidia-open-kernel-dkms" if flavour == "open" else "nvidia-kernel-dkms"
    tesla = f"nvidia-tesla-{branch}"  # a second branch for servers, next to the default branch of the release
    libraries = (f"lib{tesla}-cuda1", f"lib{tesla}-cfg1")
    main, main_tesla = (("nvidia-driver",), (f"{tesla}-driver",)) if display else ((), ())
    sets: list[tuple[str, ...]] = [(module, "nvidia-smi", "nvidia-persistenced", "libcuda1", *main, *also)]
    if flavour != "open":
        sets.append((f"{tesla}-kernel-dkms", f"{tesla}-smi", "nvidia-persistenced", *libraries, *main_tesla, *also))
    if int(branch) >= DEBIAN_CUDA_FROM:
        theirs = "nvidia-kernel-open-dkms" if flavour == "open" else "nvidia-kernel-dkms"
        managers = dict.fromkeys((also, *([(FABRIC_MANAGER,)] if also and int(branch) >= UNBRANCHED_FROM else [])))
        sets += [(theirs, "nvidia-driver-cuda", *main, *manager) for manager in managers]
    return tuple(sets)


FULL_SET = lazy_re.compile(r"nvidia-(tesla-\d{3}-)?driver(-\d{3})?(-server)?(-open)?")
"""The metapackages with the libraries for X, Wayland, OpenGL and video. Each full set has one, compute sets do not."""
HEADLESS = lazy_re.compile(r"nvidia-headless(-no-dkms)?(-\d{3})?(-server)?(-open)?")
"""Ubuntu's metapackages of the compute set."""
_FULL_ONLY = lazy_re.compile(
    "cuda-drivers|nvidia-driver(-libs|-bin)?|nvidia-(vdpau-driver|egl-icd|vulkan-icd)|xserver-xorg-video-nvidia|"
    "libnvidia-(common|decode|encode1?|extra|fbc1|gl|(e?gl|rt)core|glvkspirv|allocator1|ngx1|opticalflow1)|"
    "lib(gl1|glx|egl|gles)-nvidia-?(glvnd-glx|[012])"
)


def of_other_set(names: Iterable[str], display: bool) -> list[str]:
    """The packages among `names` that only the other set has: the compute set with `display`, otherwise the full
    set."""
    if display:
        return [name for name in names if HEADLESS.fullmatch(name)]
    suffix = r"-tesla-\d{3}|-\d{3}(-server)?(-open)?$|-open$"
    return [name for name in names if _FULL_ONLY.fullmatch(re.sub(suffix, "", name))]


def prebuilt(
    branch: str,
    flavour: str = "proprietary",
    fabric_manager: bool = False,
    server_only: bool = False,
    display: bool = False,
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The sets with a module that Ubuntu built and signed: the prefix of the module package, and the other packages.
    The parameters are those of `families`."""
    also = (f"{FABRIC_MANAGER}-{branch}",) if fabric_manager else ()
    end = "-open" if flavour == "open" else ""
    main = "nvidia-driver" if display else "nvidia-headless-no-dkms"
    return tuple(
        (f"{MODULES}{name}{end}-", (f"{main}-{name}{end}", f"nvidia-utils-{name}", *also))
        for name in (f"{branch}-server", *(() if server_only else (branch,)))
    )


def wants_prebuilt(driver: Driver, os_release: OsRelease, secure_boot: bool) -> bool:
    """Whether to use the prebuilt, signed module: the inventory requests it, or Secure Boot is on and Ubuntu has it."""
    if driver.modules != "auto":
        return driver.modules == "prebuilt"
    if driver.source == "ubuntu-server":
        return True
    return secure_boot and os_release.id == "ubuntu" and driver.source in ("auto", "distribution")


def kernel_of(name: str) -> str:
    """The kernel release of a package of prebuilt modules for one kernel; "" for other packages."""
    match = re.fullmatch(rf"{MODULES}\d{{3}}(?:-server)?(?:-open)?-(\d+\.\d+\.\d+.*)", name)
    return match[1] if match else ""


def flavours_of(kernel: str, os_release: OsRelease) -> tuple[str, ...]:
    """The flavours of a kernel release, as in package names: generic, generic-hwe-24.04; () if it has no flavour."""
    match = re.search(r"\d-([a-z][a-z0-9-]{0,60})$", kernel)
    return (match[1], f"{match[1]}-hwe-{os_release.version_id}") if match else ()


KERNELS = tuple(f"linux-{name}*" for name in ("image-", "headers-", "modules-", "generic", "virtual", "lowlatency"))
"""Globs of the packages that contain a kernel or install the next kernel."""


def holding(installed: Iterable[str], kernel: str) -> list[str]:
    """The installed kernel packages to hold: those of that kernel, and those that would install the next one."""
    return sorted(name for name in installed if kernel in name or not re.search(r"\d{1,4}\.\d{1,6}\.\d{1,6}-", name))
