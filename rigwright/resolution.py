"""Which driver packages a host will get, exactly, before anything changes: from its own apt, asked in private."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

from rigwright import catalogue
from rigwright.compatibility import card_of, flavour_of, needs_fabric_manager
from rigwright.errors import HostError
from rigwright.facts import Facts, archive, files, grub, pci
from rigwright.facts import driver as state
from rigwright.facts import os as system
from rigwright.facts.apt import Move
from rigwright.facts.os import OsRelease
from rigwright.families import (
    BESIDE,
    BLOCK,
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
from rigwright.offers import (
    Choice,
    built_already,
    built_here,
    fits,
    module_names,
    nowhere,
    transitional,
    without_module,
)
from rigwright.preferences import pin_path, pin_text
from rigwright.wanted import CudaSource, Driver

PIN = "nvidia"


@dataclass(frozen=True)
class Resolution:
    """The driver that a host will have: its exact version, where it comes from and why, and every package at its version.

    `kernel`: the one that its module is built for already, and that is held with it; "" where dkms builds the module.
    `not_from`: the archive that none of it may come from, as apt's preferences say it.
    """

    version: str
    source: str
    reason: str
    closure: dict[str, str]
    kernel: str = ""
    not_from: str = ""

    def of_release(self, name: str) -> bool:
        """Whether a package of the closure is of the driver's release; the others have versions of their own."""
        return upstream(self.closure[name]) == self.version

    @property
    def beside(self) -> dict[str, list[str]]:
        """Those others by version: Debian's nvidia-persistenced, built modules and the kernel that they are for."""
        found: dict[str, list[str]] = {}
        for name, version in sorted(self.closure.items()):
            if not self.of_release(name):
                found.setdefault(version, []).append(name)
        return found


@dataclass(frozen=True)
class _Found:
    """What makes the driver, from where and why."""

    choice: Choice
    source: str
    reason: str
    remote: archive.Repository | None = None


def repository(os_release: OsRelease, given: CudaSource | None) -> archive.Repository:
    """NVIDIA's repository for the host's distribution, or the mirror that the inventory names."""
    known = catalogue.cuda_repository()
    url = (
        given.url
        if given
        else known.url.format(distribution=f"{os_release.id}{os_release.version_id.replace('.', '')}")
    )
    key = (given and given.key) or f"{url.rstrip('/')}/{known.key}"
    return archive.Repository(
        url.rstrip("/"), key, given.fingerprint if given and given.fingerprint else known.fingerprint
    )


def block(os_release: OsRelease) -> str:
    """The names that the pin keeps out; on Debian the driver's own packages are called as NVIDIA's newest are."""
    return BLOCK if os_release.id == "debian" else f"{BLOCK} {UNBRANCHED}"


def pinned(facts: Facts, driver: Driver) -> Resolution | None:
    """The driver that the host's own pin names, when it is what is wanted: then nothing needs to be asked of apt."""
    now = facts(files.file(pin_path(PIN)))
    stanzas = (
        re.findall(r"^Package: (.+)\nPin: version (\S+)\nPin-Priority: 1001$", now.text, re.MULTILINE) if now else []
    )
    if not stanzas or not re.fullmatch(r"[0-9.]+\*", stanzas[0][1]):
        return None
    version = stanzas[0][1].removesuffix("*")
    if not fits(version, driver):
        return None
    closure = {name: each.removesuffix("*") for names, each in stanzas for name in names.split()}
    kernel = next((release for name in closure if (release := kernel_of(name))), "")
    kept_out = re.search(r"^Pin: (release .+)\nPin-Priority: -1$", now.text, re.MULTILINE) if now else None
    return Resolution(version, "", "pinned", closure, kernel, kept_out[1] if kept_out else "")


def moves_it(move: Move, found: Resolution) -> bool:
    """Whether a step of an upgrade would move what a pin is to keep: the driver, another one, CUDA, or a held kernel."""
    if found.kernel and any(fnmatchcase(move.name, glob) for glob in KERNELS):
        return True
    if move.name in found.closure or re.match(r"cuda-(?!keyring|.*config-common)", move.name):
        return True
    return brings_driver(move)


def brings_driver(move: Move) -> bool:
    """Whether a step of an installation brings a part of a driver."""
    part = "nvidia" in move.name or move.name.startswith(("cuda-drivers", "libcuda1"))
    return part and move.name not in BESIDE and bool(branch_of(move.version))


def resolved(facts: Facts, driver: Driver, given: CudaSource | None) -> Resolution:
    """The driver's exact version and closure.

    Raises HostError: no such release, no source has it, only transitional packages, another branch would come along, no
    built module for the kernel where one is wanted.
    """
    asked = (system.os_release, files.file(pin_path(PIN)), pci.gpus, pci.nvswitches, state.secure_boot)
    os_release, _, gpus, switches, secured = facts.all(*asked)
    signed = wants_prebuilt(driver, os_release, secured)
    kept = pinned(facts, driver)
    if kept and _stands(facts, kept, driver, signed):
        return kept
    cards = [card for one in gpus if (card := card_of(one.device_id))]
    fabric = needs_fabric_manager(cards, len(switches))
    flavour = flavour_of(cards, driver)
    if signed:
        found = _signed(facts, driver, os_release, prebuilt(driver.branch, flavour, fabric), secured)
    else:
        wanted = families(driver.branch, os_release, flavour, fabric)
        found = _sourced(facts, driver, wanted, repository(os_release, given))
    return _complete(facts, found, driver, os_release)


def _stands(facts: Facts, kept: Resolution, driver: Driver, signed: bool) -> bool:
    """Whether a pin is of the wanted kind of module, and of the kernel that boots next."""
    if not kept.kernel:
        return not signed
    return driver.modules != "dkms" and bool(facts(grub.grub).entry.release == kept.kernel)


