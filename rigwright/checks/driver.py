"""The driver: one version everywhere, held, and able to come back after the next boot."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rigwright.checks import Finding, Verdict
from rigwright.facts import Facts, Unavailable, driver, grub, history
from rigwright.facts import apt as dpkg
from rigwright.facts import kernel as kernels
from rigwright.families import KERNELS, holding, upstream
from rigwright.resolution import moves_it, pinned
from rigwright.wanted import Driver


def versions_equal(facts: Facts) -> Iterator[Finding]:
    """Loaded, built for the next boot, and library are one version: four numbers from four places, less the fabric manager's."""
    boot, loaded, library = facts.all(grub.grub, driver.loaded_version, driver.library_version)
    built = facts(kernels.module_version(boot.entry.release, "nvidia"))
    seen = f"loaded {loaded or 'none'}, module {built or 'none'}, library {library or 'none'}"
    same = loaded and loaded == built == library
    fix = "" if same else "invoke provision"
    cause = "" if same else "no driver is loaded"
    if not same and loaded:
        moves = [move for move in facts(history.moved) if upstream(move.version) in (library, built)]
        cause = f"packages moved and the running module did not{f': {moves[-1]}' if moves else ''}"
    yield Finding(
        "driver.versions_equal", "driver", "pass" if same else "fail", seen, "one version everywhere", cause, fix
    )


def pin_in_force(facts: Facts, *, driver: Driver) -> Iterator[Finding]:
    """The pin stands, every package of it is held, and apt has proved that an upgrade leaves them alone.

    Where the driver's module is built for one kernel only, that kernel is held too, and its day is told.
    """
    found = pinned(facts, driver)
    if found is None:
        yield Finding(
            "driver.pin_in_force", "pin", "fail", "no pin", f"driver {driver.branch} pinned", "", "invoke provision"
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
        "",
        "invoke provision" if bad else "",
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

    Unknown while there is no pin.
    """
    found = pinned(facts, driver)
    if found is None:
        raise Unavailable("known when the driver is pinned")
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
