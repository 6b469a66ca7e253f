"""The driver: one version everywhere, held, and able to come back after the next boot."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rigwright import catalogue
from rigwright.checks import Finding, Verdict, of_symptom
from rigwright.facts import Facts, driver, grub, history, log, pci
from rigwright.facts import apt as dpkg
from rigwright.facts import kernel as kernels
from rigwright.facts import os as system
from rigwright.families import KERNELS, holding, upstream
from rigwright.resolution import moves_it, pinned
from rigwright.wanted import Driver


def loaded(facts: Facts, *, wanted: Driver | None = None) -> Iterator[Finding]:
    """The driver is loaded, of the branch that is wanted, and has the GPUs; where it is not, why: none is installed, none is
    built for this kernel, Secure Boot refused it, another driver (nouveau, nova_core, vfio-pci) was first."""
    release, version, bus = facts.all(system.running_kernel, driver.loaded_version, pci.gpus)
    others = sorted({one.driver for one in bus if one.driver not in ("", "nvidia")})
    if version and not others:
        seen = f"{version} has {len(bus)} GPUs"
        if wanted and not version.startswith(f"{wanted.branch}."):
            cause = "another branch is loaded than the one that was chosen for this host"
            branch = f"driver {wanted.branch}"
            yield Finding("driver.loaded", "driver", "fail", seen, branch, cause, "invoke provision", "inventory")
        else:
            yield Finding("driver.loaded", "driver", "pass", seen)
        return
    built, packages = facts.all(kernels.module_version(release, "nvidia"), dpkg.matching(*_PACKAGES))
    installed = built or any(one.installed for one in packages.values())
    held = f"{', '.join(others)} has the GPUs" if others else "no driver has the GPUs"
    if not installed:
        verdict: Verdict = "fail" if wanted else "info"
        branch, cause = (f"driver {wanted.branch}", "this host was never provisioned") if wanted else ("", "")
        seen = f"none is installed; {held}"
        yield Finding("driver.loaded", "driver", verdict, seen, branch, cause, "invoke provision", "inventory")
    elif version or (others and built):
        yield of_symptom(_holder(others), "driver.loaded", "driver", f"{held}, {built} is installed", "nvidia", "host")
    elif not built:
        yield _unbuilt(facts, "driver.loaded", release, f"no module for {release}, the kernel that runs; {held}")
    elif facts(driver.secure_boot):
        yield of_symptom("secureboot.mok", "driver.loaded", "driver", f"Secure Boot is on; {held}", "loaded", "host")
    else:
        said: tuple[str, ...] = facts(log.kernel)
        known = _in_log(said, ("driver", "boot")) or "module.not_loaded"
        yield of_symptom(known, "driver.loaded", "driver", f"{built} is installed and not loaded", "loaded", "host")


_PACKAGES = ("nvidia-dkms-*", "nvidia-kernel-*", "linux-modules-nvidia-*", "nvidia-tesla-*kernel*")


def _holder(others: Sequence[str]) -> str:
    """The symptom of GPUs that another driver has."""
    if any(one.startswith("nova") for one in others):
        return "module.nova_bound"
    return "module.handed_on" if "vfio-pci" in others else "module.other_driver_bound"


def _in_log(lines: Sequence[str], kinds: Sequence[str]) -> str:
    """The first symptom of such a kind that stands in a log, "" when there is none."""
    return next((one.key for one in catalogue.symptoms_in("\n".join(lines)) if one.kind in kinds), "")


def _unbuilt(facts: Facts, check: str, release: str, seen: str) -> Finding:
    """A kernel has no module: the log of the build may say why."""
    text = facts(kernels.build_log(release))
    known = _in_log(text.splitlines(), ("driver", "boot")) or "dkms.build_failed"
    last = next((line.strip()[:100] for line in reversed(text.splitlines()) if "rror" in line), "")
    return of_symptom(known, check, "driver", f"{seen}{f'; {last}' if last else ''}", "a module", "host")


def versions_equal(facts: Facts) -> Iterator[Finding]:
    """Loaded, built for the next boot, and library are one version: four numbers from four places, less the fabric manager's.

    Where they are not, which package moved and when. Nothing is said where no driver is at all."""
    boot, running, library = facts.all(grub.grub, driver.loaded_version, driver.library_version)
    built = facts(kernels.module_version(boot.entry.release, "nvidia"))
    seen = f"loaded {running or 'none'}, module {built or 'none'}, library {library or 'none'}"
    name, wanted = "driver.versions_equal", "one version everywhere"
    if running and running == built == library:
        yield Finding(name, "driver", "pass", seen, wanted, source="host")
    elif not (running or built or library):
        yield Finding(name, "driver", "info", "none, nowhere", fix="invoke provision")
    elif not built:
        yield _unbuilt(facts, name, boot.entry.release, f"{seen}: the kernel that boots next would have none")
    elif running and built == library:
        yield of_symptom("driver.mismatch", name, "driver", _with_moves(facts, seen, library), wanted, "host")
    elif running:
        cause = "module and library are of different releases, which no reboot mends"
        yield Finding(
            name, "driver", "fail", _with_moves(facts, seen, library), wanted, cause, "invoke provision", "host"
        )
    else:
        yield Finding(name, "driver", "fail", seen, wanted, "the driver is not loaded", "invoke provision", "host")


def _with_moves(facts: Facts, seen: str, version: str) -> str:
    """Which package came to a version last, by apt's own history."""
    moves = [move for move in facts(history.moved) if upstream(move.version) == version]
    return f"{seen}; {moves[-1]}" if moves else seen