def _sourced(facts: Facts, driver: Driver, wanted: tuple[tuple[str, ...], ...], remote: archive.Repository) -> _Found:
    """The first source of the inventory's choice that has a real driver, whose module dkms builds. Raises HostError."""
    names = tuple(name for family in wanted for name in family)
    offered_by: dict[str, archive.Archive] = {}
    if driver.source.startswith("/"):
        remote = archive.Repository(f"file:{driver.source}", "", "")

    def theirs(source: str) -> bool:
        return source.startswith(remote.url)

    def own(source: str) -> bool:  # a source of NVIDIA's that somebody has set up is not the distribution
        return not theirs(source) and "/compute/cuda/repos/" not in source

    if driver.source.startswith("/"):
        offered_by[driver.source] = facts(archive.offered(names, remote))
        if choice := built_here(offered_by[driver.source], driver, wanted, theirs):
            return _Found(choice, driver.source, "the inventory says so", remote)
    if driver.source in ("auto", "distribution"):
        offered_by["distribution"] = facts(archive.offered(names))
        if choice := built_here(offered_by["distribution"], driver, wanted, own):
            return _Found(choice, "distribution", "the distribution's archive has the real branch")
    if driver.source in ("auto", "cuda"):
        offered_by["cuda"] = facts(archive.offered(names, remote))
        only = transitional(offered_by.get("distribution"))
        reason = "the inventory says so" if driver.source == "cuda" else "the distribution's archive does not have it"
        reason = f"the distribution's {only} is only transitional" if only else reason
        if choice := built_here(offered_by["cuda"], driver, wanted, theirs):
            return _Found(choice, "cuda", reason, remote)
    raise nowhere(driver, offered_by)


def _signed(
    facts: Facts,
    driver: Driver,
    os_release: OsRelease,
    wanted: tuple[tuple[str, tuple[str, ...]], ...],
    secured: bool,
) -> _Found:
    """A driver whose module Ubuntu has built and signed, for the kernel that boots next or one to move to. Raises HostError."""
    if os_release.id != "ubuntu":
        found = f"{os_release.pretty_name} has no kernel modules of NVIDIA's that are built and signed"
        raise HostError("driver.modules", found, "modules: dkms, or auto")
    kernel = facts(grub.grub).entry.release
    flavours = flavours_of(kernel, os_release)
    names = tuple(name for _, family in wanted for name in family)
    local = archive.Repository(f"file:{driver.source}", "", "") if driver.source.startswith("/") else None
    offered = facts(archive.offered((*names, *module_names(wanted, kernel, flavours)), local))
    choice = built_already(offered, driver, wanted, kernel, flavours)
    if choice is None:
        raise without_module(driver, kernel, offered, secured)
    reason = f"its module is built and signed for {choice.kernel}"
    if choice.kernel != kernel:
        parts = tuple(f"linux-{part}-{choice.kernel}" for part in ("image", "modules-extra", "headers"))
        there = facts(archive.offered(parts, local)).versions
        moved = {name: there[name][0].version for name in parts if there.get(name)}
        choice = Choice({**choice.packages, **moved}, choice.version, choice.kernel)
        reason += f", and there is none for {kernel}: the kernel moves with it"
    reason += "; Secure Boot takes no other" if secured else "; the inventory says so"
    return _Found(choice, driver.source if local else "distribution", reason, local)


def _complete(facts: Facts, found: _Found, driver: Driver, os_release: OsRelease) -> Resolution:
    """All packages that come with a choice, as apt itself would install them. Raises HostError when they do not fit together."""
    packages, version = found.choice.packages, found.choice.version
    ask = tuple(f"{name}={each}" for name, each in packages.items())
    own = {name for name in packages if name.startswith("linux-")}
    own |= {f"linux-signatures-nvidia-{found.choice.kernel}"} if own else set()
    own |= {name.replace("linux-modules", "linux-objects") for name in own if kernel_of(name)}
    also: dict[str, list[str]] = {}
    for name, each in packages.items():
        if kernel_of(name):
            also[each] = sorted(one for one in own if "nvidia" in one)
    other = not_from(found.source, os_release)
    text = _preferences(packages, version, driver, os_release, also, other)
    plan = facts(archive.simulated(ask, text, found.remote))
    if plan.error:
        raise HostError(
            "driver",
            f"apt cannot install {' '.join(ask)}: {plan.error}",
            "a set of packages that fit together",
            "sudo apt-get -f install",
        )
    strangers = [
        move
        for move in plan.moves
        if "nvidia" in move.name and move.name not in BESIDE and branch_of(move.version) not in ("", driver.branch)
    ]
    if strangers:
        raise HostError(
            "driver",
            f"{ask[0]} would bring {strangers[0].name} {strangers[0].version}",
            f"branch {driver.branch} and nothing else",
            "source: cuda",
        )
    closure = {
        move.name: move.version
        for move in plan.moves
        if move.version and (upstream(move.version) == version or move.name in (*own, *BESIDE))
    }
    closure.update(packages)
    return Resolution(version, found.source, found.reason, closure, found.choice.kernel, other)


def _preferences(
    packages: dict[str, str],
    version: str,
    driver: Driver,
    os_release: OsRelease,
    also: dict[str, list[str]],
    other: str,
) -> str:
    """The pins under which apt is asked: the release of the choice, of everything that is called like it, and no other."""
    if os_release.id == "debian":
        return pin_text(["*nvidia*", "cuda-drivers*", "libcuda1"], f"{version}*")
    branched = any(f"-{driver.branch}" in name for name in packages)
    names = [f"*nvidia*-{driver.branch}*"] if branched else UNBRANCHED.split()
    return pin_text(names, f"{version}*", block(os_release), also, other)
