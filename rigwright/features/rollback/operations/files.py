"""The host goes back to what it was before a run: units, files, GRUB, the driver's module, and the reboot that puts
them in force."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from rigwright.core.change import Change, Note
from rigwright.core.command import Command, command, script
from rigwright.core.command_failures import missing_program
from rigwright.core.control_characters import one_line
from rigwright.core.errors import HostError
from rigwright.core.host_folders import RUNS
from rigwright.core.numbers import count
from rigwright.facts import (
    Facts,
    Unavailable,
    display,
    driver as state,
    grub,
    kernel as kernels,
    past_runs,
    run_record,
    system,
)
from rigwright.facts.boot import reboot_record
from rigwright.facts.run_record import LISTS, Run, WrittenFile
from rigwright.facts.systemd import GUARD_UNIT, LIMITS_UNIT
from rigwright.features.rollback.target import change_of, differing, obstacle, require_room, target, toward, unmark
from rigwright.operations import apt, operation
from rigwright.operations.grub import update_grub
from rigwright.operations.reboot import reboot_change, sessions_lost

MOST_NAMED = 20
"""This number of files that stay is named; the others are counted."""
RULES = ("/etc/apt/", "/usr/share/keyrings/")
"""Where the files are that decide what apt installs. They go back before the packages."""


class _Work(Struct, frozen=True):
    """What must be done after files of a folder changed. `command` gets the release of the kernel that boots next.
    `restarts`: units, of which there are none after a file was taken away."""

    folder: str
    mark: str
    subject: str
    command: Callable[[str], Command]
    reboot: bool = False
    program: str = ""
    restarts: bool = False

    def follows(self, file: WrittenFile) -> bool:
        """Whether it must be done after this file went back."""
        return file.path.startswith(self.folder) and not (self.restarts and file.was.kind == "absent")


_RESTART = """
for unit; do
  ! systemctl is-active -q -- "$unit" || systemctl restart -- "$unit" ||
    echo "$unit did not start with its files of before"
