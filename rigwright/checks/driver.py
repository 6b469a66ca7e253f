"""The driver: loaded, of one version, and protected from upgrades."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec.structs import replace

from rigwright import catalogue
from rigwright.catalogue.compatibility import card_of, common_branches
from rigwright.checks import Finding, Verdict, check, of_symptom
from rigwright.core.desired import Driver
from rigwright.core.shortening import first_of
from rigwright.driver.apt_pin import NVIDIAS, PINNING, pin_path, read_pins
from rigwright.driver.kernel_ceiling import (
    CEILING,
    UPGRADE_WITHOUT,
    boots_older,
    ceiling_pin,
    exceeds,
    forbidden_moves,
    newest_buildable,
    too_new,
)
from rigwright.driver.load_failure import build_failure, load_failure
from rigwright.driver.module_build import build_problem
from rigwright.driver.package_sets import KERNELS, holding, upstream
from rigwright.driver.resolve import PIN, pinned
from rigwright.facts import Facts, driver as state, files, grub, kernel as kernels, pci, system
from rigwright.facts.apt import dpkg, history as apt_history


@check(follows=("run.",))
def loaded(facts: Facts, *, driver: Driver | None = None) -> Iterator[Finding]:
    """The configured driver branch is loaded and drives the GPUs. If not, the finding has the reason: not installed,
    not built for this kernel, refused by Secure Boot, or another driver (nouveau, nova_core, vfio-pci) has the GPUs."""
    release, version, bus = facts.all(system.running_kernel, state.loaded_version, pci.gpus)
    others = sorted({entry.driver for entry in bus if entry.driver not in ("", "nvidia")})
    if version and not others:
        seen = f"{version} has {len(bus)} GPUs"
        if driver and not version.startswith(f"{driver.branch}."):
            cause = "the loaded branch is not the one that the inventory names"
            branch = f"driver {driver.branch}"
            yield Finding("driver", "fail", seen, branch, cause, "invoke provision", "inventory")
        else:
            yield Finding("driver", "pass", seen)
        return
    built, packages = facts.all(kernels.module_version(release, "nvidia"), dpkg.matching(*_PACKAGES))
    installed = built or any(entry.installed for entry in packages.values())
    held = f"{', '.join(others)} has the GPUs" if others else "no driver has the GPUs"
    if not installed:
        verdict: Verdict = "fail" if driver else "info"
        branch, cause = (f"driver {driver.branch}", "this host was never provisioned") if driver else ("", "")
        seen = f"none is installed; {held}"
        yield Finding("driver", verdict, seen, branch, cause, "invoke provision", "inventory")
    elif version or (others and built):
        key = "module.handed_on" if "vfio-pci" in others else "module.other_driver_bound"
        key = "module.nova_bound" if any(name.startswith("nova") for name in others) else key
        yield of_symptom(key, "driver", f"{held}, {built} is installed", "nvidia", "host")
    elif not built:
        yield _unbuilt(facts, release, f"no module for {release}, the kernel that runs; {held}")
    else:
        failure, secured = load_failure(facts, release, built), facts(state.secure_boot)
        known = "secureboot.mok" if secured and failure.symptom == "module.not_loaded" else failure.symptom
        seen = f"{built} is installed and not loaded{'; Secure Boot is on' if known == 'secureboot.mok' else ''}"
        finding = of_symptom(known, "driver", f"{seen}: {failure.said}" if failure.said else seen, "loaded", "host")
        yield replace(finding, cause=failure.cause or finding.cause, fix=failure.fix or finding.fix)


_PACKAGES = ("nvidia-dkms-*", "nvidia-kernel-*", "linux-modules-nvidia-*", "nvidia-tesla-*kernel*")


def _unbuilt(facts: Facts, release: str, seen: str) -> Finding:
    """The finding for a kernel without the driver's module, with the cause from the build log."""
    failure = build_failure(facts, release)
    said = f"; {failure.said}" if failure.said else ""
    return of_symptom(failure.symptom, "driver", f"{seen}{said}", "a module", "host")


