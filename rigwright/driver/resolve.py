"""Chooses the exact driver packages of a host before the first change, with the host's apt in a private directory."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from msgspec import Struct

from rigwright import catalogue
from rigwright.catalogue.compatibility import card_of, flavour_of, needs_fabric_manager
from rigwright.core.desired import CudaSource, Driver
from rigwright.core.errors import HostError
from rigwright.driver.apt_pin import held_back, pin_path, pin_text, read_pins
from rigwright.driver.candidates import (
    Choice,
    built_already,
    built_here,
    fits,
    module_names,
    nowhere,
    transitional,
    with_metapackage,
    without_module,
)
from rigwright.driver.package_sets import (
    BESIDE,
    BLOCK,
    FULL_SET,
    KERNELS,
    UNBRANCHED,
    branch_of,
    families,
    flavours_of,
    kernel_of,
    not_from,
    prebuilt,
    upstream,
    wants_prebuilt,
)
from rigwright.facts import Facts, driver as state, files, grub, pci, system
from rigwright.facts.apt import archive as apt_archive
from rigwright.facts.apt.dpkg import Move
from rigwright.facts.system import OsRelease

PIN = "nvidia"


ASKED = (system.os_release, files.file(pin_path(PIN)), pci.gpus, pci.nvswitches, state.secure_boot)
"""The facts that `resolved` reads first."""


class Resolution(Struct, frozen=True):
    """The driver that a host will have. `closure`: the version of each package. `kernel`: that of the prebuilt module,
    which is held with the driver; "" if dkms builds the module. `not_from`: the archive from which no package may be
    installed, in the form of apt preferences."""

    version: str
    source: str
    reason: str
    closure: dict[str, str]
    kernel: str = ""
    not_from: str = ""

    def of_release(self, name: str) -> bool:
        """Whether a package has the version of the driver."""
        return upstream(self.closure[name]) == self.version

    @property
    def from_nvidia(self) -> bool:
        """Whether the packages come from NVIDIA's repository, without patches of a distribution."""
        return self.source == "cuda" or self.not_from.startswith("release o=")

    @property
    def flavour(self) -> str:
        """The kernel module of the packages: open or proprietary."""
        return "open" if any(re.search("-(kernel-)?open(-|$)", name) for name in self.closure) else "proprietary"

    @property
    def display(self) -> bool:
        """Whether the packages are the full set, with the libraries for X, Wayland, OpenGL and video."""
        return any(FULL_SET.fullmatch(name) for name in self.closure)

    @property
    def beside(self) -> dict[str, list[str]]:
        """The packages with other versions than the driver, by version (nvidia-persistenced, prebuilt modules,
        kernels)."""
        names: dict[str, list[str]] = {}
        for name, version in sorted(self.closure.items()):
            if not self.of_release(name):
                names.setdefault(version, []).append(name)
        return names


class _Chosen(Struct, frozen=True):
    """The chosen packages, and their source with its reason."""

    choice: Choice
    source: str
    reason: str
    remote: apt_archive.Repository | None = None


def repository(os_release: OsRelease, given: CudaSource | None) -> apt_archive.Repository:
    """NVIDIA's repository for the host's distribution, or the mirror from the inventory."""
    known = catalogue.cuda_table().repository
    distribution = cuda_distribution(os_release)
    key = known.key_of(distribution)
    url = (given.url if given else known.url.format(distribution=distribution)).rstrip("/")
    return apt_archive.Repository(
        url, (given and given.key) or f"{url}/{key.file}", (given and given.fingerprint) or key.fingerprint
    )


def cuda_distribution(os_release: OsRelease) -> str:
    """The name of a host's distribution in the URLs of NVIDIA's repository: ubuntu2204."""
    return f"{os_release.id}{os_release.version_id.replace('.', '')}"


def block(os_release: OsRelease) -> str:
    """The names that the pin blocks; not UNBRANCHED on Debian, whose own driver packages have those names."""
    return BLOCK if os_release.id == "debian" else f"{BLOCK} {UNBRANCHED}"


def pinned(facts: Facts, driver: Driver) -> Resolution | None:
    """The driver in the host's pin if it matches `driver`; otherwise None."""
    now = facts(files.file(pin_path(PIN)))
    pins = list(read_pins(now.text)) if now else []
    held = [pin for pin in pins if pin.version]
    if not held or not re.fullmatch(r"[0-9.]+\*", held[0].version):
        return None
    version = held[0].version.removesuffix("*")
    if not fits(version, driver):
        return None
    closure = {name: pin.version.removesuffix("*") for pin in held for name in pin.packages}
    kernel = next((release for name in closure if (release := kernel_of(name))), "")
    kept_out = next((pin.pin for pin in pins if pin.priority == -1 and pin.pin.startswith("release ")), "")
    return Resolution(version, "", "pinned", closure, kernel, kept_out)


