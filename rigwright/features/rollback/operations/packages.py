"""The packages of a host go back to the versions, holds and marks that they had before a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from rigwright.core.change import Change, Note
from rigwright.core.command import Command, command
from rigwright.core.errors import HostError
from rigwright.core.numbers import count
from rigwright.driver.package_sets import branch_of
from rigwright.facts import Fact, Facts, Unavailable, run_record, system
from rigwright.facts.apt import dpkg
from rigwright.facts.run_record import MovedPackage, Run
from rigwright.features.rollback import facts as rollback_source
from rigwright.features.rollback.operations.files import RULES
from rigwright.features.rollback.target import differing, require_room, target, toward
from rigwright.operations import apt, operation

_MOST_NAMED = 6
_BESIDE_MIB = 64
"""What stays free beside the packages: for dpkg's own files, the record of the run and the logs (assumed)."""
_WITHOUT = "invoke rollback --tags files,boot,units,limits goes back with all but the packages"


@operation()
def packages_possible(facts: Facts, *, to: str = "") -> Iterator[Note]:
    """Every package that a run changed can go back: its version is in a source or in a package file on the host, and
    nothing else needs what is removed.

    Tells how many packages others changed: they stay. Raises HostError with the versions that are nowhere, with the
    packages that would be removed too, when there is no room to fetch and unpack, and when the kernel that runs would
    be removed; Unavailable while dpkg is in the middle of something.
    """
    run, _ = target(facts, to)
    packages = facts(run_record.packages(run.run, run.number))
    if packages.others:
        yield Note(f"others than rigwright changed {count(packages.others, 'package')} since, which no step takes back")
    install, remove = _wanted(packages.moved)
    if not install and not remove:
        return
    if facts(dpkg.dpkg_audit):
        raise Unavailable("known when dpkg is whole")
    kernel, _ = facts.all(system.running_kernel, system.free_mib)
    images = (f"linux-image-{kernel}", f"linux-image-unsigned-{kernel}")
    if running := [each.name for each in remove if each.name in images]:
        problem = f"{running[0]} was installed since, and that kernel runs"
        before = run.about.get("kernel", "the kernel of before")
        fix = f"boot {before} (grub-reboot, then reboot), then the same command; or {_WITHOUT}"
        raise HostError("rollback", problem, "another kernel to run while that one is removed", fix)
    where = facts(_sources(facts, run, install, remove))
    if missing := [word for word, source in where.words.items() if not source]:
        more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
        why = f" ({where.error})" if where.error else ""
        problem = f"nothing offers {', '.join(missing[:_MOST_NAMED])}{more} any more{why}"
        expected = f"a source that has these versions, or their .deb files in {' or '.join(rollback_source.FOLDERS)}"
        raise HostError("rollback", problem, expected, f"put the files there; or {_WITHOUT}")
    if where.error:
        problem = f"apt cannot make the packages as before: {where.error}"
        fix = f"sudo apt-get check, on the host, names packages that are broken already; or {_WITHOUT}"
        raise HostError("rollback", problem, "packages that fit together", fix)
    if install:
        require_room(facts, where.room_mib + _BESIDE_MIB, "/var", "/usr")
    names = {part for each in (*install, *remove) for part in (each.name, each.name.split(":")[0])}
    if lost := sorted({move.name for move in where.moves if not move.version} - names):
        verb = "needs" if len(lost) == 1 else "need"
        problem = f"{', '.join(lost[:_MOST_NAMED])} {verb} packages that were not there before"
        fix = f"sudo apt-get remove {' '.join(lost[:_MOST_NAMED])}; or {_WITHOUT}"
        raise HostError("rollback", problem, "packages that nothing else needs", fix)


def _wanted(moved: Sequence[MovedPackage]) -> tuple[list[MovedPackage], list[MovedPackage]]:
    """The packages to install in another version, and those to remove."""
    install = [each for each in moved if each.was and each.was != each.now]
    return install, [each for each in moved if not each.was and each.now]