@check(follows=("run.",))
def versions_equal(facts: Facts) -> Iterator[Finding]:
    """The loaded module, the module for the next boot, and the library have the same version. If not, the finding has
    the package that was upgraded, and the time."""
    boot, running, library = facts.all(grub.grub, state.loaded_version, state.library_version)
    built = facts(kernels.module_version(boot.entry.release, "nvidia"))
    seen = f"loaded {running or 'none'}, module {built or 'none'}, library {library or 'none'}"
    wanted = "one version everywhere"
    if running and running == built == library:
        yield Finding("driver", "pass", seen, wanted, source="host")
    elif not (running or built or library):
        yield Finding("driver", "info", "no driver is installed", fix="invoke provision")
    elif not built:
        yield _unbuilt(facts, boot.entry.release, f"{seen}: the kernel that boots next would have none")
    elif running and built == library:
        mismatch = of_symptom("driver.mismatch", "driver", seen, wanted, "host")
        yield replace(mismatch, cause=_moves(facts, library) or mismatch.cause)
    else:
        cause = "the driver is not loaded"
        if running:
            moves = _moves(facts, library)
            cause = f"module and library are of different releases; a reboot does not fix that{moves and f'; {moves}'}"
        yield Finding("driver", "fail", seen, wanted, cause, "invoke provision", "host")


def _moves(facts: Facts, version: str) -> str:
    """The last package that was upgraded to a version, by apt's history; "" if there is none."""
    moves = [move for move in facts(apt_history.moved) if upstream(move.version) == version]
    return f"packages were upgraded and the loaded module was not: {moves[-1]}" if moves else ""


@check()
def patched(facts: Facts, *, driver: Driver | None = None) -> Iterator[Finding]:
    """The loaded driver and the pinned one have the fixes of NVIDIA's security bulletins, and their branch still gets
    fixes. If not, a warning has the bulletin, and the release or the branch to move to."""
    loaded, bus, _ = facts.all(state.loaded_version, pci.gpus, files.file(pin_path(PIN)))
    pin = pinned(facts, driver) if driver else None
    supported = common_branches([card for entry in bus if (card := card_of(entry.device_id))])
    versions = [
        each for each in dict.fromkeys((loaded, pin.version if pin else "")) if re.fullmatch(r"\d+(\.\d+)+", each)
    ]
    if not versions:
        yield Finding("security", "info", "no driver is loaded", fix="invoke provision")
    for version in versions:
        seen = f"driver {version}{'' if version == loaded else ', pinned and not loaded'}"
        if lacking := catalogue.shortfall(version, supported):
            yield Finding("security", "warn", seen, lacking.expected, lacking.text, lacking.fix, "catalogue")
        else:
            yield Finding("security", "pass", seen, source="catalogue")


@check(follows=("run.",))
def pin_in_force(facts: Facts, *, driver: Driver) -> Iterator[Finding]:
    """The pin exists, all its packages are held, and apt's simulation shows that an upgrade does not change them.

    If the driver's module is built for one kernel only, that kernel is held too, and a finding has its date. A pin of
    NVIDIA (package nvidia-driver-pinning-*, file nvidia-driver-pin) is a warning.
    """
    there, theirs, _ = facts.all(dpkg.matching(PINNING), files.file(NVIDIAS), files.file(pin_path(PIN)))
    if there or theirs is not None:
        seen = ", ".join(f"{name} {package.version}" for name, package in there.items()) or NVIDIAS
        seen, cause = (
            f"a pin of NVIDIA's own: {seen}",
            f"apt reads {NVIDIAS} before rigwright's pin, and lets in the versions in it",
        )
        yield Finding("pin", "warn", seen, "rigwright's pin only", cause, "invoke provision")
    resolution = pinned(facts, driver)
    if resolution is None:
        wanted = f"driver {driver.branch} pinned"
        yield Finding("pin", "fail", "no pin", wanted, fix="invoke provision", source="inventory")
        return
    now, proof = facts.all(dpkg.packages(*resolution.closure), dpkg.pin_proof)
    free = sorted(name for name in resolution.closure if name not in now or not now[name].held)
    moves = [] if proof.now == proof.proved else forbidden_moves(facts, driver, resolution)
    free = free or [move.name for move in moves]
    wanted, cause = "held, and not changed by upgrades", "upgrades can replace them"
    seen = f"{len(resolution.closure)} packages at {resolution.version}, held"
    if free:
        seen = f"free to move: {', '.join(free[:4])}"
    yield Finding("pin", "fail" if free else "pass", seen, wanted, cause, "invoke provision", "inventory")
    if kernel := resolution.kernel:
        there, day = facts.all(dpkg.matching(*KERNELS), kernels.built(kernel))
        free = [name for name in holding(there, kernel) if not there[name].held]
        seen = f"{kernel} of {day}" if day else f"{kernel}, not there"
        seen += f", free to move: {', '.join(free[:4])}" if free else ", held"
        wanted, cause = "held, as the driver's module is built for it", "a held kernel gets no security updates"
        fix = "set a newer driver version in the inventory: driver and kernel are upgraded together"
        failed = free or not day
        yield Finding(
            "kernel", "fail" if failed else "warn", seen, wanted, cause, "invoke provision" if failed else fix
        )