def moves_it(move: Move, resolution: Resolution) -> bool:
    """Whether a step of an upgrade changes a package that must not change: a driver, CUDA, or a held kernel."""
    if resolution.kernel and any(fnmatchcase(move.name, glob) for glob in KERNELS):
        return True
    if move.name in resolution.closure or re.match(r"cuda-(?!keyring|.*config-common)", move.name):
        return True
    return brings_driver(move)


def brings_driver(move: Move) -> bool:
    """Whether a step of an installation installs a package of a driver."""
    part = "nvidia" in move.name or move.name.startswith(("cuda-drivers", "libcuda1"))
    return part and move.name not in BESIDE and bool(branch_of(move.version))


def resolved(facts: Facts, driver: Driver, given: CudaSource | None) -> Resolution:
    """The exact version and all packages of the driver.

    Raises HostError if the release does not exist, if no source has it or only transitional packages, if another branch
    would also be installed, or if a prebuilt module is wanted and missing.
    """
    os_release, _, gpus, switches, secured = facts.all(*ASKED)
    signed = wants_prebuilt(driver, os_release, secured)
    kept = pinned(facts, driver)
    if kept and _is_valid(facts, kept, driver, signed):
        return kept
    cards = [card for gpu in gpus if (card := card_of(gpu.device_id))]
    fabric = needs_fabric_manager(cards, len(switches))
    flavour = flavour_of(cards, driver)
    server_only = driver.source == "ubuntu-server"
    if server_only:
        _not_transitional(facts, driver, os_release, flavour)
    if signed:
        modules = prebuilt(driver.branch, flavour, fabric, server_only, bool(driver.display))
        chosen = _signed(facts, driver, os_release, modules, secured)
    else:
        wanted = families(driver.branch, os_release, flavour, fabric, server_only, bool(driver.display))
        chosen = _sourced(facts, driver, wanted, repository(os_release, given))
    return _complete(facts, chosen, driver, os_release)


def _not_transitional(facts: Facts, driver: Driver, os_release: OsRelease, flavour: str) -> None:
    """Raises HostError on another system than Ubuntu, and if the -server set that apt would install brings another
    branch."""
    if os_release.id != "ubuntu":
        problem = f"source ubuntu-server on {os_release.pretty_name}"
        raise HostError("driver.source", problem, "Ubuntu, whose archive has the -server packages", "source: auto")
    name = f"nvidia-headless-no-dkms-{driver.branch}-server{'-open' if flavour == 'open' else ''}"
    versions = facts(apt_archive.offered((name,))).versions.get(name, ())
    own = [version for version in versions if "/compute/cuda/repos/" not in version.source]
    if driver.version or not own or not own[0].transitional:
        return
    real = next((upstream(version.version) for version in own if not version.transitional), "")
    brings = f"branch {own[0].brings}" if own[0].brings else "another branch"
    raise HostError(
        "driver.source",
        f"{name} {own[0].version} is a transitional package that installs {brings}, and so would ubuntu-drivers",
        f"a -server set that is real{f'; {real} is, in an older pocket of the archive' if real else ''}",
        (f"driver: {{branch: '{own[0].brings}', source: ubuntu-server}}, or " if own[0].brings else "")
        + (f"version: '{real}'" if real else "source: auto"),
    )


def _is_valid(facts: Facts, kept: Resolution, driver: Driver, signed: bool) -> bool:
    """Whether a pin has the wanted kind of module and set, and its prebuilt module is for the kernel that boots
    next."""
    if driver.flavour not in ("auto", kept.flavour) or driver.display not in (None, kept.display):
        return False
    if not kept.kernel:
        return not signed
    return driver.modules != "dkms" and bool(facts(grub.grub).entry.release == kept.kernel)


def _sourced(
    facts: Facts, driver: Driver, wanted: tuple[tuple[str, ...], ...], remote: apt_archive.Repository
) -> _Chosen:
    """The driver with a dkms module from the first allowed source that has it. Raises HostError if none has it."""
    names = tuple(name for family in wanted for name in family)
    offered_by: dict[str, apt_archive.Archive] = {}
    local = driver.source.startswith("/")
    if local:
        remote = apt_archive.Repository(f"file:{driver.source}", "", "")
    if driver.source in ("auto", "distribution", "ubuntu-server"):

        def own(source: str) -> bool:  # a repository of NVIDIA that is already set up is not the distribution
            return not source.startswith(remote.url) and "/compute/cuda/repos/" not in source

        offered_by["distribution"] = facts(apt_archive.offered(names))
        if choice := built_here(offered_by["distribution"], driver, wanted, own):
            named = driver.source == "ubuntu-server"
            reason = "the inventory says so" if named else "the distribution's archive has the real branch"
            return _Chosen(choice, "distribution", reason)
    if driver.source in ("auto", "cuda") or local:
        source = driver.source if local else "cuda"
        offered_by[source] = facts(apt_archive.offered(names, remote))
        only = transitional(offered_by.get("distribution"))
        reason = "the distribution's archive does not have it" if driver.source == "auto" else "the inventory says so"
        reason = f"the distribution's {only} is only transitional" if only else reason
        if choice := built_here(offered_by[source], driver, wanted, lambda source: source.startswith(remote.url)):
            return _Chosen(choice, source, reason, remote)
    raise nowhere(driver, offered_by)