def _sources(
    facts: Facts, run: Run, install: Sequence[MovedPackage], remove: Sequence[MovedPackage]
) -> Fact[rollback_source.Sources]:
    files = [file for file in differing(facts, run) if file.path.startswith(RULES)]
    rules = [(file.kept_in if file.was.kind != "absent" else "", file.path) for file in files]
    words = [*(f"{each.name}={each.was}" for each in install), *(f"{each.name}-" for each in remove)]
    return rollback_source.sources(rules, words)


@operation()
def dpkg_whole(facts: Facts, *, to: str = "") -> Iterator[Change]:
    """As apt.clean: dpkg ends what it has begun, also the work of a rollback that was interrupted."""
    run, _ = target(facts, to)
    yield from toward(run, apt.clean(facts))


@operation()
def holds_freed(facts: Facts, *, to: str = "") -> Iterator[Change]:
    """No package is held that a run held and that was not held before."""
    run, _ = target(facts, to)
    names = [each.name for each in facts(run_record.packages(run.run, run.number)).moved if each.held == (False, True)]
    if names:
        free = (command("apt-mark", "unhold", *names),)
        yield from toward(run, [Change("change", "apt-mark unhold", f"{len(names)} held", ", ".join(names), free)])


@operation(affects_p2p=True, affects_gpus=True)
def package_versions(facts: Facts, *, to: str = "") -> Iterator[Change]:
    """The packages that runs installed, changed or removed have the versions of before, or are gone with their
    configuration.

    One work of apt does it, after all packages are fetched, in a job that outlives the controller. DKMS and
    initramfs-tools make the module and the initramfs, as with every installation. A package file of the host is taken
    where no source has the version.
    """
    run, _ = target(facts, to)
    moved = facts(run_record.packages(run.run, run.number)).moved
    install, remove = _wanted(moved)
    leftover = [each.name for each in moved if not each.was and not each.was_left and (each.now or each.now_left)]
    changes = [Change("change" if each.now else "add", each.name, each.now, each.was) for each in install]
    changes += [Change("remove", each.name, each.now, "") for each in remove]
    with_files = [each.name for each in moved if each.now_left and not (each.was or each.was_left)]
    changes += [Change("remove", name, "its configuration", "") for name in with_files]
    if not changes:
        return
    commands: list[Command] = []
    if install:
        where = facts(_sources(facts, run, install, remove))
        words = [where.words.get(word) or word for word in (f"{each.name}={each.was}" for each in install)]
        commands.append(apt.install([*words, *(f"{each.name}-" for each in remove)]))
        if automatic := [each.name for each in install if each.automatic[0]]:
            commands.append(command("apt-mark", "auto", *automatic))
    elif remove:
        commands.append(apt.remove([each.name for each in remove]))
    commands += [apt.purge_left(leftover)] if leftover else []
    of_driver = any("nvidia" in each.subject or branch_of(each.before) or branch_of(each.after) for each in changes)
    lead = "reboot" if of_driver else ""
    changes[-1] = replace(changes[-1], commands=tuple(commands), disruptive=of_driver, leads_to=lead)
    yield from toward(run, changes)


@operation()
def package_marks(facts: Facts, *, to: str = "") -> Iterator[Change]:
    """The packages of runs are held that were held before, and apt counts those as automatically installed that it did
    before."""
    run, _ = target(facts, to)
    moved = facts(run_record.packages(run.run, run.number)).moved
    works = (
        ("hold", [each.name for each in moved if each.held == (True, False)]),
        ("auto", [each.name for each in moved if each.was and each.now and each.automatic == (True, False)]),
        ("manual", [each.name for each in moved if each.was and each.now and each.automatic == (False, True)]),
    )
    changes = []
    for verb, names in works:
        if names:
            mark = (command("apt-mark", verb, *names),)
            changes.append(Change("change", f"apt-mark {verb}", f"{len(names)} not", ", ".join(names), mark))
    yield from toward(run, changes)