@check(follows=("run.",))
def kernel_ceiling(facts: Facts, *, driver: Driver) -> Iterator[Finding]:
    """apt installs no kernel newer than the newest for which the driver's module is known to build.

    Findings have a ceiling that could rise, the kernels that are withheld with a driver that builds for them, and a too
    new kernel that is installed, with the boot entry of an older one. No finding without a pin, for a prebuilt module,
    and with `kernel_ceiling: false` of the driver.
    """
    needed = (kernels.newest, UPGRADE_WITHOUT, pci.gpus, system.today, system.running_kernel)
    now, _, newest, moves, bus, today, _ = facts.all(*(files.file(pin_path(name)) for name in (CEILING, PIN)), *needed)
    resolution = pinned(facts, driver)
    if resolution is None or resolution.kernel or not driver.kernel_ceiling:
        return
    version, ceiling = resolution.version, newest_buildable(facts, driver, resolution)
    if not ceiling:
        yield Finding("kernel ceiling", "info", f"the kernels for which {version} builds are not known")
        return
    wanted = f"kernels up to {ceiling}, for which {version} is known to build"
    pins = [pin for pin in read_pins(now.text if now else "") if pin.packages == KERNELS]
    withheld, there = too_new(moves, ceiling), ceiling_pin(ceiling) in pins
    if not there:
        lower = any(re.search(pin.pin.removeprefix("version ").strip("/"), f"{ceiling}.") for pin in pins)
        seen = "the ceiling is lower, and could rise" if lower else "upgrades can bring kernels without a module"
        verdict: Verdict = "warn" if lower else "fail"
        yield Finding("kernel ceiling", verdict, seen, wanted, fix="invoke provision", source="catalogue")
    elif withheld:
        named = first_of([f"{move.name} {move.version}" for move in withheld], 3)
        cards = [card for entry in bus if (card := card_of(entry.device_id))]
        problem = build_problem(driver, version, withheld[0].version, cards, today)
        cause = f"the driver is known to build for kernels up to {ceiling}; their updates are not withheld"
        verdict, fix = ("warn", problem.error.fix) if problem and problem.builder else ("info", "")
        expected = problem.error.expected if problem else wanted
        yield Finding("kernel ceiling", verdict, f"withheld: {named}", expected, cause, fix, "catalogue")
    else:
        yield Finding("kernel ceiling", "pass", wanted, source="catalogue")
    if exceeds(newest, ceiling):
        seen, cause = f"{newest} is installed", "it is newer, so its module may not build"
        fix = boots_older(facts, version, newest) or "no boot entry has an older kernel: invoke provision"
        yield Finding("kernel", "warn", seen, wanted, cause, fix, "catalogue")


@check(follows=("run.",))
def unattended_blocked(facts: Facts, *, driver: Driver) -> Iterator[Finding]:
    """apt's configuration excludes every package of the pin from unattended-upgrades. No finding without a pin."""
    resolution = pinned(facts, driver)
    if resolution is None:
        return
    patterns = facts(dpkg.unattended_blocked)
    closure = resolution.closure
    free = sorted(name for name in closure if not any(_matches_beginning(pattern, name) for pattern in patterns))
    seen = f"may move {', '.join(free[:4])}" if free else f"leaves all {len(closure)} packages alone"
    cause = "another file of /etc/apt/apt.conf.d may clear the list"
    fix = "invoke provision; apt-config dump Unattended-Upgrade::Package-Blacklist"
    yield Finding("unattended-upgrades", "fail" if free else "pass", seen, "does not change the driver", cause, fix)


def _matches_beginning(pattern: str, name: str) -> bool:
    try:
        return bool(re.match(pattern, name))
    except re.error:  # unattended-upgrades ignores it too
        return False