def _signed(
    facts: Facts, driver: Driver, os_release: OsRelease, wanted: tuple[tuple[str, tuple[str, ...]], ...], secured: bool
) -> _Chosen:
    """A driver with a module that Ubuntu built and signed, for the kernel that boots next or a newer kernel. Raises
    HostError if there is none."""
    if os_release.id != "ubuntu":
        problem = f"{os_release.pretty_name} has no kernel modules of NVIDIA's that are built and signed"
        raise HostError("driver.modules", problem, "Ubuntu, whose archive has them", "modules: dkms, or auto")
    kernel = facts(grub.grub).entry.release
    flavours = flavours_of(kernel, os_release)
    names = tuple(name for _, family in wanted for name in family)
    local = apt_archive.Repository(f"file:{driver.source}", "", "") if driver.source.startswith("/") else None
    offered = facts(apt_archive.offered((*names, *module_names(wanted, kernel, flavours)), local))
    choice = built_already(offered, driver, wanted, kernel, flavours)
    if choice is None:
        raise without_module(driver, kernel, offered, secured)
    if driver.source == "ubuntu-server" or driver.display:  # the metapackage provides nvidia-dkms for the full set
        following = with_metapackage(choice, offered)
        if driver.display and following == choice:
            found = "the full set needs the package that follows the kernel's flavour, and none brings the module for "
            raise HostError(
                "driver.display",
                f"{found}{choice.kernel}",
                "the newest kernel of its flavour, for which Ubuntu has that package",
                "sudo apt-get install linux-generic, reboot; or display: false, or modules: dkms",
            )
        choice = following
    reason = f"its module is built and signed for {choice.kernel}"
    if choice.kernel != kernel:
        parts = tuple(f"linux-{part}-{choice.kernel}" for part in ("image", "modules-extra", "headers"))
        there = facts(apt_archive.offered(parts, local)).versions
        moved = {name: there[name][0].version for name in parts if there.get(name)}
        choice = Choice({**choice.packages, **moved}, choice.version, choice.kernel)
        reason += f", and there is none for {kernel}: the kernel moves with it"
    reason += "; Secure Boot takes no other" if secured else "; the inventory says so"
    return _Chosen(choice, driver.source if local else "distribution", reason, local)


def _complete(facts: Facts, chosen: _Chosen, driver: Driver, os_release: OsRelease) -> Resolution:
    """All packages of a choice. Raises HostError if apt cannot install them, or would install another branch."""
    packages, version = chosen.choice.packages, chosen.choice.version
    words = tuple(f"{name}={each}" for name, each in packages.items())
    own = {name for name in packages if name.startswith("linux-")}
    own |= {f"linux-signatures-nvidia-{chosen.choice.kernel}"} if own else set()
    own |= {name.replace("linux-modules", "linux-objects") for name in own if kernel_of(name)}
    of_nvidia = sorted(package for package in own if "nvidia" in package)
    also = {each: of_nvidia for name, each in packages.items() if kernel_of(name)}
    other = not_from(chosen.source, os_release)
    if os_release.id == "debian":
        text = pin_text(["*nvidia*", "cuda-drivers*", "libcuda1"], f"{version}*")
    else:
        branched = any(f"-{driver.branch}" in name for name in packages)
        names = [f"*nvidia*-{driver.branch}*"] if branched else UNBRANCHED.split()
        text = pin_text(names, f"{version}*", block(os_release), also, other)
    plan = facts(apt_archive.simulated(words, text, chosen.remote))
    if plan.error and plan.held:
        raise held_back("driver", plan.held, f"the driver's packages {', '.join(packages)} cannot be installed")
    if plan.error:
        problem = f"apt cannot install {' '.join(words)}: {plan.error}"
        fix = "another branch or source; sudo apt-get check, on the host, names packages that are broken already"
        raise HostError("driver", problem, "a set of packages that fit together", fix)
    strangers = [
        move
        for move in plan.moves
        if "nvidia" in move.name and move.name not in BESIDE and branch_of(move.version) not in ("", driver.branch)
    ]
    if strangers:
        problem = f"{words[0]} would bring {strangers[0].name} {strangers[0].version}"
        raise HostError("driver", problem, f"branch {driver.branch} and nothing else", "source: cuda")
    closure = {
        move.name: move.version
        for move in plan.moves
        if move.version and (upstream(move.version) == version or move.name in (*own, *BESIDE))
    }
    closure.update(packages)
    return Resolution(version, chosen.source, chosen.reason, closure, chosen.choice.kernel, other)
