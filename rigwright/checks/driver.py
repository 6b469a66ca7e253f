"""The driver: loaded, of one version, and protected from upgrades."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec.structs import replace

from rigwright import catalogue
from rigwright.catalogue.compatibility import card_of, common_branches
from rigwright.checks import Finding, Verdict, check, of_symptom
from rigwright.core.desired import Driver
from rigwright.driver.apt_pin import NVIDIAS, PINNING, pin_path
from rigwright.driver.load_failure import build_failure, load_failure
from rigwright.driver.package_sets import KERNELS, holding, upstream
from rigwright.driver.resolve import PIN, moves_it, pinned
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
    moves = facts(dpkg.next_upgrade) if proof.now != proof.proved else ()
    free = free or [move.name for move in moves if moves_it(move, resolution)]
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