done
"""
"""A unit that does not start, as one whose driver comes with the reboot that follows, is started again at the end."""


def _restart(*units: str) -> Callable[[str], Command]:
    return lambda _: script(_RESTART, *units, timeout_s=450 * len(units))


_WORKS = (
    _Work("/etc/systemd/system/", "units", "systemctl daemon-reload", lambda _: command("systemctl", "daemon-reload")),
    _Work("/etc/systemd/system.conf.d/", "limits of services", "systemctl daemon-reload",
          lambda _: command("systemctl", "daemon-reload")),
    _Work("/etc/ld.so.conf.d/", "linker", "ldconfig", lambda _: command("ldconfig")),
    _Work("/usr/local/lib/rigwright/", "programs", "units of rigwright", _restart(LIMITS_UNIT, GUARD_UNIT),
          restarts=True),
    _Work("/etc/rigwright/limits.json", "limits", LIMITS_UNIT, _restart(LIMITS_UNIT), restarts=True),
    _Work("/etc/rigwright/guard.json", "guard", GUARD_UNIT, _restart(GUARD_UNIT), restarts=True),
    _Work(
        "/etc/modprobe.d/", "initramfs", "initramfs of {}",
        lambda release: command("update-initramfs", "-u", "-k", release, timeout_s=900, long=True),
        reboot=True, program="update-initramfs",
    ),
    _Work(
        "/etc/default/grub", "grub", "update-grub", lambda _: update_grub(),
        reboot=True, program="update-grub",
    ),
)  # fmt: skip
_LISTS_READ = "apt-lists"
_INITRAMFS_GROWS_MIB = 16
"""What the new initramfs, which is written beside the old one, may be larger (assumed)."""


@operation()
def possible(facts: Facts, *, to: str = "") -> Iterator[Note]:
    """The host remembers the run `to` (without it the last one), in a record that is whole, and every run since.

    Tells which runs are undone, which files stay because others changed them, and how many packages others changed.
    Raises HostError for a record that is missing, damaged, or of another installation.
    """
    run, since = target(facts, to)
    written, *_ = facts.all(run_record.written(run.number), run_record.pending)
    last = facts(run_record.runs)[-1]
    text = f"back to before run {run.run} of {past_runs.at(run)}"
    if last.done and last.to == run.run:
        text += f", as after the rollback {past_runs.beginning(since, last).run} of {past_runs.at(last)}"
    elif later := [each.run for each in since if each is not run and each.to != run.run and (not each.to or each.done)]:
        more = f" and {len(later) - 6} more" if len(later) > 6 else ""
        text += f"; so {', '.join(later[:6])}{more} {'is' if len(later) == 1 else 'are'} undone too"
    if run.to:
        text += f"; it was a rollback to before {run.to}, and what that undid comes back"
    yield Note(text)
    for each in facts(run_record.runs):
        if each.number == run.number - 1 and not each.done and not to:
            text = f"run {each.run}, the one before, did not end: --to {each.run} goes back to before it"
            yield Note(text, warn=True)
    stays = [_left(file, why) for file in written.files if (why := obstacle(file))]
    for text in stays[:MOST_NAMED]:
        yield Note(text, warn=True)
    if len(stays) > MOST_NAMED:
        yield Note(f"{count(len(stays) - MOST_NAMED, 'more file')} cannot go back, for the same reasons", warn=True)
    if written.unreadable:
        yield Note(f"{written.unreadable} lines of the records cannot be read: files that they name stay", warn=True)


def _left(file: WrittenFile, why: str) -> str:
    if not file.kept_in:
        todo = "delete it if it is not wanted" if file.was.kind == "absent" else "write it again yourself"
        return f"{file.path}: {why}; {todo}"
    words = command("sudo", "cp", "-a", f"{RUNS}/{file.kept_in}{file.path}", file.path)
    return f"{file.path}: {why}; {words} puts it back"


@operation()
def units_stopped(facts: Facts, *, to: str = "") -> Iterator[Change]:
    """No unit runs or starts at boot that a run enabled or started, and that did not before."""
    run, _ = target(facts, to)
    changes = []
    for unit in facts(run_record.units(run.run, run.number)):
        if unit.active and not unit.was_active:
            stop = (command("systemctl", "stop", "--", unit.name, timeout_s=300),)
            changes.append(Change("change", unit.name, "active", "stopped", stop, units=(unit.name,)))
        if unit.enabled and not unit.was_enabled:
            disable = (command("systemctl", "disable", "--", unit.name, timeout_s=60),)
            changes.append(Change("change", unit.name, "enabled at boot", "disabled", disable, units=(unit.name,)))
    yield from toward(run, changes)


@operation()
def apt_rules(facts: Facts, *, to: str = "") -> Iterator[Change]:
    """The sources, keys and pins of apt that runs wrote are as before, and apt has read the lists of the sources."""
    run, _ = target(facts, to)
    pending = facts(run_record.pending)
    files = [file for file in differing(facts, run) if file.path.startswith(RULES)]
    sourced = ("/etc/apt/sources.list", "/usr/share/keyrings/")
    changes = [change_of(file, _LISTS_READ if file.path.startswith(sourced) else "") for file in files]
    if _LISTS_READ in pending or any(file.path.startswith(sourced) for file in files):
        read = (apt.update(), unmark(_LISTS_READ))
        changes.append(Change("run", "apt-get update", "", "lists read", read))
    yield from toward(run, changes)


@operation(affects_p2p=True)
def boot_files(facts: Facts, *, to: str = "") -> Iterator[Change]:
    """The files that runs wrote in /etc/modprobe.d and for GRUB are as before. Then the initramfs and grub.cfg are made
    again; an interrupted rollback goes on with that.

    Raises HostError where one of them has to be made and its program is not installed.
    """
    run, _ = target(facts, to)
    yield from toward(run, _with_works(facts, run, [work for work in _WORKS if work.reboot])[0])


@operation()
def files(facts: Facts, *, to: str = "") -> Iterator[Change]:
    """The other files that runs wrote are as before, and systemd, the dynamic linker and rigwright's units have read
    theirs.

    rigwright's own lists of what it put on the host are the last: what they name is looked for until then.
    """
    run, _ = target(facts, to)
    changes, rest = _with_works(facts, run, [work for work in _WORKS if not work.reboot])
    changes += [change_of(file) for file in sorted(rest, key=lambda file: file.path in LISTS)]
    yield from toward(run, changes)


def _with_works(facts: Facts, run: Run, works: Sequence[_Work]) -> tuple[list[Change], list[WrittenFile]]:
    """The changes of files that make these works necessary, with the works; and the files that make none necessary."""
    pending = facts(run_record.pending)
    files = [file for file in differing(facts, run) if not file.path.startswith(RULES)]
    due = [work for work in works if work.mark in pending or any(map(work.follows, files))]
    programs = [work.program for work in due if work.program]
    there = facts.all(*map(system.program, programs)) if programs else ()
    for name, present in zip(programs, there, strict=True):
        if not present:
            failure = missing_program(name)
            raise HostError("rollback", failure.found, name, failure.fix)
    release = ""
    if any("{}" in work.subject for work in due):
        boot, image_mib, _ = facts.all(grub.grub, kernels.largest_initramfs_mib, system.free_mib)
        release = boot.entry.release
        require_room(facts, image_mib + _INITRAMFS_GROWS_MIB, "/boot")
    changes: list[Change] = []
    for work in due:
        changes += [change_of(file, work.mark) for file in files if file.path.startswith(work.folder)]
        make = (work.command(release), unmark(work.mark))
        lead = "reboot" if work.reboot else ""
        changes.append(Change("run", work.subject.format(release), "", "as before", make, leads_to=lead))
    done = tuple(work.folder for work in _WORKS if work in due or work not in works)
    return changes, [file for file in files if not file.path.startswith(done)]


@operation(affects_p2p=True, affects_gpus=True)
def module_built(facts: Facts, *, to: str = "") -> Iterator[Change]:
    """The kernel that boots next has the module of the driver that its kernel had before; DKMS builds it where it is
    missing."""
    run, _ = target(facts, to)
    before, kernel = run.about.get("module", ""), run.about.get("kernel", "")
    if not before:
        return
    boot, packages = facts.all(grub.grub, run_record.packages(run.run, run.number))
    release = boot.entry.release
    if release != kernel or any("nvidia" in each.name and each.was != each.now for each in packages.moved):
        return  # the installation of the packages builds it
    made = facts(kernels.module_version(release, "nvidia"))
    if made == before:
        return
    build = command("dkms", "autoinstall", "-k", release, timeout_s=3600, long=True)
    image = command("update-initramfs", "-u", "-k", release, timeout_s=900, long=True)
    change = Change("run", f"module for {release}", made or "not built", before, (build, image), leads_to="reboot")
    yield from toward(run, [change])


@operation(affects_p2p=True, reboots=True)
def rebooted(facts: Facts, *, to: str = "", timeout_s: int = 900) -> Iterator[Change | Note]:
    """The kernel, its parameters and the loaded driver are those of before, where the next boot brings them; otherwise
    the host reboots.

    Raises Unavailable when grub.cfg does not parse.
    """
    run, _ = target(facts, to)
    reasons = _reasons(facts, run)
    if not reasons:
        return
    if not facts(grub.grub).parses:
        raise Unavailable("grub-script-check refuses /boot/grub/grub.cfg")
    why = "; ".join(reasons)
    if (last := facts(reboot_record.in_vain)) and last.same and last.reasons == one_line(why):
        problem = f"the reboot of {last.at} did not help ({why}), and another one would read the same files"
        fix = "look at what the host says; then sudo reboot, on the host, and the same command again"
        raise Unavailable(problem, fix)
    graphical, limits = facts.all(display.graphical, run_record.limits(run.run))
    yield from sessions_lost(graphical.sessions)
    answered = sum(not each.lost for each in limits.gpus)
    yield from toward(run, [reboot_change(why, "a boot as before", timeout_s, gpus_after=answered)])


def _reasons(facts: Facts, run: Run) -> list[str]:
    """Why a reboot is due: what runs is not as before, and the next boot brings another."""
    kernel, line, loaded = facts.all(system.running_kernel, kernels.command_line, state.loaded_version)
    was = run.about
    before = _words(kernels.TRIAL_WORDS.sub("", was.get("cmdline", "")))
    if kernel == was.get("kernel") and _words(line) == before and loaded == was.get("loaded", ""):
        return []
    boot = facts(grub.grub)
    reasons = []
    if kernel not in (was.get("kernel"), boot.entry.release):
        reasons.append(f"{kernel} runs, {boot.entry.release} boots next")
    following = _words(boot.entry.command_line)
    if _words(line) != before and _words(line) != following:
        words = [f"+{word}" for word in sorted(following - _words(line))]
        words += [f"-{word}" for word in sorted(_words(line) - following)]
        reasons.append(f"kernel parameters: {' '.join(words)}")
    if loaded != was.get("loaded", ""):
        built = facts(kernels.module_version(boot.entry.release, "nvidia"))
        if loaded != built:
            reasons.append(f"driver {loaded or 'none'} is loaded, {built or 'none'} is installed")
    return reasons


def _words(line: str) -> frozenset[str]:
    return frozenset(word for word in line.split() if not word.startswith("BOOT_IMAGE="))


@operation()
def units_started(facts: Facts, *, to: str = "") -> Iterator[Change | Note]:
    """Every unit that a run disabled or stopped starts at boot and runs again, as before."""
    run, _ = target(facts, to)
    changes = []
    for unit in facts(run_record.units(run.run, run.number)):
        wanted = (unit.was_enabled and not unit.enabled, unit.was_active and not unit.active)
        if any(wanted) and unit.masked:
            todo = f"{command('sudo', 'systemctl', 'unmask', '--', unit.name)} allows it again"
            yield Note(f"{unit.name}: somebody masked it since, so it does not start; {todo}", warn=True)
            continue
        if any(wanted) and not unit.there:
            raise Unavailable(f"the unit {unit.name} is not there")
        if wanted[0]:
            enable = (command("systemctl", "enable", "--", unit.name, timeout_s=60),)
            changes.append(Change("change", unit.name, "disabled", "enabled at boot", enable, units=(unit.name,)))
        if wanted[1]:
            again = script('systemctl reset-failed -- "$1" 2>/dev/null || :', unit.name)
            start = (again, command("systemctl", "start", "--", unit.name, timeout_s=450))
            changes.append(Change("change", unit.name, "stopped", "active", start, units=(unit.name,)))
    yield from toward(run, changes)