def pin_in_force(facts: Facts, *, driver: Driver) -> Iterator[Finding]:
    """The pin stands, every package of it is held, and apt has proved that an upgrade leaves them alone.

    Where the driver's module is built for one kernel only, that kernel is held too, and its day is told.
    """
    found = pinned(facts, driver)
    if found is None:
        yield Finding(
            "driver.pin_in_force",
            "pin",
            "fail",
            "no pin",
            f"driver {driver.branch} pinned",
            fix="invoke provision",
            source="inventory",
        )
        return
    now, proof = facts.all(dpkg.packages(*found.closure), dpkg.pin_proof)
    free = sorted(name for name in found.closure if name not in now or not now[name].held)
    moving: list[str] = []
    if proof.now != proof.proved:
        moving = [move.name for move in facts(dpkg.next_upgrade) if moves_it(move, found)]
    bad = free or moving
    verdict: Verdict = "fail" if bad else "pass"
    seen = (
        f"{len(found.closure)} packages at {found.version}, held" if not bad else f"free to move: {', '.join(bad[:4])}"
    )
    yield Finding(
        "driver.pin_in_force",
        "pin",
        verdict,
        seen,
        "held, and left alone by upgrades",
        "upgrades are free to take them" if bad else "",
        "invoke provision" if bad else "",
        "inventory",
    )
    if found.kernel:
        yield _kernel(facts, found.kernel)


def _kernel(facts: Facts, kernel: str) -> Finding:
    there, day = facts.all(dpkg.matching(*KERNELS), kernels.built(kernel))
    names = holding(there, kernel)
    free = [name for name in names if not there[name].held]
    of_day = f"{kernel} of {day}" if day else f"{kernel}, not there"
    kept = f"free to move: {', '.join(free[:4])}" if free else "held"
    return Finding(
        "driver.pin_in_force",
        "kernel",
        "fail" if free or not day else "warn",
        f"{of_day}, {kept}",
        "held, as the driver's module is built for it",
        "a held kernel gets no fixes",
        "invoke provision" if free or not day else "name a newer driver version: driver and kernel move together",
    )


def unattended_blocked(facts: Facts, *, driver: Driver) -> Iterator[Finding]:
    """unattended-upgrades leaves every package of the pin alone, by what apt's whole configuration comes to.

    Without a pin there is nothing to leave alone.
    """
    found = pinned(facts, driver)
    if found is None:
        return
    patterns = facts(dpkg.unattended_blocked)
    free = sorted(name for name in found.closure if not any(_begins(pattern, name) for pattern in patterns))
    yield Finding(
        "driver.unattended_blocked",
        "unattended-upgrades",
        "fail" if free else "pass",
        f"may move {', '.join(free[:4])}" if free else f"leaves all {len(found.closure)} packages alone",
        "leaves the driver alone",
        "another file of /etc/apt/apt.conf.d may clear the list" if free else "",
        "invoke provision; apt-config dump Unattended-Upgrade::Package-Blacklist" if free else "",
    )


def _begins(pattern: str, name: str) -> bool:
    try:
        return bool(re.match(pattern, name))
    except re.error:  # unattended-upgrades takes such a one for nothing, too
        return False
